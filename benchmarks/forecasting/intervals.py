"""Intervals of recorded forecasts: conformal multipliers that follow each series, as the service answers them.

The functions are those of benchmarks/filters/adaptive_rows.py, and the order and the bookkeeping are those of
`FilterRuntime`. An observation is first held against the forecasts that were for it, then the next forecasts are made
with what it taught. So the interval of a row forecast `lead` rows before knows nothing that came after that row's
origin.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rfa.benchmarks.filters.adaptive_rows import (
    Leads,
    adaptive_fields,
    radii,
    read_tracks,
    score_step,
    score_waiting,
    wait_for,
    write_tracks,
)
from rfa.export.filter_calibration import LEVELS
from rfa.runtime.pool import StatePool

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
    leads, columns = Leads([float(lead) for lead in (first, *longer)]), np.arange(series)
    pool = StatePool(adaptive_fields(leads, 1, len(LEVELS)), series)
    found = {lead: np.full((rows, series, len(LEVELS)), np.nan) for lead in (first, *longer)}
    for row in range(max(0, start - max(longer, default=0)), rows):
        now, scored = np.full(series, float(row)), np.full((series, 1), row >= start)
        tracks = read_tracks(pool, columns, now, np.ones(series), leads)
        score_waiting(tracks, y[row][:, None], scored, leads, _RATES)
        scores = np.abs(y[row] - mean[first][row]) / deviation[first][row]
        widths = score_step(tracks.shift, multipliers[first], scores[:, None], scored, _RATES)
        found[first][row] = widths[:, 0] * deviation[first][row][:, None]
        for place, lead in enumerate(longer, start=1):
            due = row + lead
            if due >= rows:
                continue
            spread = radii(multipliers[lead][:, None], tracks.shift[:, place])
            found[lead][due] = spread[:, 0] * deviation[lead][due][:, None]
            ahead, radius = mean[lead][due][:, None, None], found[lead][due][:, None, None]
            horizon, times = np.array([float(lead)]), np.full((series, 1), float(due))
            wait_for(tracks, leads, columns, np.array([place]), horizon, times, ahead, radius)
        write_tracks(pool, tracks, slice(series))
    for width in found.values():
        width[:start] = np.nan
    return found


__all__ = ["adaptive_widths"]
