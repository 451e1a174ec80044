"""Convert observations and times to the types that the runtime uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION


def seconds_since_1970(t: Any) -> float:
    """Convert a date to seconds since 1970, and return a number unchanged. Dates without a time zone are in UTC.

    Raises:
        ValueError: If `t` is neither a number nor a date.
    """
    if isinstance(t, datetime):
        return (t if t.tzinfo is not None else t.replace(tzinfo=UTC)).timestamp()
    try:
        if isinstance(t, np.datetime64):
            return float((t - np.datetime64(0, "s")) / np.timedelta64(1, "s"))
        return float(t)
    except (TypeError, ValueError):
        raise ValueError(f"t must be a number or a date, got {t!r}") from None


def numbers(y: Any, size: int) -> list[float | None] | None:
    """Return an observation of `size` columns as a list of numbers, with None for missing values. Return None if `y` is
    None.

    Raises:
        ValueError: If `y` has the wrong number of columns, or a value is not finite or too large.
    """
    if y is None:
        return None
    values = y.tolist() if hasattr(y, "tolist") else y
    if isinstance(values, int | float):
        values = [values]
    try:
        if isinstance(values, str | bytes):
            raise TypeError
        if len(values) != size:
            raise ValueError(f"y has {len(values)} values, but each observation of the stream has {size}")
        found = [None if value is None or value != value else float(value) for value in values]  # noqa: PLR0124
    except TypeError:
        raise ValueError(f"y must be a number or {size} numbers, got {y!r}") from None
    for a, value in enumerate(found):
        if value is not None and not -LARGEST_OBSERVATION <= value <= LARGEST_OBSERVATION:
            raise ValueError(
                f"y[{a}] must be finite and at most {LARGEST_OBSERVATION:g} in absolute value, got {value!r}"
            )
    return found


def known_values(known: Mapping[str, Any], columns: Sequence[str], leads: int) -> np.ndarray | None:
    """Return the values of the known columns at `leads` horizons, `[leads, K]`. Unknown values are NaN. Return None if
    there are no known columns.

    Raises:
        ValueError: If `known` contains another column, or if a column contains too many numbers or a number that is too
            large.
    """
    if not columns and not known:
        return None
    found = np.full((leads, len(columns)), np.nan)
    for name, values in known.items():
        if name not in columns:
            shown = f"its known columns are {', '.join(columns)}" if columns else "the stream has no known columns"
            raise ValueError(f"known contains {name!r}, which is not a known column of this stream; {shown}")
        column = np.array(values, np.float64).reshape(-1)
        if len(column) > leads or (np.abs(column) > LARGEST_OBSERVATION).any():
            raise ValueError(
                f"known[{name!r}] must contain up to {leads} numbers of at most {LARGEST_OBSERVATION:g} in absolute "
                "value"
            )
        found[: len(column), columns.index(name)] = column
    return found
