"""Outputs of a filter as columns, and the replies that are created from them.

Random numbers depend only on the seed and the position in the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from rfa.runtime.blocks import PIECE_NUMBERS, Blocks
from rfa.runtime.outputs import FilterStep, ForecastPoint, LateStep, WeightedStep
from rfa.runtime.uncertainty.calibration import Calibration, normal_squares
from rfa.runtime.uncertainty.incidents import raised_alarm
from rfa.runtime.uncertainty.input import level_name
from rfa.runtime.uncertainty.interface import UNLIMITED, ReadoutOptions
from rfa.runtime.uncertainty.step_outputs import OutputSpec, StepOutputs

Array = np.ndarray


class Forecasts(Blocks, Sequence[ForecastPoint]):
    """Forecasts of a step. They are stored as arrays until they are sent, because lists take ten times as much memory.

    Args:
        t: Time of the last observation.
        readout: Options of the reply.
        moments: Mean, std and median, `[horizon, 3, P]`.
        bands: Intervals, `[horizon, levels, P, 2]`.
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
        horizon = self._readout.horizon[index]
        mean, std, median = self.moments[index].tolist()
        return ForecastPoint(self._t + horizon, mean, median, std, self._readout.named(self.bands[index].tolist()))

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
                {"t": self._t + horizon, "mean": mean, "median": median, "std": std, "interval": readout.named(bands)}
                for horizon, (mean, std, median), bands in zip(
                    readout.horizon[part], self.moments[part].tolist(), self.bands[part].tolist(), strict=True
                )
            ]

    @property
    def is_finite(self) -> bool:
        """Return whether all numbers are finite."""
        return bool(np.isfinite(self.moments).all() and np.isfinite(self.bands).all())

    @property
    def _points_of_block(self) -> int:
        return max(1, PIECE_NUMBERS * len(self) // (self.moments.size + self.bands.size))


NO_SAMPLES = np.empty((0, 0))
# The smallest normal number of float32. No measurement is smaller. Deviations of a series of zeros, whose scale is
# unknown, are.
LEAST = float(np.finfo(np.float32).tiny)
STEP_FIELDS = tuple(field.name for field in fields(WeightedStep) if field.name not in ("index", "t"))


def select_fields(step: FilterStep, names: Collection[str] | None) -> Any:
    """Return the index, the time and the named fields of a reply. If `names` is None, return all fields. Other objects,
    such as errors, are returned unchanged."""
    if names is None or not isinstance(step, FilterStep):
        return step
    late = {"late": True, "recomputed": step.recomputed} if isinstance(step, LateStep) else {}
    chosen = {name: getattr(step, name, None) for name in STEP_FIELDS if name in names}
    return {"index": step.index, "t": step.t, **chosen, **late}


class Readout:
    """Requested outputs, with their calibration looked up once.

    Args:
        calibration: Calibration of the mode.
        levels: Levels of the intervals, between 0 and 1.
        horizon: Horizons of the forecasts, in time units.
        samples: Number of samples of the state per step.
        options: Further options.
        passes: Number of reweighting passes K.
        experts: Names of the model's experts. Empty unless their weights are requested.
    """

    def __init__(
        self,
        calibration: Calibration,
        levels: tuple[float, ...],
        horizon: tuple[float, ...],
        samples: int,
        options: ReadoutOptions,
        *,
        passes: int,
        experts: tuple[str, ...] = (),
    ) -> None:
        self.calibration = calibration
        self.levels = levels
        self.names = tuple(map(level_name, levels))
        self.horizon = horizon
        self.samples = samples
        self.options = options
        self.passes = passes
        self.experts = experts
        columns, weights = calibration.level_weights(levels, horizon)
        self.spec = OutputSpec(
            calibration.state_scale,
            calibration.state(levels),
            np.array(horizon, np.float64),
            calibration.at_horizons(horizon),
            calibration.nearest(horizon),
            columns,
            weights,
            normal_squares(levels),
            calibration.forecast_scale(horizon),
            options.alarm.rule,
            options.utc_offsets.array(),
            *options.alarm.mute.arrays(),
        )

    @property
    def has_range(self) -> bool:
        """Whether outputs are limited to a range."""
        return self.options.range != UNLIMITED

    def weights_by_name(self, weights: Array) -> dict[str, Any] | None:
        """Return a dictionary of the weights `[…, experts]`, whose keys are the names of the experts. Return None if
        there are no experts."""
        return {name: weights[..., k].tolist() for k, name in enumerate(self.experts)} or None

    def hide_muted(self, times: Array, values: Array) -> Array:
        """Return the values `[N, P]` of rows, with NaN in maintenance windows."""
        mute = self.options.alarm.mute
        return np.where(mute.covers(times)[:, None], np.nan, values) if mute else values

    def named(self, bands: Sequence[Any]) -> dict[str, Any]:
        """Return a dictionary of intervals, whose keys are the names of the levels."""
        return dict(zip(self.names, bands, strict=True))


@dataclass(frozen=True)
class Steps:
    """Outputs of observations, as columns.

    Args:
        readout: Options of the outputs.
        times: Times of the observations.
        outputs: Calibrated outputs.
        samples: Samples of the state of each observation, `[samples, P]`. None unless requested.
    """

    readout: Readout
    times: Array
    outputs: StepOutputs
    samples: Sequence[Array] | None = None

    @classmethod
    def empty(cls, readout: Readout, size: int) -> Steps:
        """Return an object without rows, for observations of `size` components."""
        return cls(readout, np.empty(0), StepOutputs.allocate(0, size, readout))

    def __len__(self) -> int:
        return len(self.times)

    def add_to(self, log_likelihood: float, tally: Array) -> tuple[float, Array]:
        """Add the log-likelihoods and the counts of the observations to sums, in order, and return the new sums. The
        bits of the sums do not depend on how a series is split into parts."""
        likelihoods = np.concatenate(([log_likelihood], self.outputs.log_likelihood))
        tallies = np.concatenate((tally[None], self.outputs.tally))
        # NumPy adds in order along the rows. cumsum, which a vector needs for that, takes eight times as long.
        return float(likelihoods.cumsum()[-1]), tallies.sum(axis=0)

    @property
    def without_tally(self) -> Steps:
        """Return a copy of the steps without the counts of forecast_checks.py, which take half of the memory."""
        return replace(self, outputs=self.outputs._replace(tally=np.empty((len(self), 0))))

    @property
    def tally(self) -> Array:
        """Sum of the counts of all rows, which forecast_checks.py describes."""
        found: Array = self.outputs.tally.sum(axis=0)
        return found

    @property
    def anomalies(self) -> Array:
        """Anomaly scores of the rows for which a score was computed."""
        scores: Array = self.outputs.anomaly[~np.isnan(self.outputs.anomaly)]
        return scores

    def __getitem__(self, rows: slice | Array) -> Steps:
        return Steps(self.readout, self.times[rows], StepOutputs(*(column[rows] for column in self.outputs)))

    def blocks(self, names: Collection[str] | None = None) -> Iterator[list[Any]]:
        """Yield the replies in lists of at most about PIECE_NUMBERS numbers.

        Args:
            names: Fields other than index and time. None selects all fields.
        """
        outputs = self.outputs
        numbers = 8 + sum(
            column[:1].size for column in (outputs.mean, outputs.std, outputs.interval, outputs.moments, outputs.bands)
        )
        size = max(1, PIECE_NUMBERS // (numbers + (self.samples[0].size if self.samples else 0)))
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            samples = None if self.samples is None else self.samples[rows]
            part = replace(self[rows], samples=samples)
            yield part.replies() if names is None else part.select(names)

    def select(self, selected: Collection[str]) -> list[dict[str, Any]]:
        """Return the replies with index, time and the given fields."""
        columns: dict[str, Any] = {"index": self.outputs.position.tolist(), "t": self.times.tolist()}
        if {"innovation", "forecast", "samples", "weights"} & set(selected):
            replies = self.replies()
            columns |= {
                name: [getattr(reply, name, None) for reply in replies] for name in STEP_FIELDS if name in selected
            }
        else:
            columns |= {name: _none_for_nan(getattr(self.outputs, name)) for name in STEP_FIELDS if name in selected}
            if "raised" in selected:
                columns["raised"] = [raised_alarm(row) for row in self.outputs.raised.tolist()]
            if "alarm" in selected:
                columns["alarm"] = _flags(self.outputs.alarm)
            if "interval" in selected:
                columns["interval"] = [self.readout.named(bands) for bands in columns["interval"]]
        names = tuple(columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def replies(self, *, copies: bool = False) -> list[FilterStep]:
        """Return the rows as a list with one reply for each row.

        Args:
            copies: Whether to copy the forecasts. Use this if replies are passed to different consumers, so that a
                reply does not keep the arrays of all rows in memory.
        """
        outputs, readout = self.outputs, self.readout
        times, innovations = self.times.tolist(), outputs.innovation.tolist()
        weights, nis, anomalies = (_none_for_nan(column) for column in (outputs.weight, outputs.nis, outputs.anomaly))
        if np.isnan(outputs.innovation).any():
            innovations = [
                None if size is None else [None if value != value else value for value in row]  # noqa: PLR0124
                for size, row in zip(nis, innovations, strict=True)
            ]
        intervals = [dict(zip(readout.names, bands, strict=True)) for bands in outputs.interval.tolist()]
        forecasts: Sequence[Any] = [[]] * len(times)
        if readout.horizon:
            columns = zip(times, outputs.moments, outputs.bands, strict=True)
            if copies:
                forecasts = [Forecasts(t, readout, moments.copy(), bands.copy()) for t, moments, bands in columns]
            else:
                forecasts = [Forecasts(t, readout, moments, bands) for t, moments, bands in columns]
        samples = [NO_SAMPLES] * len(times) if self.samples is None else self.samples
        replies = (
            outputs.position.tolist(), times, outputs.mean.tolist(), outputs.std.tolist(), outputs.precision.tolist(),
            outputs.confidence.tolist(), weights, innovations, nis, anomalies, _flags(outputs.alarm),
            map(raised_alarm, outputs.raised.tolist()), intervals, forecasts, samples,
        )  # fmt: skip
        if readout.options.weights:
            return list(map(WeightedStep, *replies, map(readout.weights_by_name, outputs.weights)))
        return list(map(FilterStep, *replies))


def limit_outputs(outputs: StepOutputs, limits: tuple[float, float]) -> None:
    """Clip estimates, forecasts and the ends of their intervals to a range, and set numbers below LEAST to 0."""
    is_small = outputs.std < LEAST
    if is_small.any():
        rows = np.flatnonzero(is_small.any(axis=1))  # separately, so that results do not depend on the batch
        for numbers in (outputs.mean, outputs.std, outputs.interval, outputs.moments, outputs.bands):
            numbers[rows] = np.where(np.abs(numbers[rows]) < LEAST, 0.0, numbers[rows])
    if limits == UNLIMITED:
        return
    for numbers in (outputs.mean, outputs.interval, outputs.moments[:, :, ::2], outputs.bands):
        np.clip(numbers, *limits, out=numbers)


def _none_for_nan(column: Array) -> list[float | None]:
    """Return the column with None in place of NaN."""
    return [None if value != value else value for value in column.tolist()]  # noqa: PLR0124


def _flags(column: Array) -> list[bool | None]:
    """Return the column as booleans, with None in place of NaN."""
    return [None if value != value else value > 0 for value in column.tolist()]  # noqa: PLR0124
