"""What the filter tells about a batch of rows: calibrated numbers, computed for all rows at once.

A row's numbers do not depend on its neighbours: everything that is not exactly rounded (powers, interpolation) runs on
contiguous arrays padded to whole vectors, the rest is exactly rounded or done row by row. Random numbers are keyed by
(seed, position in the stream).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rfa.export.surprise import running_surprise
from rfa.service.encoding import PIECE_NUMBERS, Blocks
from rfa.service.engine.filter.calibration import Calibration
from rfa.service.engine.filter.input import level_name
from rfa.service.engine.filter.learned_normal import learn
from rfa.service.schemas.replies import FilterStepReply, ForecastPoint

Array = np.ndarray


class Forecasts(Blocks, Sequence[ForecastPoint]):
    """The forecasts of a step: numbers, eight bytes each, until they are sent. As lists they take ten times as much.

    Args:
        t: of the observation behind them.
        readout: what was asked for.
        moments: mean and std, `[horizon, 2, P]`.
        bands: `[horizon, levels, P, 2]`.
    """

    __slots__ = ("_readout", "_t", "bands", "moments")

    def __init__(self, t: float, readout: Readout, moments: Array, bands: Array) -> None:
        self._t = t
        self._readout = readout
        self.moments = moments
        self.bands = bands

    def __len__(self) -> int:
        return len(self.moments)

    def __getitem__(self, index: int) -> ForecastPoint:  # type: ignore[override]  # nobody takes a slice
        lead = self._readout.horizon[index]
        mean, deviation = self.moments[index].tolist()
        return ForecastPoint(self._t + lead, mean, deviation, self._readout.named(self.bands[index].tolist()))

    def __iter__(self) -> Iterator[ForecastPoint]:
        return (self[index] for index in range(len(self)))

    @property
    def is_short(self) -> bool:
        return len(self) <= self._points_of_block

    def blocks(self) -> Iterator[list[dict[str, Any]]]:
        size, readout = self._points_of_block, self._readout
        for first in range(0, len(self), size):
            part = slice(first, first + size)
            yield [
                {"t": self._t + lead, "mean": mean, "std": deviation, "interval": readout.named(bands)}
                for lead, (mean, deviation), bands in zip(
                    readout.horizon[part], self.moments[part].tolist(), self.bands[part].tolist(), strict=True
                )
            ]

    @property
    def is_finite(self) -> bool:
        """Whether every number is one."""
        return bool(np.isfinite(self.moments).all() and np.isfinite(self.bands).all())

    @property
    def _points_of_block(self) -> int:
        return max(1, PIECE_NUMBERS * len(self) // (self.moments.size + self.bands.size))


NO_SAMPLES = np.empty((0, 0))
# A forecast further ahead than so many times its calibrated lead would keep its place for too long.
FURTHEST = 2.0


class Readout:
    """What a request wants to be told, with the calibration looked up once. Rows of one readout are described together.

    Args:
        levels: of the intervals, between 0 and 1.
        horizon: forecasts so far ahead, in time units.
        samples: draws of the state per step.
    """

    def __init__(
        self, calibration: Calibration, levels: tuple[float, ...], horizon: tuple[float, ...], samples: int
    ) -> None:
        self.calibration = calibration
        self.names = tuple(map(level_name, levels))
        self.horizon = horizon
        self.samples = samples
        self.state = calibration.state(levels)[:, None]  # [levels, 1]
        self.multipliers = calibration.at_horizons(horizon)[:, None]  # [horizon, 1, calibrated]
        self.between = calibration.between(levels, horizon)
        self.leads = calibration.nearest(horizon)  # [horizon]
        found = _followed(self.leads.tolist(), horizon, calibration.horizons.tolist())
        self.followed = np.array(found, np.int64).reshape(-1, 2).T  # leads and columns of the horizon, `[2, k]`
        self.ahead = np.array(horizon)[self.followed[1]]  # [k]
        self.forecast_scale = calibration.forecast_scale(horizon)[:, None]  # [horizon, 1]

    def named(self, bands: Sequence[Any]) -> dict[str, Any]:
        """Bands, one for each level, by its name."""
        return dict(zip(self.names, bands, strict=True))


def bands(mean: Array, deviation: Array, multipliers: Array) -> Array:
    """Lower and upper ends, `[…, levels, P, 2]`; mean and deviation `[…, P]`, multipliers `[levels, 1]` or `[…, levels,
    P]`."""
    centre, half = mean[..., None, :], deviation[..., None, :] * multipliers
    ends = np.empty((*half.shape, 2))
    np.subtract(centre, half, out=ends[..., 0])
    np.add(centre, half, out=ends[..., 1])
    return ends


@dataclass(frozen=True)
class RowFacts:
    """What is known of the rows before the graph ran; arrays are padded, sequences are not."""

    counts: list[int]  # observations before this one
    times: list[float]
    seeds: list[int]
    readouts: list[Readout]
    present: Array  # [padded, P], bool
    surprise: Array  # [padded]
    normal: Array  # [padded, columns], what learned_normal.py keeps
    lags: Array  # [padded], since the observation before
    scored: Array  # [padded, P], bool: present, and forecast by the observation before


@dataclass(frozen=True)
class Scores:
    """Padded: running surprise and learned normal after the step, score of this observation, confidence in the next."""

    surprise: Array
    normal: Array
    anomaly: Array
    confidence: Array


def score(outputs: Mapping[str, Array], facts: RowFacts, calibration: Calibration) -> Scores:
    """How surprising each row's observation is."""
    seen = facts.present.sum(axis=1)
    # A sum of squares that rounding took below zero is zero.
    nis = np.maximum(outputs["nis"].astype(np.float64), 0.0)
    teaches = np.logical_or.reduce(facts.scored, axis=1)
    learned = learn(facts.normal, nis, seen, facts.present.shape[1], teaches, calibration)
    surprise = np.where(seen > 0, running_surprise(facts.surprise, learned.surprise), facts.surprise)
    return Scores(surprise, learned.after, learned.anomaly, calibration.confidence(surprise))


def by_readout(readouts: Sequence[Readout], rows: Sequence[int]) -> list[tuple[Readout, list[int]]]:
    """Rows that are told the same together."""
    groups: dict[Readout, list[int]] = {}
    for row in rows:
        groups.setdefault(readouts[row], []).append(row)
    return list(groups.items())


def describe(
    outputs: Mapping[str, Array], facts: RowFacts, scores: Scores, rows: Sequence[int]
) -> dict[int, FilterStepReply]:
    """Steps of these rows, without forecasts and samples, by row."""
    mean = outputs["mean"].astype(np.float64)
    deviation = np.sqrt(np.maximum(np.diagonal(outputs["covariance"], axis1=1, axis2=2).astype(np.float64), 0.0))
    means, precisions, nis = mean.tolist(), outputs["precision"].tolist(), outputs["nis"].tolist()
    weights, innovations = outputs["weight"].tolist(), outputs["innovation"].tolist()
    anomalies, confidences = scores.anomaly.tolist(), scores.confidence.tolist()
    steps: dict[int, FilterStepReply] = {}
    for readout, members in by_readout(facts.readouts, rows):
        deviations = deviation[members]
        intervals = bands(mean[members], deviations, readout.state).tolist()
        spreads = (deviations * readout.calibration.state_scale).tolist()
        for row, spread, interval in zip(members, spreads, intervals, strict=True):
            steps[row] = FilterStepReply(
                facts.counts[row], facts.times[row], means[row], spread, precisions[row], confidences[row],
                weights[row], innovations[row], nis[row], anomalies[row], readout.named(interval), [], NO_SAMPLES,
            )  # fmt: skip
    _forget_unseen(steps, facts.present[: len(facts.counts)])
    return steps


def _forget_unseen(steps: Mapping[int, FilterStepReply], present: Array) -> None:
    """Put None where nothing was observed."""
    if present.all():
        return
    for row, step in steps.items():
        known = present[row].tolist()
        if not any(known):
            step.weight = step.innovation = step.nis = step.anomaly = None
        elif not all(known) and step.innovation is not None:
            step.innovation = [
                value if is_known else None for value, is_known in zip(step.innovation, known, strict=True)
            ]


def forecasts(
    readout: Readout, times: Sequence[float], mean: Array, deviation: Array, multipliers: Array
) -> list[Forecasts]:
    """Forecasts of rows of one readout; mean and deviation `[rows, horizon, P]`, multipliers of the calibrated levels
    `[rows, horizon, P, calibrated]`."""
    # All rows at once: NumPy calls for each of them took most of the time.
    ends = bands(mean, deviation, readout.between(multipliers).swapaxes(-1, -2))
    moments = np.stack([mean, deviation * readout.forecast_scale], axis=2)
    if len(times) == 1:
        return [Forecasts(times[0], readout, moments[0], ends[0])]
    # Copies: a row that waits for its reader must not keep those of all others.
    return [Forecasts(t, readout, moments[row].copy(), ends[row].copy()) for row, t in enumerate(times)]


def _followed(leads: Sequence[int], horizon: Sequence[float], calibrated: Sequence[float]) -> list[tuple[int, int]]:
    """Leads beyond one step whose forecasts are held against observations, and the first of the horizons near each."""
    first: dict[int, int] = {}
    for column, lead in enumerate(leads):
        if lead > 0 and horizon[column] <= FURTHEST * calibrated[lead]:
            first.setdefault(lead, column)
    return list(first.items())


def draw(mean: Array, covariance: Array, samples: int, seed: int, index: int) -> Array:
    """Normal draws `[samples, n]`, keyed by (seed, index)."""
    key = np.array([seed & (2**64 - 1), index], np.uint64)
    normal = np.random.Generator(np.random.Philox(key=key)).standard_normal((samples, len(mean)))
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return mean + (normal * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def draw_states(outputs: Mapping[str, Array], facts: RowFacts, row: int) -> Array:
    """Samples of one row's state, `[samples, P]`."""
    readout = facts.readouts[row]
    mean = outputs["mean"][row].astype(np.float64)
    covariance = outputs["covariance"][row].astype(np.float64) * readout.calibration.state_scale**2
    return draw(mean, covariance, readout.samples, facts.seeds[row], facts.counts[row])
