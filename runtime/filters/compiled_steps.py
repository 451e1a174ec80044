"""Filters with a compiled step: linear systems of any size, in float64.

One call processes many observations, either of live streams or of one recorded series. It reads states from the pool
and computes all outputs. The results of a stream do not depend on the other streams in a call. Compilation takes half a
minute, once per machine and version.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.compiling import disable_compilation, kernel_jit, source_inline_jit
from rfa.runtime.filters import (
    dense_numba,
    dense_numba_learned,
    filter_numba,
    linear_rows,
    robust_constants,
    transition_numba,
)
from rfa.runtime.filters import observed as observed_module
from rfa.runtime.filters import steps as filter_steps
from rfa.runtime.filters.dense_numba_learned import scratch_size
from rfa.runtime.filters.filter_numba import LinearSystem, forecast, learns_noise, load_sensor
from rfa.runtime.filters.linear_config import LinearFilterConfig, stationary_covariance
from rfa.runtime.filters.observed import observed
from rfa.runtime.filters.steps import SHORTEST_LAG, Batch, Traced, store_trace
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
    dense_numba, dense_numba_learned, filter_numba, filter_steps, linear_rows, robust_constants, observed_module,
    transition_numba, *scoring.SOURCES,
)  # fmt: skip


@source_inline_jit
def _filter_rows(observe, system, score, scorer, inputs, outputs, trace, buffers):
    """Filter the observations of a batch. After a rejected observation, the rest of its stream is rejected."""
    streams = scorer.streams
    moves, state, (slots, times, values, noise) = inputs
    work, out, posterior, after, moved = buffers
    n, horizon = out.predicted_mean.shape[0], len(scorer.spec.horizon)
    refused = -1
    for row in range(len(slots)):
        slot = slots[row]
        if slot == refused:
            outputs.is_good[row] = False
            continue
        lag = times[row] - streams.time[slot] if streams.counts[slot] > 0 else 0.0
        total = 0.0
        for k in range(len(after)):
            after[k] = state[slot, k]
        observe(system, work, after, values[row], lag if lag >= SHORTEST_LAG else 0.0, noise[row], out)
        for k in range(len(after)):
            total += after[k]
        for h in range(horizon):
            forecast(system, moves[h], after, moved, posterior.forecast_mean[h], posterior.forecast_covariance[h])
        observation = Observation(slot, times[row], values[row])
        if not scoring.score_observation(score, scorer, observation, posterior, np.isfinite(total), outputs, row):
            refused = slot
            continue
        for k in range(len(after)):
            state[slot, k] = after[k]
        if len(trace.state) > 0:
            store_trace(out, posterior, trace, row)
            for i in range(n):
                trace.mean[row, i] = after[i]
                for j in range(n):
                    trace.state_covariance[row, i, j] = after[n + i * n + j]
            copy1(after, trace.state[row])


# These are two functions, because numba caches by name, and the functions that a kernel calls must be global.


def _filter_capped(system, score, scorer, inputs, outputs, trace, buffers):
    load_sensor(system, buffers[0])
    _filter_rows(filter_numba.observe_capped, system, score, scorer, inputs, outputs, trace, buffers)


def _filter_learned(system, score, scorer, inputs, outputs, trace, buffers):
    load_sensor(system, buffers[0])
    _filter_rows(filter_numba.observe_learned, system, score, scorer, inputs, outputs, trace, buffers)


@functools.cache
def _kernel(function: Any) -> Any:
    return kernel_jit(*_MADE_OF)(function)


class CompiledSteps:
    """Processes observations of a linear filter. See `FilterSteps`.

    Args:
        config: Configuration of the filter.
        leads: Horizons of the forecasts whose intervals adapt.
        passes: Range of passes that requests may choose.
        kept: Number of sets of horizons whose F and Q are cached.

    Attributes:
        module: Module of the part of the kernel that compiles most slowly.
        layout: Mapping from names of the parts of the state to shapes.
    """

    runtime = "compiled"
    magic = b"RFAC\x0a"
    rows = 256

    def __init__(
        self, config: LinearFilterConfig, leads: Horizons, passes: PassesRange, kept: int = KEPT_MOVES
    ) -> None:
        self._leads = leads
        self._chooses = passes.are_chosen
        self._system = system = LinearSystem.of(config)
        learns = learns_noise(config)
        self._kernel = _kernel(_filter_learned if learns else _filter_capped)
        self._observe = filter_numba.observe_learned if learns else filter_numba.observe_capped
        self.module = dense_numba_learned if learns else filter_numba
        n, self.size, _ = system.sizes
        self.state_size = n
        self._scratch = scratch_size(system.sizes, learns=learns)
        shapes = {"mean": (n,), "covariance": (n, n), "jump_offset": (n,), "jump_evidence": (1,)}
        if learns:
            shapes["noise_counts"] = (len(robust_constants.PRIOR_COUNTS),)
        unused = () if system.rule[2] else ("jump_offset", "jump_evidence")
        self._places = _places(shapes)
        self.layout = {name: shape for name, shape in shapes.items() if name not in unused}
        self._numbers = self._places["noise_counts" if learns else "jump_evidence"].stop
        self.initial: Mapping[str, Array] = {STATE: self.joined(_prior(config))}
        self.fields: Mapping[str, StateField] = {STATE: StateField((self._numbers,), np.float64)}
        # The cache does not belong to a method, because it would refer to `self`, which only the garbage collector
        # could then free.
        self._moves = functools.lru_cache(kept)(functools.partial(_moves_of, system))

    @classmethod
    def of(cls, bundle: Bundle, leads: Horizons) -> Self:
        """Return the steps for the filter in a bundle."""
        return cls(LinearFilterConfig(**bundle.config), leads, PassesRange.of(bundle))

    def joined(self, parts: Mapping[str, Array]) -> Array:
        """Return the flat state that consists of `parts`. Parts that are missing are 0."""
        state = np.zeros(self._numbers)
        for name, part in parts.items():
            state[self._places[name]] = part.ravel()
        return state

    def adopt(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Return a state in the form in which the pool stores it, given its parts."""
        return {STATE: self.joined(tensors)}

    def begin(self) -> None:
        """Compile the part of the kernel that compiles most slowly."""
        work, value, nothing = np.zeros(self._scratch), np.zeros(self.size), self.initial[STATE].copy()
        self._observe(self._system, work, nothing, value, 0.0, 1.0, observed(self.size, self.state_size))

    def disable_compilation(self) -> None:
        disable_compilation(self._kernel)

    def parts(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Return the parts of a state that the pool stores. This is the inverse of `adopt`."""
        return {name: part[0] for name, part in self.split(tensors[STATE][None]).items()}

    def split(self, states: Array) -> dict[str, Array]:
        """Return a mapping from names to parts of states `[rows, S]`."""
        return {name: states[:, self._places[name]].reshape(-1, *shape) for name, shape in self.layout.items()}

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        rows, horizon, n = len(batch.slots), len(readout.horizon), self.state_size
        outputs = StepOutputs.allocate(rows, self.size, readout)
        trace = filter_steps.allocate_trace(rows if traced else 0, self.size, n, self._numbers, horizon)
        work = np.zeros(self._scratch)
        work[-1] = -1.0  # no lag
        system = self._system
        if self._chooses:
            inverse_nu, _, patience = system.rule
            system = system._replace(rule=(inverse_nu, readout.passes, patience))
        out = observed(self.size, n)
        posterior = filter_steps.allocate_posterior(out, horizon)
        scorer = Scorer.of(filter_steps.streams_of(pool), self._leads, readout)
        self._kernel(
            system, scoring.scoring_entry(scorer, posterior, outputs), scorer,
            (self._moves(readout.horizon), pool.arrays[STATE], batch.packed()), outputs, trace,
            (work, out, posterior, np.empty(self._numbers), np.empty(n * (n + 2))),
        )  # fmt: skip
        return outputs, trace


def _prior(config: LinearFilterConfig) -> dict[str, Array]:
    """Return the parts of a state before the first observation that are not zero."""
    mean = np.zeros(len(config.drift)) if config.initial_mean is None else np.asarray(config.initial_mean)
    given = config.initial_covariance
    prior = {"mean": mean, "covariance": stationary_covariance(config) if given is None else np.asarray(given)}
    return prior | ({"noise_counts": np.asarray(robust_constants.PRIOR_COUNTS)} if learns_noise(config) else {})


def _moves_of(system: LinearSystem, horizon: tuple[float, ...]) -> Array:
    """Return the transition matrix F and the process noise Q over each horizon, `[H, 2, n, n]`."""
    moves: Array = transition_numba.transitions(np.array(horizon, np.float64), system.modes)
    return moves


def _places(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, slice]:
    """Return the positions of the parts in a state."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()]).tolist()
    return {name: slice(end - math.prod(shape), end) for (name, shape), end in zip(shapes.items(), ends, strict=True)}
