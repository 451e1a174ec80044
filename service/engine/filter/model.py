"""What the engine needs of a filter, and what it asks of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from rfa.service.engine.filter.input import Mode, Observation
from rfa.service.runtime.pool import Seat, StateField, StatePool
from rfa.service.schemas.replies import FilterStepReply

# Forecasts and samples that cost about as much as the step itself.
FORECASTS_PER_ROW = 4
SAMPLES_PER_ROW = 32


class Filter(Protocol):
    """What the engine needs of a filter; tests put small hand-made ones here."""

    name: str
    observation_size: int
    state_size: int  # components of the state
    levels: tuple[float, ...]

    @property
    def state_fields(self) -> Mapping[str, StateField]:
        """What a seat of its pool holds."""

    @property
    def state_bytes(self) -> int:
        """Size of a packed state."""

    def start(self, seed: int = 0) -> Any:
        """The state before the first observation; it has a `count`, a `time` and a `seed`."""

    def put(self, pool: StatePool, seat: Seat, state: Any) -> None:
        """Set a seat to a state."""

    def get(self, pool: StatePool, seat: Seat, seed: int) -> Any:
        """The state in a seat."""

    def pack(self, state: Any) -> bytes:
        """A state as `state_bytes` bytes."""

    def unpack(self, data: bytes) -> Any:
        """The inverse of `pack`; raises InvalidRequest."""

    def readout(self, levels: tuple[float, ...], horizon: tuple[float, ...], samples: int) -> Any:
        """What to tell about each row; raises InvalidRequest."""

    def advance(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        """One observation of each row; None where the numbers are not finite and the seat is as it was."""

    def work(self, options: FilterOptions) -> Generator[Any, None, Any]:
        """A whole sequence in pieces: gives each step once it is final, None in between; returns log-likelihood, the
        state after the last step, the smoothed trajectory, and the tally of the forecasts."""


class Row(NamedTuple):
    """One observation of one stream, checked."""

    seat: Seat
    t: float
    observation: Observation
    noise: float
    readout: Any  # what `Filter.readout` made
    seed: int


class Stepped(NamedTuple):
    """What a row's observation led to; the tally is of forecast_checks.py."""

    step: FilterStepReply
    log_likelihood: float
    tally: np.ndarray


@dataclass(frozen=True)
class FilterOptions:
    """What to filter and what to tell about it.

    Attributes:
        observations: P numbers each; None = nothing observed, None inside = that component is missing.
        noise: factors on the standard deviation of each observation's measurement noise; None = 1.
        samples: draws of the state per step; with `smooth` they are trajectories given all observations.
        mode: "attention" looks at all earlier observations (at most MAX_ATTENTION) and starts fresh.
        lag: with `smooth`, the smoothed states are given the observations up to so many after each, not all.
        state: where to continue, as the model unpacked it (recurrent mode).
        wants_state: asks for the packed state at the end.
    """

    times: Sequence[float]
    observations: Sequence[Observation]
    noise: Sequence[float | None] | None
    levels: tuple[float, ...]
    horizon: tuple[float, ...] = ()
    samples: int = 0
    seed: int = 0
    mode: Mode = "recurrent"
    smooth: bool = False
    lag: int | None = None
    is_streamed: bool = False
    state: Any = None
    wants_state: bool = False

    @property
    def needs_whole(self) -> bool:
        """Whether the answer needs the whole sequence at once."""
        return self.smooth or self.mode == "attention"


def reply_rows(options: Any) -> int:
    """What a step that is told so much about weighs, in plain steps."""
    return 1 + len(options.horizon) // FORECASTS_PER_ROW + options.samples // SAMPLES_PER_ROW
