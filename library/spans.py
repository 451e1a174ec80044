"""Horizons of forecasts: rows, or spans of time such as "6h"."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, SupportsIndex

import numpy as np

from rfa.data.durations import SECONDS, duration
from rfa.data.horizon import MOST_AHEAD

Span = str | timedelta | np.timedelta64
# Rows, a span, or leads in units of the times.
Ahead = SupportsIndex | Span | Sequence[float | Span]
# Tolerance in steps, so that rounding of times loses no row.
SLACK: Final = 1e-6


def seconds_of(span: Span) -> float:
    """A span in seconds.

    Raises:
        ValueError: it is not a time above 0.
    """
    if isinstance(span, str):
        number, unit = duration(span) or (0.0, None)
        seconds = number * SECONDS[unit] if unit is not None else 0.0
    else:
        seconds = span.total_seconds() if isinstance(span, timedelta) else float(span / np.timedelta64(1, "s"))
    if not 0 < seconds < math.inf:
        raise ValueError(f"horizon must be a time above 0 such as '30min', '6h' or '1d', got {span!r}")
    return seconds


def as_written(horizon: SupportsIndex | Span) -> str:
    """Rows or a span, as text for the loader.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(horizon, str):
        return horizon
    if isinstance(horizon, Span):
        return f"{seconds_of(horizon)!r}s"
    try:
        return str(operator.index(horizon))
    except TypeError:
        raise ValueError(f"horizon must be rows such as 24, or a span such as '6h', got {horizon!r}") from None


def leads_of(horizon: Sequence[float | Span]) -> tuple[float, ...]:
    """Leads in units of the times; spans are in seconds.

    Raises:
        ValueError: one is invalid.
    """
    if isinstance(horizon, str) or not isinstance(horizon, Iterable):
        raise ValueError("horizon must be a list of leads in units of the times, or of spans such as '6h'")
    return tuple(seconds_of(lead) if isinstance(lead, Span) else float(lead) for lead in horizon)


def rows_ahead(horizon: SupportsIndex | Span, step: float) -> int:
    """The number of rows in a horizon, for rows `step` apart; a span is in seconds.

    Raises:
        ValueError: it is 0, or more than MOST_AHEAD.
    """
    if isinstance(horizon, Span):
        rows = math.floor(min(seconds_of(horizon) / step + SLACK, 2.0 * MOST_AHEAD))
        if not rows:
            raise ValueError(f"horizon {horizon!r} is shorter than the step from row to row, {step:g} s")
    else:
        rows = int(as_written(horizon))
    if not 1 <= rows <= MOST_AHEAD:
        raise ValueError(f"horizon must be 1 to {MOST_AHEAD} rows, got {rows if rows < 1 else 'more'}")
    return rows
