"""Merge the posteriors of several streams of one system. They are predicted to a common time and fused (`fusion.py`).

Each posterior is predicted by its own filter, as for a missing observation. The rest of the merged state is taken from
the first state (docs/STATE.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.driven_filter import RESPONSE
from rfa.runtime.filters.fusion import Gaussian, fuse, intersect, intersection_weights
from rfa.runtime.filters.state import FilterState
from rfa.runtime.filters.steps import Batch
from rfa.runtime.outputs import FilterStep
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.input import out_of_range
from rfa.runtime.uncertainty.interface import MergeOptions
from rfa.runtime.uncertainty.steps import Steps

if TYPE_CHECKING:
    from rfa.runtime.filters.compiled_steps import CompiledSteps
    from rfa.runtime.filters.filter import FilterRuntime

# Families whose state is a Gaussian, in coordinates that are the same for all streams of the model.
MERGEABLE: Final = frozenset({"linear"})
# Reasons why the states of other families cannot be merged.
REASONS: Final = {
    "deep": "the memory of its network is not Gaussian",
}
# Parts of a state that are relative to its mean. They are used to detect jumps, and a merge clears them.
JUMP_PARTS: Final = ("jump_offset", "jump_evidence")


@dataclass(frozen=True)
class Merged:
    """Result of merging several states.

    Attributes:
        step: Outputs of the merged posterior, with the fields of a step without an observation.
        state: The merged state.
        weights: Weight of each state in the covariance intersection. None for other methods.
    """

    step: FilterStep
    state: FilterState
    weights: list[float] | None


def check_merges(name: str, family: str) -> None:
    """Check that the states of a filter can be merged.

    Raises:
        InvalidInput: If they cannot be merged (code `no_merge`).
    """
    if family not in MERGEABLE:
        reason = REASONS.get(family, "its states are not Gaussian")
        raise InvalidInput(
            f"model {name!r} does not support merging, because {reason}.", param="model", code="no_merge"
        )


def merge(runtime: FilterRuntime, options: MergeOptions) -> Merged:
    """Merge the posteriors of several states, and return the merged state and its outputs.

    Args:
        runtime: Filter that computed the states.
        options: States, method and requested outputs.

    Raises:
        InvalidInput: If the states cannot be merged. The message names the field.
    """
    t = _common_time(options)
    states = [_predict(runtime, f"states[{i}]", state, t) for i, state in enumerate(options.states)]
    posteriors = [_posterior(runtime, state) for state in states]
    prior = None if options.prior is None else _posterior(runtime, _predict(runtime, "prior", options.prior, t))
    weights = None
    try:
        if options.method == "precision":
            fused = fuse(posteriors, prior)
        else:
            weights = intersection_weights(posteriors)
            fused = intersect(posteriors, weights)
    except ValueError as error:  # also a LinAlgError
        raise _invalid_input(str(error)) from None
    first, count = states[0], max(state.count for state in options.states)
    state = replace(first, tensors=_with_posterior(runtime, first, fused), time=t, count=count)
    return Merged(_step(runtime, state, options), state, weights)


def _common_time(options: MergeOptions) -> float:
    """Return the requested time, which must not be earlier than the time of any state. If no time is requested, return
    the latest time of the states."""
    for i, state in enumerate(options.states):
        if not state.count:
            name = f"states[{i}]"
            raise InvalidInput(f"{name} contains no observation yet.", param=name, code="nothing_observed")
    latest = max(state.time for state in options.states)
    t = latest if options.t is None else options.t
    if t < latest:
        raise InvalidInput(
            f"t must not be earlier than the last time of any state, {latest:g}, because states can only be predicted "
            f"forward, got {t:g}.",
            param="t",
            code="time_not_monotonic",
        )
    prior = options.prior
    if prior is not None and (not prior.count or prior.time > t):
        message = f"prior must contain an observation, and its time must not be after the time of the merge, {t:g}."
        raise InvalidInput(message, param="prior", code="time_not_monotonic")
    return t


def _predict(runtime: FilterRuntime, name: str, state: FilterState, t: float) -> FilterState:
    """Predict a state to time t. A state at that time is returned unchanged."""
    if state.time == t:
        return state
    pool = StatePool(runtime.state_fields, 1)
    slot = pool.acquire()
    runtime.put(pool, slot, state)
    if not len(_missing(runtime, pool, pool.rows([slot]), t, (), ())):
        raise out_of_range(name, runtime.name)
    return runtime.get(pool, slot, state.seed)


def _step(runtime: FilterRuntime, state: FilterState, options: MergeOptions) -> FilterStep:
    """Return the outputs of a step without an observation at the time of the state, with forecasts."""
    pool = StatePool(runtime.state_fields, 1)
    slot = pool.acquire()
    with np.errstate(over="ignore"):  # checked below
        runtime.put(pool, slot, state)
    steps = _missing(runtime, pool, pool.rows([slot]), state.time, options.levels, options.horizon)
    if not len(steps):
        raise out_of_range("states", runtime.name)
    (step,) = steps.replies()
    return step


def _missing(
    runtime: FilterRuntime, pool: StatePool, rows: np.ndarray, t: float, levels: Sequence[float],
    horizon: Sequence[float],
) -> Steps:  # fmt: skip
    """Return the outputs of a step without an observation at time t. They are empty if a result is not finite."""
    readout = runtime.readout(tuple(levels) or runtime.levels, tuple(horizon), 0)
    nothing = np.full((1, runtime.observation_size), np.nan)
    out, _ = runtime.step(pool, Batch(rows, np.array([t]), nothing, np.ones(1)), readout, traced=False)
    return Steps(readout, np.array([t]), out)[np.flatnonzero(out.is_good)]


def _posterior(runtime: FilterRuntime, state: FilterState) -> Gaussian:
    parts = _compiled(runtime).parts(state.tensors)
    mean: np.ndarray = parts["mean"].astype(np.float64)
    return Gaussian(mean + _response(state), parts["covariance"].astype(np.float64))


def _compiled(runtime: FilterRuntime) -> CompiledSteps:
    return cast("CompiledSteps", runtime.steps)  # only linear filters merge


def _response(state: FilterState) -> np.ndarray | float:
    """Return the response of a state to its inputs, which a filter stores separately from the mean."""
    return state.adaptive.get(RESPONSE, 0.0)


def _with_posterior(runtime: FilterRuntime, state: FilterState, posterior: Gaussian) -> dict[str, np.ndarray]:
    """Return the filter's part of a state with its mean and covariance replaced.

    The response remains separate from the mean, because pending forecasts exclude it.
    """
    parts = _compiled(runtime).parts(state.tensors)
    changed = {"mean": posterior.mean - _response(state), "covariance": posterior.covariance}
    changed |= {name: np.zeros_like(parts[name]) for name in JUMP_PARTS if name in parts}
    return _compiled(runtime).adopt({**parts, **changed})


def _invalid_input(reason: str) -> InvalidInput:
    """Convert an error of `fusion.py`, so that it names the fields of the request."""
    message = reason.replace("posteriors[", "states[").partition(";")[0]
    field = re.match(r"states\[\d\]|prior", message)
    code = "not_from_prior" if "less certain" in message else "not_merged"
    return InvalidInput(f"{message}.", param=field[0] if field else "states", code=code)
