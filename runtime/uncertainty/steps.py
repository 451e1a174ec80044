"""What the filter tells about observations: columns of calibrated numbers, and the replies made of them.

`conclude.py` fills the columns, a row an observation. Random numbers are keyed by (seed, position in the stream).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from rfa.runtime.blocks import PIECE_NUMBERS, Blocks
from rfa.runtime.outputs import FilterStep, ForecastPoint
from rfa.runtime.uncertainty.alarms import Alarm
from rfa.runtime.uncertainty.calibration import Calibration, normal_squares
from rfa.runtime.uncertainty.conclude import Told, Wanted, room
from rfa.runtime.uncertainty.input import level_name

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


STEP_FIELDS = tuple(field.name for field in fields(FilterStep) if field.name not in ("index", "t"))


def chosen(step: FilterStep, wanted: Collection[str] | None) -> Any:
    """A reply with these fields alone beside index and time; None is all."""
    if wanted is None:
        return step
    return {"index": step.index, "t": step.t, **{name: getattr(step, name) for name in STEP_FIELDS if name in wanted}}


class Readout:
    """What a request wants to be told, with the calibration looked up once.

    Args:
        levels: of the intervals, between 0 and 1.
        horizon: forecasts so far ahead, in time units.
        samples: draws of the state per step.
        alarm: when an observation is one.
        passes: K, of the robust weight.
    """

    def __init__(
        self,
        calibration: Calibration,
        levels: tuple[float, ...],
        horizon: tuple[float, ...],
        samples: int,
        alarm: Alarm,
        passes: int,
    ) -> None:
        self.calibration = calibration
        self.levels = levels
        self.names = tuple(map(level_name, levels))
        self.horizon = horizon
        self.samples = samples
        self.passes = passes
        between, leads = calibration.between(levels, horizon), calibration.nearest(horizon)
        self.wanted = Wanted(
            calibration.state_scale,
            calibration.state(levels),
            np.array(horizon, np.float64),
            calibration.at_horizons(horizon),
            leads,
            between.columns,
            np.ascontiguousarray(between.weights[:, 0]),
            normal_squares(levels),
            calibration.forecast_scale(horizon),
            alarm,
        )

    def named(self, bands: Sequence[Any]) -> dict[str, Any]:
        """Bands, one for each level, by its name."""
        return dict(zip(self.names, bands, strict=True))


@dataclass(frozen=True)
class Steps:
    """What is told about observations, in columns.

    Args:
        samples: of the state, `[samples, P]` for each, where they are asked for.
    """

    readout: Readout
    times: Array
    told: Told
    samples: Sequence[Array] | None = None

    @classmethod
    def none(cls, readout: Readout, size: int) -> Steps:
        """Nothing told, of observations of `size` components: the columns are there, and empty."""
        shape = len(readout.names), len(readout.horizon), len(readout.calibration.levels)
        return cls(readout, np.empty(0), room(0, size, *shape))

    def __len__(self) -> int:
        return len(self.times)

    def added_to(self, log_likelihood: float, tally: Array) -> tuple[float, Array]:
        """Log-likelihood and tally with those of these observations, one after the other: so they have the same bits
        however a series is cut."""
        likelihoods = np.concatenate(([log_likelihood], self.told.log_likelihood))
        tallies = np.concatenate((tally[None], self.told.tally))
        # By rows numpy adds in their order; cumsum, which one number needs, takes eight times as long.
        return float(likelihoods.cumsum()[-1]), tallies.sum(axis=0)

    @property
    def counted(self) -> Steps:
        """What is still to be told once their tally has been added up: it takes as much as the rest."""
        return replace(self, told=self.told._replace(tally=np.empty((len(self), 0))))

    @property
    def tally(self) -> Array:
        """What became of their forecasts, as of forecast_checks.py."""
        found: Array = self.told.tally.sum(axis=0)
        return found

    @property
    def anomalies(self) -> Array:
        """The scores that there are."""
        scores: Array = self.told.anomaly[~np.isnan(self.told.anomaly)]
        return scores

    def __getitem__(self, rows: slice | Array) -> Steps:
        return Steps(self.readout, self.times[rows], Told(*(column[rows] for column in self.told)))

    def blocks(self, wanted: Collection[str] | None = None) -> Iterator[list[Any]]:
        """The replies, in lists of about PIECE_NUMBERS numbers at most.

        Args:
            wanted: what to tell beside index and time; None is all.
        """
        told = self.told
        numbers = 8 + sum(column[:1].size for column in (told.mean, told.std, told.interval, told.moments, told.bands))
        size = max(1, PIECE_NUMBERS // (numbers + (self.samples[0].size if self.samples else 0)))
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            samples = None if self.samples is None else self.samples[rows]
            part = replace(self[rows], samples=samples)
            yield part.replies() if wanted is None else part.chosen(wanted)

    def chosen(self, wanted: Collection[str]) -> list[dict[str, Any]]:
        """The replies with these fields alone."""
        columns: dict[str, Any] = {"index": self.told.position.tolist(), "t": self.times.tolist()}
        if {"innovation", "forecast", "samples"} & set(wanted):
            replies = self.replies()
            columns |= {name: [getattr(reply, name) for reply in replies] for name in STEP_FIELDS if name in wanted}
        else:
            columns |= {name: _known(getattr(self.told, name)) for name in STEP_FIELDS if name in wanted}
            if "alarm" in wanted:
                columns["alarm"] = _flags(self.told.alarm)
            if "interval" in wanted:
                columns["interval"] = [self.readout.named(bands) for bands in columns["interval"]]
        names = tuple(columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def replies(self, *, apart: bool = False) -> list[FilterStep]:
        """A reply for each.

        Args:
            apart: they go to several readers, of whom none is to keep the columns of all.
        """
        told, readout = self.told, self.readout
        times, innovations = self.times.tolist(), told.innovation.tolist()
        weights, nis, anomalies = (_known(column) for column in (told.weight, told.nis, told.anomaly))
        if np.isnan(told.innovation).any():
            innovations = [
                None if size is None else [None if value != value else value for value in row]  # noqa: PLR0124
                for size, row in zip(nis, innovations, strict=True)
            ]
        intervals = [dict(zip(readout.names, bands, strict=True)) for bands in told.interval.tolist()]
        ahead: Sequence[Any] = [[]] * len(times)
        if readout.horizon:
            columns = zip(times, told.moments, told.bands, strict=True)
            if apart:
                ahead = [Forecasts(t, readout, moments.copy(), bands.copy()) for t, moments, bands in columns]
            else:
                ahead = [Forecasts(t, readout, moments, bands) for t, moments, bands in columns]
        samples = [NO_SAMPLES] * len(times) if self.samples is None else self.samples
        return list(
            map(
                FilterStep, told.position.tolist(), times, told.mean.tolist(), told.std.tolist(),
                told.precision.tolist(), told.confidence.tolist(), weights, innovations, nis, anomalies,
                _flags(told.alarm), intervals, ahead, samples,
            )
        )  # fmt: skip


def _known(column: Array) -> list[float | None]:
    """None in the place of NaN."""
    values: list[float | None] = column.tolist()
    if np.isnan(column).any():
        return [None if value != value else value for value in values]  # noqa: PLR0124
    return values


def _flags(column: Array) -> list[bool | None]:
    """1 and 0 as what they mean, None in the place of NaN."""
    return [None if value != value else value > 0 for value in column.tolist()]  # noqa: PLR0124


def draw(means: Array, covariances: Array, samples: int, seeds: Sequence[int], indices: Sequence[int]) -> Array:
    """Normal draws `[R, samples, n]` around means `[R, n]`, each row's keyed by its (seed, index)."""
    bits = np.random.Philox(0)
    fresh, source = bits.state, np.random.Generator(bits)
    normal = np.empty((len(means), samples, means.shape[1]))
    for row, key in enumerate(zip(seeds, indices, strict=True)):
        fresh["state"]["key"][:] = key[0] & (2**64 - 1), key[1]
        bits.state = fresh
        source.standard_normal(out=normal[row])
    values, vectors = np.linalg.eigh((covariances + covariances.swapaxes(1, 2)) / 2)
    found: Array = means[:, None] + (normal * np.sqrt(np.maximum(values, 0.0))[:, None]) @ vectors.swapaxes(1, 2)
    return found
