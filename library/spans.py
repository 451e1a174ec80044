"""Convert forecast horizons, which are numbers of rows or durations such as "6h"."""

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
# A number of rows, a duration, or a list of horizons in units of the times.
Ahead = SupportsIndex | Span | Sequence[float | Span]
# Tolerance in steps, so that rounding of times does not lose a row.
SLACK: Final = 1e-6


def seconds_of(span: Span) -> float:
    """Convert a duration such as "6h" to seconds.

    Raises:
        ValueError: If `span` is not a positive duration.
    """
    if isinstance(span, str):
        number, unit = duration(span) or (0.0, None)
        seconds = number * SECONDS[unit] if unit is not None else 0.0
    else:
        seconds = span.total_seconds() if isinstance(span, timedelta) else float(span / np.timedelta64(1, "s"))
    if not 0 < seconds < math.inf:
        raise ValueError(f"horizon must be a positive duration such as '30min', '6h' or '1d', got {span!r}")
    return seconds


def as_written(horizon: SupportsIndex | Span) -> str:
    """Convert a number of rows or a duration to text, in the form that the loader expects.

    Raises:
        ValueError: If `horizon` is neither a number nor a duration.
    """
    if isinstance(horizon, str):
        return horizon
    if isinstance(horizon, Span):
        return f"{seconds_of(horizon)!r}s"
    try:
        return str(operator.index(horizon))
    except TypeError:
        raise ValueError(
            f"horizon must be a number of rows such as 24, or a duration such as '6h', got {horizon!r}"
        ) from None


def leads_of(horizon: Sequence[float | Span]) -> tuple[float, ...]:
    """Convert horizons to numbers in units of the times. Durations become seconds.

    Raises:
        ValueError: If `horizon` is not a list, or an entry is invalid.
    """
    if isinstance(horizon, str) or not isinstance(horizon, Iterable):
        raise ValueError("horizon must be a list of numbers in units of the times, or of durations such as '6h'")
    return tuple(seconds_of(lead) if isinstance(lead, Span) else float(lead) for lead in horizon)


def rows_ahead(horizon: SupportsIndex | Span, step: float) -> int:
    """Return the number of rows up to a horizon, if successive rows are `step` apart. For a horizon that is a duration,
    `step` is in seconds.

    Raises:
        ValueError: If the number is 0 or exceeds MOST_AHEAD.
    """
    if isinstance(horizon, Span):
        rows = math.floor(min(seconds_of(horizon) / step + SLACK, 2.0 * MOST_AHEAD))
        if not rows:
            raise ValueError(f"horizon {horizon!r} is shorter than the time step of the data, {step:g} s")
    else:
        rows = int(as_written(horizon))
    if not 1 <= rows <= MOST_AHEAD:
        raise ValueError(f"horizon must be 1 to {MOST_AHEAD} rows, got {as_written(horizon)}")
    return rows
