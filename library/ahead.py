"""Forecasts from a state, without an observation."""

from __future__ import annotations

from typing import cast

from rfa.library.models import plain_errors
from rfa.service.engine.filter.model import Row
from rfa.service.engine.filter.steps import Forecasts
from rfa.service.runtime.filter import FilterRuntime
from rfa.service.runtime.filter_state import FilterState
from rfa.service.runtime.pool import StatePool


def forecasts_from(
    runtime: FilterRuntime, state: FilterState, levels: tuple[float, ...], leads: tuple[float, ...]
) -> Forecasts:
    """What is forecast at these leads after the last observation.

    A copy of the state is told that nothing was observed, no time later: no time passes, and nothing is learned.

    Raises:
        ValueError: a lead is none, or takes the model out of its numbers.
    """
    pool = StatePool(runtime.state_fields, 1)
    seat = pool.acquire()
    runtime.put(pool, seat, state)
    with plain_errors():
        readout = runtime.readout(levels, leads, 0)
    (stepped,) = runtime.advance(pool, [Row(seat, state.time, None, 1.0, readout, state.seed)])
    if stepped is None:
        raise ValueError(f"the horizon takes model {runtime.name!r} out of the range of its numbers: shorten it")
    return cast("Forecasts", stepped.step.forecast)
