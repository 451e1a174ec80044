"""Compute forecasts from a state, after its last observation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.filters.state import FilterState
from rfa.runtime.outputs import ForecastPoint
from rfa.runtime.uncertainty.input import level_name
from rfa.runtime.uncertainty.interface import Ahead, FilterOptions, ReadoutOptions
from rfa.runtime.uncertainty.steps import Steps

if TYPE_CHECKING:
    from rfa.runtime.filters.filter import FilterRuntime

# Fraction of the furthest horizon near which a mixture also learns.
NEARLY: Final = 0.8
# Maximum number of forecasts per call.
FORECASTS_AT_ONCE: Final = 256


def forecasts_after(
    runtime: FilterRuntime, state: FilterState, levels: Sequence[float], leads: Sequence[float],
    readout: ReadoutOptions, covariates: np.ndarray | None,
) -> Ahead:  # fmt: skip
    """Return the forecasts at one or more horizons after a state.

    They equal the forecasts after one further observation, at the time of the state, whose values are missing.

    Args:
        runtime: Filter that computed the state.
        state: State of the stream.
        levels: Levels of the intervals, such as 0.9.
        leads: Horizons in the unit of the times.
        readout: Options of the reply.
        covariates: Values at the horizons of the columns whose future values are known, `[M, K]`. Missing values are
            NaN.

    Raises:
        InvalidInput: If a horizon is invalid, or exceeds the range of the model's numbers.
    """
    nothing = np.full((1, runtime.observation_size), np.nan)
    steps: list[Steps] = []
    for begin in range(0, len(leads), FORECASTS_AT_ONCE):
        part, inputs = slice(begin, begin + FORECASTS_AT_ONCE), None
        if covariates is not None:
            inputs = np.concatenate([np.full(covariates.shape[1], np.nan), covariates[part].ravel()])[None]
        options = FilterOptions(
            np.array([state.time]), nothing, np.ones(1), tuple(levels), tuple(leads[part]),
            seed=state.seed, state=state, range=readout.range, weights=readout.weights, inputs=inputs,
            utc_offsets=readout.utc_offsets,
        )  # fmt: skip
        steps += FilteredSequence.collect(runtime.work(options)).pieces
    return Ahead(
        state.time + np.array(leads),
        np.concatenate([step.outputs.moments[0] for step in steps]),
        np.concatenate([step.outputs.bands[0] for step in steps]),
        np.concatenate([step.outputs.weights[0] for step in steps]),
        steps[0].readout.experts,
    )


def points(found: Ahead, levels: Sequence[float]) -> list[ForecastPoint]:
    """Return the forecasts as a list with one `ForecastPoint` for each time."""
    names = [level_name(level) for level in levels]
    return [
        ForecastPoint(t, mean, median, std, dict(zip(names, bands, strict=True)))
        for t, (mean, std, median), bands in zip(
            found.times.tolist(), found.moments.tolist(), found.bands.tolist(), strict=True
        )
    ]


def followed(runtime: FilterRuntime, step: float, furthest: float) -> list[float]:
    """Return the horizons to forecast at each row of a recorded series, so that the intervals and weights up to
    `furthest` can adapt.

    They are `furthest` and the smaller horizons at which the model learns from its errors, without the one that is
    nearest to `furthest`. Intervals of distant horizons adapt to the errors of `furthest`, because it comes first. A
    mixture also has a horizon of an odd number of steps below `furthest`, which is often a multiple of the season, at
    which the last value is a good forecast by chance.

    Args:
        runtime: Filter that processes the series.
        step: Typical lag between rows.
        furthest: Largest horizon.
    """
    leads = runtime.learned_horizons * (step if runtime.has_own_steps else 1.0)
    nearest = int(np.argmin(np.abs(np.log(leads / furthest))))
    found = [furthest, *leads[:nearest].tolist()]
    odd = step * (2 * math.floor(NEARLY * furthest / step / 2) + 1)
    return [*found, odd] if runtime.experts and odd not in found else found
