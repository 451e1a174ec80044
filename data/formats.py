"""How times are written as text: formats as `datetime.strptime` has them, read fast, guessed, and written again."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np

DATE_FORMATS: Final = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d", "%Y-%m", "%Y/%m", "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y",
    "%d-%m-%Y", "%m-%d-%Y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%d %b %Y", "%d-%b-%Y", "%d-%b-%y",
    "%b %d, %Y", "%b %d %Y", "%d %B %Y", "%B %d, %Y", "%d/%b/%Y", "%a, %d %b %Y", "%a %b %d %Y",
)  # fmt: skip
TIME_FORMATS: Final = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p", "%H%M", "%H%M%S")
JOINTS: Final = (" ", "T", ":", ", ")
ZONES: Final = ("", "%z", " %z")
# What a directive of a date may look like.
LOOKS: Final = {
    "Y": r"\d{4}", "y": r"\d{2}", "m": r"\d{1,2}", "d": r"\d{1,2}", "j": r"\d{1,3}", "b": r"\pL+", "B": r"\pL+",
    "a": r"\pL+", "A": r"\pL+",
}  # fmt: skip
OF_DAY: Final = re.compile("%[HIMSpfzZ]")
MIDNIGHT: Final = datetime(1900, 1, 1)  # what strptime takes where a format has no date
MICROSECOND: Final = timedelta(microseconds=1)


def formats_of(cell: str) -> list[str]:
    """The formats that a cell has: those of its date, and where it goes on, of its time of day."""
    found = list(_fitting(cell, DATE_FORMATS))
    for joint in JOINTS:
        for at in (match.start() for match in re.finditer(joint, cell)):
            times = [f"{time}{zone}" for time, zone in itertools.product(TIME_FORMATS, ZONES)]
            for date in _fitting(cell[:at], DATE_FORMATS):
                found += [f"{date}{joint}{time}" for time in _fitting(cell[at + len(joint) :], times)]
    return list(dict.fromkeys(found))


def _fitting(text: str, formats: Iterable[str]) -> Iterator[str]:
    for made in formats:
        try:
            year = datetime.strptime(text, made).year
        except ValueError:
            continue
        if 1900 <= year < 2200:  # a time of day alone is of 1900
            yield made


def parsed(cells: Any, time_format: str, name: str, rows: np.ndarray) -> Any:
    """Timestamps of text in one format, in UTC where it names a zone.

    Args:
        cells: chunked text.
        rows: what the file calls each row.

    Raises:
        ValueError: a cell is not in that format. The message has its row.
    """
    found = _parsed_in_parts(cells, time_format)
    return _parsed_whole(cells, time_format, name, rows) if found is None else found


def _parsed_in_parts(cells: Any, time_format: str) -> Any:
    """Dates come again and again, and so do times of day: each is read once. None: the format has no date before its
    time, or a cell is not in it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at = OF_DAY.search(time_format)
    look = None if at is None else _look(time_format[: at.start()])
    if at is None or look is None:
        return None
    parts = pc.extract_regex(cells, f"^(?P<date>{look})(?P<time>.*)$").combine_chunks()
    if parts.null_count:
        return None
    dates, times = (parts.field(name).dictionary_encode() for name in ("date", "time"))
    try:
        days = [datetime.strptime(text, time_format[: at.start()]) - MIDNIGHT for text in dates.dictionary.to_pylist()]
        moments = [datetime.strptime(text, time_format[at.start() :]) for text in times.dictionary.to_pylist()]
    except ValueError:
        return None
    # A moment of a zone, less its offset, is of UTC.
    in_day = [moment.replace(tzinfo=None) - MIDNIGHT - (moment.utcoffset() or timedelta()) for moment in moments]
    counts = _counts(days)[dates.indices.to_numpy()] + _counts(in_day)[times.indices.to_numpy()]
    is_zoned = moments[0].tzinfo is not None
    origin = (MIDNIGHT - datetime(1970, 1, 1)) // MICROSECOND
    return pa.array(counts + origin).cast(pa.timestamp("us", "UTC" if is_zoned else None))


def _look(date_format: str) -> str | None:
    """An expression for text in a format of dates; None: it has a directive that is not known here."""
    found = ""
    for literal, directive in re.findall(r"([^%\s]+|\s+)|%(.)", date_format):
        if directive and directive not in LOOKS:
            return None
        found += LOOKS[directive] if directive else r"\s+" if literal.isspace() else re.escape(literal)
    return found or None


def _counts(spans: list[timedelta]) -> np.ndarray:
    return np.array([span // MICROSECOND for span in spans], np.int64)


def _parsed_whole(cells: Any, time_format: str, name: str, rows: np.ndarray) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = cells.combine_chunks().dictionary_encode()
    found = []
    for k, cell in enumerate(encoded.dictionary.to_pylist()):
        try:
            found.append(datetime.strptime(cell, time_format))
        except ValueError:
            row = rows[pc.index(encoded.indices, pa.scalar(k, encoded.indices.type)).as_py()]
            raise ValueError(f"row {row}, column {name!r}: {cell!r} is no time as {time_format}") from None
    is_zoned = found[0].tzinfo is not None
    return pa.array(found, pa.timestamp("us", "UTC" if is_zoned else None)).take(encoded.indices)
