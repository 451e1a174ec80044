"""What the engine asks of a filter, and what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.choices import MergeMethod, Mode
from rfa.runtime.outputs import FilterStep
from rfa.runtime.pool import Seat
from rfa.runtime.uncertainty.alarms import NEVER, Alarm
from rfa.runtime.uncertainty.input import Observation

# Forecasts and samples that cost about as much as the step itself.
FORECASTS_PER_ROW = 4
SAMPLES_PER_ROW = 32


class Row(NamedTuple):
    """One observation of one stream, checked."""

    seat: Seat
    t: float
    observation: Observation
    noise: float
    readout: Any  # what `FilterRuntime.readout` made
    seed: int
    input: Sequence[float] | None = None


class Piece(NamedTuple):
    """Observations of one stream in order, checked: times and noise `[k]`, values `[k, P]`, NaN where missing, and what
    drives the state until each `[k, n]`, if anything does."""

    seat: Seat
    times: np.ndarray
    values: np.ndarray
    noise: np.ndarray
    readout: Any
    seed: int
    inputs: np.ndarray | None = None

    def part(self, rows: slice) -> Piece:
        """Some of them."""
        return self._replace(
            times=self.times[rows], values=self.values[rows], noise=self.noise[rows],
            inputs=None if self.inputs is None else self.inputs[rows],
        )  # fmt: skip


class Ahead(NamedTuple):
    """Forecasts after a last observation, at times `[M]`: moments `[M, 2, P]`, mean and std; bands
    `[M, levels, P, 2]`."""

    times: np.ndarray
    moments: np.ndarray
    bands: np.ndarray


class Stepped(NamedTuple):
    """What a row's observation led to; the tally is of forecast_checks.py."""

    step: FilterStep
    log_likelihood: float
    tally: np.ndarray


@dataclass(frozen=True)
class FilterOptions:
    """What to filter and what to tell about it.

    Attributes:
        times: `[N]`.
        observations: `[N, P]`, NaN where missing.
        noise: factors on the standard deviation of each observation's measurement noise, `[N]`.
        alarm: when an observation is one.
        samples: draws of the state per step; with `smooth` they are trajectories given all observations.
        mode: "attention" looks at all earlier observations (at most MAX_ATTENTION) and starts fresh.
        lag: with `smooth`, the smoothed states are given the observations up to so many after each, not all.
        state: where to continue, as the model unpacked it (recurrent mode).
        wants_state: asks for the packed state at the end.
        is_whole: the answer is kept until it is whole.
        deadline_seconds: after so long the request ends with what is finished.
        passes: K, of the robust weight; None is the model's own.
        inputs: that drive the state, per unit time, until each observation, `[N, n]`; None is none.
        ahead: leads after the last observation that are forecast at the end, of the recurrent mode.
        followed: so many of `horizon`, the last ones, are forecast for that alone: their intervals learn, and the reply
            does not tell them.
    """

    times: np.ndarray
    observations: np.ndarray
    noise: np.ndarray
    levels: tuple[float, ...]
    horizon: tuple[float, ...] = ()
    samples: int = 0
    alarm: Alarm = NEVER
    seed: int = 0
    mode: Mode = "recurrent"
    smooth: bool = False
    lag: int | None = None
    is_streamed: bool = False
    state: Any = None
    wants_state: bool = False
    is_whole: bool = False
    deadline_seconds: float | None = None
    passes: int | None = None
    inputs: np.ndarray | None = None
    ahead: tuple[float, ...] = ()
    followed: int = 0

    @property
    def needs_whole(self) -> bool:
        """Whether the answer needs the whole sequence at once."""
        return self.smooth or self.mode == "attention"


@dataclass(frozen=True)
class MergeOptions:
    """Beliefs to make one, and what to tell about it.

    Attributes:
        states: as the model unpacked them.
        method: "precision" adds what each knows, as if they shared nothing but `prior`; "covariance_intersection" is
            never too sure, whatever they share.
        prior: that all of them were made from; its share counts once. With "precision" alone.
        t: of the merged belief; None is the latest of the states.
    """

    states: tuple[Any, ...]
    method: MergeMethod
    levels: tuple[float, ...] = ()
    horizon: tuple[float, ...] = ()
    prior: Any = None
    t: float | None = None
    wants_state: bool = True


def reply_rows(options: Any) -> int:
    """What a step that is told so much about weighs, in plain steps; what is wanted has a horizon and samples."""
    return 1 + len(options.horizon) // FORECASTS_PER_ROW + options.samples // SAMPLES_PER_ROW
