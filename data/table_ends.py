"""Find rows at the ends of a table that are not measurements, such as totals and notes below it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import has_time, take
from rfa.data.table import NO_TIME
from rfa.data.wide import has_digit

# Number of rows at each end that are examined, and maximum fraction of rows that may be left out.
MOST: Final = 20
MOST_SHARE: Final = 0.2


# The times of all rows are examined only in tables with up to this many rows.
MOST_ROWS: Final = 200_000


# A month or year, and a day.
PERIOD: Final = r"^\s*\d{4}([-/.]\d\d)?\s*$"
DAY: Final = r"^\s*\d{4}[-/.]\d\d[-/.]\d\d"


def untimed_rows(cells: Any) -> np.ndarray | None:
    """Return the rows that contain words instead of a time, such as `Sum of week 3`, or a month or year in a column of
    days. Return None if there are no such rows, or too many."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(cells.type) or len(cells) > MOST_ROWS:
        return None
    is_sum = pc.fill_null(pc.match_substring_regex(cells, f"(?i)^(?:{NO_TIME.pattern})$"), False).to_numpy()
    is_period = pc.fill_null(pc.match_substring_regex(cells, PERIOD), False)
    others = cells.filter(pc.invert(is_period))
    are_days = pc.any(is_period).as_py() and pc.all(pc.match_substring_regex(others, DAY), min_count=1).as_py()
    is_longer = is_period.to_numpy() if are_days else np.zeros(len(cells), bool)
    rows = np.flatnonzero(~has_digit(cells) | is_sum | is_longer)
    return rows if 0 < len(rows) <= MOST_SHARE * len(cells) else None


def timed_rows(cells: Any) -> slice:
    """Return the range of rows without the rows at both ends whose time is empty or contains no digit,
    such as "Total"."""
    rows = len(cells)

    def count(order: np.ndarray) -> int:
        texts = take(cells, np.sort(order)).to_pylist()
        texts = texts if order[0] == 0 else texts[::-1]
        timed = (k for k, text in enumerate(texts) if text is not None and has_time(str(text)))
        return next(timed, len(texts))

    most = min(MOST, rows // 2)
    if not most:
        return slice(0, rows)
    first, last = count(np.arange(most)), count(np.arange(rows - most, rows))
    return slice(first, rows - last) if 0 < first + last <= MOST_SHARE * rows else slice(0, rows)
