"""Forecasts from a state, without an observation; for `import rfa` and for `rfa filter`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rfa.library.models import plain_errors
from rfa.service.engine.filter.model import FilterOptions
from rfa.service.engine.filter.steps import Steps
from rfa.service.runtime.filter import FilterRuntime
from rfa.service.runtime.filter_sequence import FilteredSequence
from rfa.service.runtime.filter_state import FilterState
from rfa.service.schemas.replies import ForecastPoint

# Forecasts that a step is asked for at a time.
TOGETHER: Final = 256


class Ahead(NamedTuple):
    """Forecasts: moments `[M, 2, P]`, mean and std; bands `[M, levels, P, 2]`; and the same as points."""

    moments: np.ndarray
    bands: np.ndarray
    points: list[ForecastPoint]


def forecasts_from(
    runtime: FilterRuntime, state: FilterState, levels: Sequence[float], leads: Sequence[float]
) -> Ahead:
    """What is forecast at these leads after the last observation of a state.

    A copy of it is told that nothing was observed, no time later: no time passes, and nothing is learned.

    Raises:
        ValueError: a lead is none, or takes the model out of its numbers.
    """
    nothing = np.full((1, runtime.observation_size), np.nan)
    steps: list[Steps] = []
    for begin in range(0, len(leads), TOGETHER):
        options = FilterOptions(
            np.array([state.time]), nothing, np.ones(1), tuple(levels), tuple(leads[begin : begin + TOGETHER]),
            seed=state.seed, state=state,
        )  # fmt: skip
        with plain_errors():
            steps += FilteredSequence.collect(runtime.work(options)).pieces
    return Ahead(
        np.concatenate([step.told.moments[0] for step in steps]),
        np.concatenate([step.told.bands[0] for step in steps]),
        [point for step in steps for point in step.replies()[0].forecast],
    )


def followed(runtime: FilterRuntime, step: float, furthest: float) -> list[float]:
    """The leads that a recorded series is to be forecast at, row by row, before it is forecast so far ahead: so its
    intervals have learned how wide they must be. Those that the model is calibrated at, and the furthest.

    Args:
        step: the usual time from row to row.
    """
    leads = runtime.readout((0.9,), (), 0).calibration.horizons * (step if runtime.has_own_steps else 1.0)
    nearest = int(np.argmin(np.abs(np.log(leads / furthest))))
    return [*leads[:nearest].tolist(), furthest]
