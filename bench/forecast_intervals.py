"""Intervals of recorded forecasts: conformal multipliers that follow each series.

The functions are those of service/engine/adaptive.py. An observation is first held against the forecasts that were for
it, then the next forecasts are made with what it taught. So the interval of a row forecast `lead` rows before knows
nothing that came after that row's origin.

adaptive_widths     as the service answers: the order and the bookkeeping are those of `FilterRuntime`, which keeps two
                    forecasts of a longer lead at a time until their observation comes
all_scored_widths   what the same recursion gives where every forecast of a lead is held against its observation. The
                    answer to a change of v comes `lead` rows later, so its rate is at most 1 / (4 lead): the miss rate
                    falls by about 2 for a unit of v at 90 %, so a round of the loop undoes half of an error
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from export.filter_calibration import LEVELS
from service.engine.adaptive import (
    GAMMA,
    Tracks,
    adaptive_fields,
    follow,
    radii,
    score_step,
    score_waiting,
    wait_for,
)

Array = np.ndarray
_RATES = 1 - np.array(LEVELS)


def adaptive_widths(
    y: Array,
    mean: Mapping[int, Array],
    deviation: Mapping[int, Array],
    multipliers: Mapping[int, Array],
    start: int,
) -> dict[int, Array]:
    """Half widths at every level, `[N, S, levels]` by lead; NaN before row `start`.

    Args:
        y: `[N, S]`, the series, a row a time step; all of them observed.
        mean, deviation: `[N, S]` by lead, forecasts of each row from `lead` rows before; lead 1 is among them.
        multipliers: the calibration to start from, `[S, levels]` by lead.
        start: the first row that is learned from.
    """
    first, *longer = sorted(mean)
    rows, series = y.shape
    fields = adaptive_fields(1 + len(longer), 1, len(LEVELS))
    tracks = Tracks(*(np.zeros((series, *field.shape), field.dtype) for field in fields.values()))
    horizons, everyone = np.array(longer, np.float64), np.arange(series)
    found = {lead: np.full((rows, series, len(LEVELS)), np.nan) for lead in (first, *longer)}
    for row in range(max(0, start - max(longer, default=0)), rows):
        now, scored = np.full(series, float(row)), np.full((series, 1), row >= start)
        score_waiting(tracks, now, y[row][:, None], scored, horizons, _RATES)
        scores = np.abs(y[row] - mean[first][row]) / deviation[first][row]
        widths = score_step(tracks, multipliers[first], scores[:, None], scored, _RATES)
        found[first][row] = widths[:, 0] * deviation[first][row][:, None]
        for place, lead in enumerate(longer, start=1):
            due = row + lead
            if due >= rows:
                continue
            spread = radii(multipliers[lead][:, None], tracks.shift[:, place])
            found[lead][due] = spread[:, 0] * deviation[lead][due][:, None]
            ahead, radius = mean[lead][due][:, None], found[lead][due][:, None]
            wait_for(tracks, everyone, place, np.full(series, float(due)), ahead, radius)
    for width in found.values():
        width[:start] = np.nan
    return found


def all_scored_widths(y: Array, mean: Array, deviation: Array, multipliers: Array, start: int, lead: int) -> Array:
    """Half widths of the forecasts of one lead, `[N, S, levels]`; the arguments are those of `adaptive_widths`."""
    rows, series = y.shape
    share = min(1.0, 1 / (4 * lead * GAMMA))
    shift = np.zeros((series, len(LEVELS)))
    found = np.full((rows, series, len(LEVELS)), np.nan)
    for row in range(max(0, start - lead), rows):
        if row >= start:
            missed = np.abs(y[row] - mean[row])[:, None] > found[row]
            shift += share * (follow(shift, missed, _RATES) - shift)
        if row + lead < rows:
            found[row + lead] = radii(multipliers, shift) * deviation[row + lead][:, None]
    found[:start] = np.nan
    return found


__all__ = ["adaptive_widths", "all_scored_widths"]
