"""The learned tail of runtime/uncertainty/learned_tail.py for one stream, in NumPy over the whole grid.

The equations and the names are those of its page. Tests hold what is served to it.
"""

from __future__ import annotations

import numpy as np

from rfa.runtime.uncertainty.learned_tail import (
    BODY,
    FIRST,
    HALVES,
    LEAST,
    LEAST_THRESHOLD,
    LONGEST,
    MEMORY,
    PACE,
    SCALE_MEAN,
    SCALE_SPREAD,
    SCALES,
    SHAPE_MEAN,
    SHAPE_SPREAD,
    SHAPES,
    START,
    TREE_MEMORY,
    TREE_PRIOR,
    WIDE,
    WIDE_SHARE,
)

Array = np.ndarray


class RareTail:
    """What a stream has shown of its scores."""

    def __init__(self) -> None:
        of_shape = ((SHAPES[:, None] - SHAPE_MEAN) / SHAPE_SPREAD) ** 2
        of_scale = ((np.log(SCALES) - SCALE_MEAN) / SCALE_SPREAD) ** 2
        self.prior = -(of_shape + of_scale) / 2
        self.evidence = self.prior.copy()
        self.counts = np.zeros(HALVES + 1)
        self.threshold, self.seen = 0.0, 0.0
        self.first: list[float] = []

    def probability(self, score: float) -> float | None:
        """p, or None at or below u and as long as there is no u."""
        if not self.has_begun or score <= self.threshold:
            return None
        place = -np.log2(self._survival(self._excess(score)))
        level = min(int(place), HALVES - 1)
        halves = (TREE_PRIOR / 2 + self.counts[1:]) / (TREE_PRIOR + self.counts[:-1])
        return float(BODY * np.prod(halves[:level]) * halves[level] ** (place - level))

    @property
    def has_begun(self) -> bool:
        return self.threshold > 0

    def begin(self, noise: float = 1.0) -> None:
        """Set u so that a tenth of the first scores are larger."""
        above = int(BODY * len(self.first))
        self.threshold = max(float(np.sort(self.first)[-1 - above]) / noise, LEAST_THRESHOLD)
        self.seen = len(self.first)

    def learn(self, score: float, noise: float = 1.0) -> None:
        """Take a score in, which is in units of the noise."""
        if not self.has_begun:
            self.first.append(score * noise)
            if len(self.first) == FIRST:
                self.begin(noise)
            return
        is_above = score > self.threshold
        if is_above:
            excess = self._excess(score)
            place = -np.log2(self._survival(excess))
            log_place = self._log_place(excess)
            densities = np.exp(-(1 + 1 / SHAPES[:, None]) * log_place) / SCALES
            densities[np.isneginf(log_place)] = 0.0
            wide = max(WIDE_SHARE * np.exp(-excess / WIDE) / WIDE, LEAST)
            said = (1 - 1 / MEMORY) * (self.evidence - self.prior)
            self.evidence = self.prior + said + np.log((1 - WIDE_SHARE) * densities + wide)
            self.counts = (1 - 1 / TREE_MEMORY) * self.counts + (place >= np.arange(HALVES + 1))
        self.threshold *= 1 + (is_above - BODY) * PACE / (self.seen + START)
        self.seen = min(self.seen + 1, LONGEST)
        self.threshold = max(self.threshold, LEAST_THRESHOLD)

    def keep(self) -> None:
        """Round as a state does that keeps float32."""
        self.evidence = self.prior + (self.evidence - self.prior).astype(np.float32)
        self.counts = self.counts.astype(np.float32).astype(np.float64)
        self.threshold = float(np.float32(self.threshold))
        self.first = [float(np.float32(score)) for score in self.first]

    def _excess(self, score: float) -> float:
        return (score - self.threshold) / self.threshold

    def _log_place(self, excess: float) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(1 + SHAPES[:, None] * excess / SCALES, 0.0))

    def _survival(self, excess: float) -> float:
        log_place = self._log_place(excess)
        survivals = np.exp(-np.where(np.isneginf(log_place), 0.0, log_place) / SHAPES[:, None])
        survivals[np.isneginf(log_place)] = 0.0
        weights = np.exp(self.evidence - self.evidence.max())
        return max(float((weights * survivals).sum() / weights.sum()), LEAST)
