"""Beliefs of several streams about one state, made one: brought to a common time, and fused (`fusion.py`).

A belief is brought forward by its own filter, as by an observation that is missing. What a state holds beside mean and
covariance is no belief about the system and does not merge: it is the first state's (docs/STATE.md).
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

# Families whose state is a Gaussian in coordinates that all streams of the model share.
MERGED: Final = frozenset({"linear"})
# Why those of the others do not merge.
REASONS: Final = {
    "deep": "what its network remembers of a stream is no Gaussian",
}
# Parts of a state that speak of the mean it had: what a jump would have led to. After a merge none is suspected.
OF_THE_MEAN: Final = ("jump_offset", "jump_evidence")


@dataclass(frozen=True)
class Merged:
    """The merged belief: what is told of it, as of a step in which nothing was observed, and its state.

    Attributes:
        weights: of each state in an intersection.
    """

    step: FilterStep
    state: FilterState
    weights: list[float] | None


def check_merges(name: str, family: str) -> None:
    """Refuse a filter whose states are no Gaussians that could be merged.

    Raises:
        InvalidInput: `no_merge`.
    """
    if family not in MERGED:
        reason = REASONS.get(family, "its states are no Gaussians")
        raise InvalidInput(f"model {name!r} has no beliefs to merge: {reason}.", param="model", code="no_merge")


def merge(runtime: FilterRuntime, options: MergeOptions) -> Merged:
    """One belief from several.

    Raises:
        InvalidInput: naming the field.
    """
    t = _common_time(options)
    states = [_brought(runtime, f"states[{i}]", state, t) for i, state in enumerate(options.states)]
    posteriors = [_belief(runtime, state) for state in states]
    prior = None if options.prior is None else _belief(runtime, _brought(runtime, "prior", options.prior, t))
    weights = None
    try:
        if options.method == "precision":
            fused = fuse(posteriors, prior)
        else:
            weights = intersection_weights(posteriors)
            fused = intersect(posteriors, weights)
    except ValueError as error:  # a LinAlgError is one
        raise _not_merged(str(error)) from None
    first, count = states[0], max(state.count for state in options.states)
    state = replace(first, tensors=_with_belief(runtime, first, fused), time=t, count=count)
    return Merged(_told(runtime, state, options), state, weights)


def _common_time(options: MergeOptions) -> float:
    """The latest time of the states, or the later one that is asked for.

    Raises:
        InvalidInput: a state has taken no observation, or the time lies before one of them.
    """
    for i, state in enumerate(options.states):
        if not state.count:
            name = f"states[{i}]"
            raise InvalidInput(f"{name} has taken no observation yet.", param=name, code="nothing_observed")
    latest = max(state.time for state in options.states)
    t = latest if options.t is None else options.t
    if t < latest:
        raise InvalidInput(
            "t must not lie before the last time of a state: beliefs are brought forward, never back.",
            param="t",
            code="time_not_monotonic",
        )
    prior = options.prior
    if prior is not None and (not prior.count or prior.time > t):
        message = "prior must have a time, and one that is not after the states'."
        raise InvalidInput(message, param="prior", code="time_not_monotonic")
    return t


def _brought(runtime: FilterRuntime, name: str, state: FilterState, t: float) -> FilterState:
    """A state at time t; one that is there already is left as it is, to the bit.

    Raises:
        InvalidInput: it leaves the range of the filter's numbers on the way.
    """
    if state.time == t:
        return state
    pool = StatePool(runtime.state_fields, 1)
    seat = pool.acquire()
    runtime.put(pool, seat, state)
    if not len(_missing(runtime, pool, pool.rows([seat]), t, (), ())):
        raise out_of_range(name, runtime.name)
    return runtime.get(pool, seat, state.seed)


def _told(runtime: FilterRuntime, state: FilterState, options: MergeOptions) -> FilterStep:
    """What a filter that holds this state says of it, and forecasts; the state itself stays as it is.

    Raises:
        InvalidInput: it is beyond the range of the filter's numbers.
    """
    pool = StatePool(runtime.state_fields, 1)
    seat = pool.acquire()
    with np.errstate(over="ignore"):  # infinite, and told so
        runtime.put(pool, seat, state)
    steps = _missing(runtime, pool, pool.rows([seat]), state.time, options.levels, options.horizon)
    if not len(steps):
        raise out_of_range("states", runtime.name)
    (step,) = steps.replies()
    return step


def _missing(
    runtime: FilterRuntime, pool: StatePool, rows: np.ndarray, t: float, levels: Sequence[float],
    horizon: Sequence[float],
) -> Steps:  # fmt: skip
    """An observation at time t of which no component was seen; nothing where the numbers are not finite."""
    readout = runtime.readout(tuple(levels) or runtime.levels, tuple(horizon), 0)
    nothing = np.full((1, runtime.observation_size), np.nan)
    told, _ = runtime.step(pool, Batch(rows, np.array([t]), nothing, np.ones(1)), readout, traced=False)
    return Steps(readout, np.array([t]), told)[np.flatnonzero(told.is_good)]


def _belief(runtime: FilterRuntime, state: FilterState) -> Gaussian:
    parts = _compiled(runtime).parts(state.tensors)
    mean: np.ndarray = parts["mean"].astype(np.float64)
    return Gaussian(mean + _response(state), parts["covariance"].astype(np.float64))


def _compiled(runtime: FilterRuntime) -> CompiledSteps:
    return cast("CompiledSteps", runtime.steps)  # what merges is linear


def _response(state: FilterState) -> np.ndarray | float:
    """What inputs made of the state, which a filter keeps beside its mean."""
    return state.adaptive.get(RESPONSE, 0.0)


def _with_belief(runtime: FilterRuntime, state: FilterState, belief: Gaussian) -> dict[str, np.ndarray]:
    """The filter's part of a state with another mean and covariance; the state's response stays beside the mean, for
    the forecasts that wait are without it."""
    parts = _compiled(runtime).parts(state.tensors)
    changed = {"mean": belief.mean - _response(state), "covariance": belief.covariance}
    changed |= {name: np.zeros_like(parts[name]) for name in OF_THE_MEAN if name in parts}
    return _compiled(runtime).adopt({**parts, **changed})


def _not_merged(reason: str) -> InvalidInput:
    """Refuses what `rfa.runtime.filters.fusion` refused, by the names of the request's fields."""
    told = reason.replace("posteriors[", "states[").partition(";")[0]
    named = re.match(r"states\[\d\]|prior", told)
    code = "not_from_prior" if "less certain" in told else "not_merged"
    return InvalidInput(f"{told}.", param=named[0] if named else "states", code=code)
