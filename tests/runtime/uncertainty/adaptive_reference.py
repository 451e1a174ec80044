"""The adaptive intervals of runtime/uncertainty/adaptive.py, one stream at a time in NumPy.

Equations and names are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rfa.runtime.uncertainty.adaptive import EDGE, EMPTY, GAMMA, INFINITE, MAX_PENDING, TOLERANCE, WIDEST

Array = np.ndarray


class Horizons:
    """As in adaptive.py, for horizons in time units, ascending; the first is the step."""

    def __init__(self, horizons: Sequence[float] | Array) -> None:
        times = np.array(horizons, np.float64)
        self.step = float(times[0])
        steps = np.clip(np.rint(times / self.step), 1, MAX_PENDING).astype(np.int64)
        self.gamma: Array = np.minimum(GAMMA, 1 / (4 * steps))
        self.gamma[0] = GAMMA
        self.pending_count: Array = steps[1:]
        self.pending_horizon: Array = np.repeat(np.arange(1, len(times)), self.pending_count)
        self.tolerance: Array = np.minimum(TOLERANCE * times, self.step / 2)[self.pending_horizon]
        self._begin = np.cumsum(self.pending_count) - self.pending_count

    def pending_index(self, index: int, horizon: float, due: float) -> int:
        """Index of a pending forecast for the time `due` that is scored as the horizon `index`."""
        count = self.pending_count[index - 1]
        step = max(self.step, horizon / count)
        # The remainder is exact, and never infinite.
        return int(self._begin[index - 1] + int(np.floor(np.fmod(due, count * step) / step + EDGE)) % count)


def adapt_half_widths(multipliers: Array, shift: Array) -> Array:
    """Half widths per model std, `[..., levels]`, never smaller at a higher level."""
    bounded = np.minimum(np.maximum(shift, EMPTY, dtype=np.float64), WIDEST)
    found: Array = np.maximum.accumulate(multipliers * ((1 + bounded) / (1 - bounded)) ** 3, axis=-1)
    return found


class Adaptive:
    """The adaptive state of one stream.

    Attributes:
        shift: v, `[horizons, P, levels]`.
        pending: time, mean `[P]` and half widths `[P, levels]` of forecasts, by their index.
    """

    def __init__(self, horizons: Horizons, size: int, rates: Array) -> None:
        self.horizons, self.rates = horizons, rates
        self.shift = np.zeros((len(horizons.gamma), size, len(rates)), np.float32)
        self.pending: dict[int, tuple[float, Array, Array]] = {}

    def score_step(self, multipliers: Array, scores: Array, scored: Array, stretch: Array | float = 1.0) -> Array:
        """Score the one-step forecast.

        Args:
            multipliers: the bundle's at the lag, `[levels]`.
            scores: |innovation| per model std, `[P]`.
            scored: which of them count, `[P]`.
            stretch: of the half widths, by Student's t, `[P, levels]`.

        Returns:
            the half widths per model std that the forecast had without `stretch`, `[P, levels]`.
        """
        widths = adapt_half_widths(multipliers, self.shift[0])
        before = self.shift[0].astype(np.float64)
        missed = ((widths * stretch < scores[:, None]) | (before <= EMPTY)) & (before < INFINITE)
        self.shift[0] = np.where(scored[:, None], before + GAMMA * (missed - self.rates), before)
        return widths

    def score_pending(self, time: float, lag: float, value: Array) -> None:
        """Score the forecasts that are due at an observation, `[P]` with NaN, and drop those whose time has passed."""
        change = np.zeros(self.shift.shape)
        for k, (due, mean, radius) in list(self.pending.items()):
            tolerance = min(self.horizons.tolerance[k], lag / 2)
            if due - time > tolerance:
                continue
            del self.pending[k]
            if due - time >= -tolerance:
                index = self.horizons.pending_horizon[k]
                missed = np.abs(value - mean)[:, None] > radius
                found = self.horizons.gamma[index] * (missed - self.rates)
                change[index] += np.where(np.isnan(value)[:, None], 0.0, found)
        self.shift += change  # type: ignore[misc]

    def store(self, index: int, horizon: float, due: float, mean: Array, radius: Array) -> None:
        """Store a forecast that is scored as the horizon `index`, unless one is pending there."""
        # The largest half width counts as infinite, a negative one as empty.
        limits, shift = np.finfo(np.float32), self.shift[index]
        sent = np.clip(radius, limits.tiny, limits.max)
        counted = np.where(shift >= INFINITE, limits.max, np.where(shift <= EMPTY, -sent, sent))
        self.pending.setdefault(
            self.horizons.pending_index(index, horizon, due), (due, mean, counted.astype(np.float32))
        )
