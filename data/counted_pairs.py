"""Join two columns of numbers to times. The columns contain modified Julian days or GPS weeks, and the seconds since
the start of the day or week."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import numeric_sample
from rfa.data.clock_numbers import words_of
from rfa.data.epochs import DAY, MODIFIED, origin_and_unit

JULIAN_DAY, GPS_WEEK, SECOND = "mjd", "gps_week", "second"
# For each kind of unit: the origin in seconds since 1970, the unit in seconds, the range of numbers, from 1996 to 2037,
# and words in the names of its columns.
KINDS: Final[dict[str, tuple[float, float, int, int, frozenset[str]]]] = {
    JULIAN_DAY: ((origin_and_unit(MODIFIED) or (0.0,))[0], DAY, 50_083, 65_000, frozenset(("mjd",))),
    GPS_WEEK: (315_964_800.0, 7 * DAY, 834, 3_000, frozenset((
        "week", "weeks", "gps", "gpst", "gpsweek", "wn", "tow", "sow", "itow",
    ))),
}  # fmt: skip
# Words in the name of the column of seconds.
SECOND_WORDS: Final = frozenset(("sec", "secs", "second", "seconds", "sod", "tow", "sow", "itow", "gpst"))
# Names of the first columns of a file without a header.
UNNAMED: Final = ("column 1", "column 2")
FEWEST_ROWS: Final = 3


def find_pair(columns: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the first two adjacent columns that together contain times and increase together, by the kind of number.
    The columns are recognised by their names. In a file without a header, the first columns may be days and seconds.
    Return None if there are no such columns."""
    for first, second in itertools.pairwise(columns):
        words = words_of(first.replace("_", " ")) | words_of(second.replace("_", " "))
        for kind, (_, unit, least, most, names) in KINDS.items():
            is_unnamed = kind == JULIAN_DAY and (first, second) == UNNAMED
            is_named = bool(words & names and words_of(second.replace("_", " ")) & SECOND_WORDS)
            if (is_unnamed or is_named) and _advance(columns[first], columns[second], unit, least, most):
                return {kind: first, SECOND: second}
    return None


def _advance(first: Any, second: Any, unit: float, least: int, most: int) -> bool:
    units, seconds = numeric_sample(first), numeric_sample(second)
    if units is None or seconds is None or not len(units) == len(seconds) >= FEWEST_ROWS:
        return False
    is_clock = (units % 1 == 0) & (units >= least) & (units <= most) & (seconds >= 0) & (seconds < unit)
    is_counter = bool((np.diff(seconds) == 1).all()) and not np.ptp(units) and seconds[0] in (0, 1)
    return bool(is_clock.all() and (np.diff(units * unit + seconds) > 0).all() and not is_counter)


def join_pair(kind: str, first: Any, second: Any) -> Any:
    """Return the times as ISO text. It is null if a cell is missing or not a number."""
    import pyarrow as pa

    origin, unit, *_ = KINDS[kind]
    whole, part = _numbers(first), _numbers(second)
    is_there = np.isfinite(whole) & np.isfinite(part) & (np.abs(whole) < 10 * KINDS[kind][3])
    moments = np.where(is_there, (origin + unit * whole) * 1e6, 0).astype(np.int64)
    moments += np.rint(1e6 * np.where(is_there, part, 0)).astype(np.int64)
    texts = np.datetime_as_string(moments.astype("datetime64[us]"), unit="us")
    return pa.chunked_array(
        [pa.array([text if there else None for text, there in zip(texts.tolist(), is_there, strict=True)])]
    )


def split_pair(kind: str, texts: Sequence[str], first: Any, second: Any) -> tuple[Any, Any]:
    """Split times into two columns, with the data types and decimal places of the original columns.

    This is the inverse of `join_pair`.
    """
    import pyarrow as pa

    origin, unit, *_ = KINDS[kind]
    moments = np.array([text.replace(" ", "T") for text in texts], "datetime64[us]").astype(np.int64)
    whole, part = np.divmod(moments - round(1e6 * origin), round(1e6 * unit))
    if not pa.types.is_string(second.type):
        return pa.array(whole).cast(first.type), pa.array(part / 1e6).cast(second.type, safe=False)
    digits = len(str(second[0]).strip().partition(".")[2])
    return pa.array(list(map(str, whole.tolist()))), pa.array([f"{each / 1e6:.{digits}f}" for each in part.tolist()])


def _numbers(column: Any) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column
    cells = (
        pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
        if pa.types.is_string(column.type)
        else cells
    )
    try:
        numbers = pc.cast(cells, pa.float64())
    except pa.ArrowInvalid as error:
        raise ValueError(f"a part of a time is not a number: {error}; specify the time column with --time") from None
    return np.asarray(numbers.to_numpy(), np.float64)
