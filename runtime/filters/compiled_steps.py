"""Filters whose step is compiled: linear systems, in float64, any sizes, an observation after the other.

One call takes many observations, of many live streams or of one recorded series, from the pool to what is told: no
observation's numbers depend on the others of the call. Compiling takes half a minute, once per machine and version;
what was compiled is kept on disk.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.compiling import disable_compilation, kernel_jit, source_inline_jit
from rfa.runtime.filters import dense_numba, dense_numba_learned, filter_numba, noise_law
from rfa.runtime.filters import observed as told_of_one
from rfa.runtime.filters import steps as filter_steps
from rfa.runtime.filters.dense_numba import CompiledSystem
from rfa.runtime.filters.filter_numba import LinearSystem, load_sensor
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.observed import observed
from rfa.runtime.filters.steps import (
    SHORTEST_LAG,
    Batch,
    Traced,
    keep_trace,
    room_of_known,
    streams_of,
    trace_room,
)
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.uncertainty import scoring
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.copy_arrays import copy1
from rfa.runtime.uncertainty.step_outputs import Observation, Scorer, StepOutputs
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray
STATE = "compiled.state"
KEPT_MOVES = 64
_MADE_OF = (
    dense_numba, dense_numba_learned, filter_numba, filter_steps, noise_law, told_of_one, *scoring.SOURCES
)  # fmt: skip


@source_inline_jit
def _take_rows(observe, forecast, system, work, out, moves, state, scorer, batch, told, trace, rooms):
    """All observations of a batch; those of a stream after one that was not taken are not taken either."""
    streams = scorer.streams
    seats, times, values, noise = batch
    n, horizon = out.predicted_mean.shape[0], len(scorer.spec.horizon)
    known, after, moved = rooms
    lost = -1
    for row in range(len(seats)):
        seat = seats[row]
        if seat == lost:
            told.is_good[row] = False
            continue
        lag = times[row] - streams.time[seat] if streams.counts[seat] > 0 else 0.0
        total = 0.0
        for k in range(len(after)):
            after[k] = state[seat, k]
        observe(system, work, after, values[row], lag if lag >= SHORTEST_LAG else 0.0, noise[row], out)
        for k in range(len(after)):
            total += after[k]
        for h in range(horizon):
            forecast(system, moves[h], after, moved, known.forecast_mean[h], known.forecast_covariance[h])
        observation = Observation(seat, times[row], values[row])
        if not scoring.score_observation(scorer, observation, known, np.isfinite(total), told, row):
            lost = seat
            continue
        for k in range(len(after)):
            state[seat, k] = after[k]
        if len(trace.state) > 0:
            keep_trace(out, known, trace, row)
            for i in range(n):
                trace.mean[row, i] = after[i]
                for j in range(n):
                    trace.state_covariance[row, i, j] = after[n + i * n + j]
            copy1(after, trace.state[row])


# Two functions and not one with a parameter: numba keeps a function by its name, and what it calls must be global.


def _capped(system, work, out, moves, state, scorer, batch, told, trace, rooms):
    load_sensor(system, work)
    _take_rows(
        filter_numba.observe_capped, filter_numba.forecast, system, work, out, moves, state, scorer, batch, told,
        trace, rooms,
    )  # fmt: skip


def _learned(system, work, out, moves, state, scorer, batch, told, trace, rooms):
    load_sensor(system, work)
    _take_rows(
        filter_numba.observe_learned, filter_numba.forecast, system, work, out, moves, state, scorer, batch, told,
        trace, rooms,
    )  # fmt: skip


@functools.cache
def _kernel(function: Any) -> Any:
    return kernel_jit(*_MADE_OF)(function)


class CompiledSteps:
    """Steps of a linear filter; see `FilterSteps`.

    Args:
        leads: that forecasts are followed as.
        passes: that requests may choose.
        kept: sets of horizons whose F and Q are kept.

    Attributes:
        module: that the kernel is compiled for.
        layout: shapes of the parts of the state, by name.
    """

    runtime = "compiled"
    magic = b"RFAC\x05"
    rows = 256

    def __init__(
        self, config: LinearFilterConfig, leads: Horizons, passes: PassesRange, kept: int = KEPT_MOVES
    ) -> None:
        self._leads = leads
        self._chooses = passes.are_chosen
        self._linear = compiled = CompiledSystem(config)
        self._system = LinearSystem.of(config, compiled)
        self._kernel = _kernel(_learned if compiled.learns else _capped)
        self._observe = filter_numba.observe_learned if compiled.learns else filter_numba.observe_capped
        self.module = dense_numba_learned if compiled.learns else filter_numba
        self.size, self.state_size = compiled.p, compiled.n
        first = compiled.pack(None)
        self._scratch = compiled.size + 1
        n = compiled.n
        shapes = {"mean": (n,), "covariance": (n, n), "jump_offset": (n,), "jump_evidence": (1,)}
        if compiled.learns:
            shapes["noise_counts"] = (len(noise_law.PRIOR_COUNTS),)
        unused = () if compiled.follows else ("jump_offset", "jump_evidence")
        self.initial: Mapping[str, Array] = {STATE: first}
        self.fields: Mapping[str, StateField] = {STATE: StateField(first.shape, np.float64)}
        self._places = _places(shapes)
        self.layout = {name: shape for name, shape in shapes.items() if name not in unused}
        # Not a method's: an object that its own cache holds lives until the collector comes by.
        self._moves = functools.lru_cache(kept)(functools.partial(_moves_of, self._linear))

    @classmethod
    def of(cls, bundle: Bundle, leads: Horizons) -> Self:
        """Those of a bundle."""
        return cls(LinearFilterConfig(**bundle.config), leads, PassesRange.of(bundle))

    def joined(self, parts: Mapping[str, Array]) -> Array:
        """A state from its parts; what no part is given of is 0."""
        state = np.zeros_like(self.initial[STATE])
        for name, part in parts.items():
            state[self._places[name]] = part.ravel()
        return state

    def adopt(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """The state whose parts these are."""
        return {STATE: self.joined(tensors)}

    def begin(self) -> None:
        """Compile the filter's own part of its kernel, where that takes long."""
        work, value, nothing = np.zeros(self._scratch), np.zeros(self.size), self.initial[STATE].copy()
        self._observe(self._system, work, nothing, value, 0.0, 1.0, observed(self.size, self.state_size))

    def disable_compilation(self) -> None:
        """See `FilterSteps`."""
        disable_compilation(self._kernel)

    def parts(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """The inverse: the parts of a state."""
        return {name: part[0] for name, part in self.split(tensors[STATE][None]).items()}

    def split(self, states: Array) -> dict[str, Array]:
        """The parts of states `[rows, S]`."""
        return {name: states[:, self._places[name]].reshape(-1, *shape) for name, shape in self.layout.items()}

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        """See `FilterSteps`."""
        rows, horizon = len(batch.seats), len(readout.horizon)
        told = StepOutputs.allocate(rows, self.size, readout)
        kept = len(self.initial[STATE])
        trace = trace_room(rows if traced else 0, self.size, self.state_size, kept, horizon)
        work = np.zeros(self._scratch)
        work[-1] = -1.0  # no lag
        system = self._system
        if self._chooses:
            inverse_nu, _, patience = system.rule
            system = system._replace(rule=(inverse_nu, readout.passes, patience))
        out = observed(self.size, self.state_size)
        rooms = room_of_known(out, horizon), np.empty(kept), np.empty(self.state_size * (self.state_size + 2))
        self._kernel(
            system, work, out, self._moves(readout.horizon), pool.arrays[STATE],
            Scorer.of(streams_of(pool), self._leads, readout), batch.packed(), told, trace, rooms,
        )  # fmt: skip
        return told, trace


def _moves_of(system: CompiledSystem, horizon: tuple[float, ...]) -> Array:
    """What the forecasts so far ahead need: F and Q `[H, 2, n, n]`."""
    times = np.array(horizon, np.float64)
    return system.transitions(times).reshape(len(times), 2, system.n, system.n)


def _places(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, slice]:
    """Where the parts lie in a state."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()]).tolist()
    return {name: slice(end - math.prod(shape), end) for (name, shape), end in zip(shapes.items(), ends, strict=True)}
