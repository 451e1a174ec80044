"""Choose the time column of a table by its name and by a sample of its cells."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import Any, Final

import numpy as np

from rfa.data.clock_numbers import (
    DATE_WORDS,
    EARLIEST_DAY,
    EARLIEST_UNIX,
    EPOCHS,
    LATEST_UNIX,
    TICKS,
    YEAR_WORDS,
    calendar_form,
    first_hour,
    is_hour_name,
    time_unit,
    words_of,
)  # fmt: skip
from rfa.data.durations import elapsed
from rfa.data.epochs import DAY, other_forms, to_seconds
from rfa.data.iso import INTERVAL, parse_iso
from rfa.data.table import MISSING, NO_TIME
from rfa.data.time_formats import PLAIN_TEXT, candidate_formats

CLOCK_NAMES: Final = (
    "time", "timestamp", "ts", "ds", "date", "datetime", "_time", "date_time", "time_stamp", "date/time",
    "timestamp_utc", "time_utc", "utc", "epoch", "unixtime", "unix_time", "datum", "zeit", "zeitstempel",
)  # fmt: skip
# Names of time columns that are preferred if several columns contain dates.
USUAL_DATES: Final = ("last_changed", "last_updated", "start", "start_time", "created_at")
# Words in the names of time columns that contain numbers.
UNIX_WORDS: Final = frozenset((
    "unix", "epoch", "time", "timestamp", "ts", "ms", "ns", "us", "utc", "stamp", "clock", "date", "datetime",
    "created", "updated", "at", "unixtime", "zeit", "temps", "tiempo", "hora", "tempo", "tijd", "start",
    "times", "timestamps", "dates",
))  # fmt: skip
ELAPSED_WORDS: Final = frozenset((
    "time", "elapsed", "zeit", "temps", "tiempo", "tempo", "tijd", "second", "seconds", "sec", "secs",
))  # fmt: skip
RELATIVE_WORDS: Final = frozenset(("relative", "elapsed", "rel", "since"))
# Names of columns with elapsed times, whose rows may be in another order.
OFFSET_NAMES: Final = ("offset", "elapsed")
# Minimum number of rows for a column of evenly spaced numbers to be the time column without a matching name.
FEWEST_EVEN: Final = 8
SAMPLED: Final = 200
MAY_BE_TIME: Final = r"(?<!\d)(1[89]|20)\d\d(?!\d)|\b\d{1,2}[:/]\d{2}\b"
# If a table has one or two columns with longer names, its first line is a line of text.
LONGEST_NAME: Final = 40
# Minimum fraction of the cells of a time column that must look like times.
MOSTLY: Final = 0.8
# Values or times instead of column names.
VALUE_NAME: Final = r"[+-]?\d[\d.,]*([eE][+-]?\d+)?(_\d+)?|\d{1,4}[-/.:]\d{1,2}([-/.:].*)?"
# Dates of days without separators, such as 20240131, are larger than this. Dates of months, such as 202401, are not.
COMPACT_LEAST: Final = 1_000_000
# Hours, minutes, seconds and their fraction without separators.
COMPACT_TIME: Final = r"([01]\d|2[0-3])[0-5]\d[0-5]\d\.\d{1,6}"
# Days and months without a year, and names of columns that contain them.
DAY_AND_MONTH: Final = r"(0?[1-9]|[12]\d|3[01])(0[1-9]|1[0-2])"
DATED_NAME: Final = r"(?i)(datum|date|fecha)$"
# Number of sampled cells that are parsed as dates.
PARSED: Final = 6


def clock_column(columns: dict[str, Any]) -> str | None:
    """Return the name of the time column, or None if there is no time column.

    The time column has a usual name, or it is the first column of dates, or otherwise a column of numeric times. If
    most of its times repeat, a column of elapsed times is preferred.
    """
    name = _usual_clock(columns)
    if name is None or not _repeats(columns[name]):
        return name
    others = (other for other in columns if other != name and time_unit(other) is not None)
    return next((other for other in others if _rises(columns[other])), name)


def _repeats(column: Any) -> bool:
    """Return whether most of the first cells repeat the cell above."""
    cells = column.slice(0, SAMPLED).to_pylist()
    return len(cells) >= FEWEST_EVEN and 2 * sum(one == other for one, other in itertools.pairwise(cells)) > len(cells)


def _rises(column: Any) -> bool:
    numbers = _all_numbers(column)
    return numbers is not None and bool((np.diff(numbers) > 0).all())


def _usual_clock(columns: dict[str, Any]) -> str | None:
    lower: dict[str, str] = {}
    for name in columns:
        lower.setdefault(name.strip().lower(), name)
    named = [lower[name] for name in CLOCK_NAMES if name in lower]
    named += ["t"] if "t" in columns else []  # T is a temperature
    dated = date_columns(columns)
    for name in named:
        if _is_number_or_date(columns[name]):
            return next((other for other in dated if _is_finer(columns[other], columns[name])), name)
    counted = (name for name, column in columns.items() if words_of(name) & {"utc"} and _is_unix_column(column))
    is_named = any(words_of(name) & {"utc", "gmt"} for name in dated)
    if dated and not is_named and (utc := next(counted, None)) is not None:
        return utc
    if dated:
        utc = next((name for name in dated if words_of(name) & {"utc", "gmt"}), dated[0])
        return next((lower[name] for name in USUAL_DATES if lower.get(name) in dated), utc)
    return next(iter(named), None) or _numeric_clock(columns) or _first_elapsed(columns) or _hour_column(columns)


def _hour_column(columns: dict[str, Any]) -> str | None:
    """Return the first column that is called hour and contains the hours of consecutive days, without a date. Return
    None if there is no such column."""
    for name, column in columns.items():
        numbers = _all_numbers(column) if is_hour_name(name) else None
        if numbers is not None and first_hour(numbers) is not None:
            return name
    return None


def _is_unix_column(column: Any) -> bool:
    numbers = numeric_sample(column)
    return numbers is not None and is_unix(numbers)


def _first_elapsed(columns: dict[str, Any]) -> str | None:
    """Return the first column if it contains elapsed times or times of day. Otherwise, return None."""
    import pyarrow as pa

    name = next(iter(columns), None)
    if name is None or len(columns) < 2 or not pa.types.is_string(columns[name].type):
        return None
    cells = sample(columns[name]).to_pylist()
    return name if len(cells) > 2 and all(elapsed(cell) is not None for cell in cells) else None


def date_columns(columns: dict[str, Any]) -> list[str]:
    """Return the columns that contain dates. Constant columns are returned only if there are no others."""
    found = [name for name, column in columns.items() if holds_dates(column)]
    return [name for name in found if not _is_constant(columns[name])] or found


def _is_finer(column: Any, days: Any) -> bool:
    """Return whether each cell of a text column consists of the date in the column `days`, in which dates repeat, and a
    time of day."""
    import pyarrow as pa

    if column is days or not (pa.types.is_string(column.type) and pa.types.is_string(days.type)):
        return False
    rows = np.unique(np.linspace(0, len(days) - 1, SAMPLED).astype(np.int64)) if len(days) else np.empty(0, int)
    pairs = list(zip(take(column, rows).to_pylist(), take(days, rows).to_pylist(), strict=True))
    if len({day for _, day in pairs}) == len(pairs):
        return False
    return all(day and time and len(time) > len(day) and time.strip().startswith(day.strip()) and ":" in time
               and ":" not in day for time, day in pairs)  # fmt: skip


def sample(column: Any) -> Any:
    """Return evenly spaced cells that are not missing. Text is stripped of surrounding spaces."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = np.unique(np.linspace(0, len(column) - 1, SAMPLED).astype(np.int64)) if len(column) else np.empty(0, int)
    cells = take(column, rows)
    if pa.types.is_string(cells.type):
        cells = pc.utf8_trim_whitespace(cells)
        cells = cells.filter(pc.invert(pc.is_in(pc.utf8_lower(cells), pa.array(MISSING))))
    return cells.drop_null()


def take(column: Any, rows: np.ndarray) -> Any:
    """Return the cells of the given rows, whose numbers are in ascending order. The method of Arrow would copy all
    chunks even for a few rows."""
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray) or column.num_chunks < 2:
        return column.take(pa.array(rows))
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    found = []
    for chunk, end in zip(column.chunks, ends.tolist(), strict=True):
        chosen = rows[(rows >= end - len(chunk)) & (rows < end)]
        if len(chosen):
            found.append(chunk.take(pa.array(chosen - (end - len(chunk)))))
    return pa.chunked_array(found, column.type)


def starts_with_number(column: Any) -> bool:
    """Return whether the first cell is a plain number. This is a fast way to exclude most columns."""
    return len(column) > 0 and re.fullmatch(r"-?\d+(\.\d+)?", column[0].as_py() or "") is not None


def holds_dates(column: Any) -> bool:
    """Return whether the sampled cells of a column contain dates with a year."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return True
    if not pa.types.is_string(column.type) or starts_with_number(column):
        return False
    sampled = sample(column).to_pylist()
    cells = [cell for cell in sampled if has_time(cell)]
    if len(cells) < MOSTLY * sum(not NO_TIME.fullmatch(cell) for cell in sampled):
        return False
    chosen = cells[:: max(1, len(cells) // PARSED)]
    return bool(chosen) and all(not cell.isdigit() and _is_date(cell) for cell in chosen)


def has_time(cell: str) -> bool:
    """Return whether a cell may contain a time, rather than a word such as "Total"."""
    return re.search(r"\d", cell) is not None and not NO_TIME.fullmatch(cell)


@lru_cache(maxsize=4096)  # several steps look for dates in the same columns
def _is_date(cell: str) -> bool:
    import pyarrow as pa

    for pattern, plain in PLAIN_TEXT:
        cell = re.sub(pattern.replace(r"\pL", r"[^\W\d_]"), plain, cell)
    cell = re.sub(INTERVAL, r"\1\2", cell)
    return re.search(r"\d", cell) is not None and (
        parse_iso(pa.chunked_array([[cell]])) is not None or bool(candidate_formats(cell))
    )


def numeric_sample(column: Any) -> np.ndarray | None:
    """Return the sampled cells as numbers, or None if a cell is not a finite number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    try:
        found = np.asarray(pc.cast(sample(column), pa.float64(), safe=False).to_numpy(), np.float64)
    except pa.ArrowInvalid:
        return None
    return found if len(found) and np.isfinite(found).all() else None


def refuse_unknown_times(columns: dict[str, Any]) -> None:
    """Check that no column looks like times, in a table for which no time column was found. Otherwise, the rows would
    be numbered instead.

    Raises:
        ValueError: If the name or the cells of a column look like times. The message names the options that help.
    """
    import pyarrow as pa

    line = " ".join(columns)
    is_line = len(columns) == 1 or (len(columns) == 2 and re.search(r"\d:\d\d:\d\d", line))
    if is_line and len(line) > LONGEST_NAME and " " in line:
        raise ValueError(
            f"the file is not a table, because lines such as {line[:60]!r} write their numbers in different ways; save "
            "the times and numbers as CSV"
        )
    others = [name for name, column in columns.items() if numeric_sample(column) is not None] or list(columns)[-1:]
    for name, column in columns.items():
        choose = f"choose value columns with --column {next((o for o in others if o != name), name)!r}"
        cells = sample(column).to_pylist() if pa.types.is_string(column.type) else []
        distinct = len({*cells}) if len(cells) > 2 else 0
        may_be = sum(bool(re.search(MAY_BE_TIME, cell)) for cell in cells) >= MOSTLY * len(cells)
        numbers = numeric_sample(column)
        forms = other_forms(numbers) if numbers is not None and not is_unix(numbers) else []
        is_day = re.search(DATED_NAME, name.strip()) is not None and _match_all(DAY_AND_MONTH, cells)
        forms = ["%d%m"] if is_day else ["%H%M%S.%f"] if _match_all(COMPACT_TIME, cells) else forms
        has_digits = numbers is None and all(re.search(r"\d\D+\d|\d{4}", cell) for cell in cells)
        if (distinct > len(cells) // 2 and may_be and not forms) or (
            distinct == len(cells) >= FEWEST_EVEN and has_digits
        ):
            unknown = next((cell for cell in cells if not _is_date(cell)), cells[0])
            raise ValueError(
                f"column {name!r}: {unknown!r} may be a time in an unknown format; specify --time {name!r} "
                f"and --time-format FORMAT, such as --time-format '%d.%m.%Y %H:%M', or {choose}"
            )
        is_offset = name.strip().lower() in OFFSET_NAMES and numbers is not None and len(set(numbers.tolist())) > 2
        if len(columns) > 1 and (_may_be_clock(column) or is_offset or is_day):
            given = " or ".join([f"--time {name!r}", *(f"--time-format {form!r}" for form in forms)])
            given = f"--time {name!r} --time-format {forms[0]!r}" if forms and "%" in forms[0] else given
            increases = "" if is_offset or is_day else "increases and "
            raise ValueError(f"column {name!r} {increases}may be the time; specify {given}, or {choose}")
    named = [name for name in columns if re.fullmatch(VALUE_NAME, name.strip())]
    if len(named) > 2 and 2 * len(named) >= len(columns):
        raise ValueError(
            f"the names of the columns are numbers or times, such as {named[0]!r}; if each row is a series, specify "
            f"--by {next(iter(columns))!r}; if the file has no header, choose value columns with --column "
            f"{named[0]!r}"
        )


def _match_all(pattern: str, cells: list[str]) -> bool:
    return len(cells) > 2 and all(re.fullmatch(pattern, cell) for cell in cells)


def _may_be_clock(column: Any) -> bool:
    """Return whether the numbers of a column strictly increase and are not row numbers."""
    numbers = numeric_sample(column)
    if numbers is None or len(numbers) < FEWEST_EVEN:
        return False
    steps = np.diff(numbers)
    return bool((steps > 0).all() and (numbers[0] not in (0, 1) or not (steps == 1).all()))


def _is_number_or_date(column: Any) -> bool:
    return not len(column) or numeric_sample(column) is not None or holds_dates(column)


def _is_constant(column: Any) -> bool:
    cells = sample(column)
    return len(column) > 1 and len(cells.unique()) < 2


def _numeric_clock(columns: dict[str, Any]) -> str | None:
    """Return the first column of years, compact dates, Excel days, units since 1970 or increasing elapsed times. If
    there is none, return the first column whose numbers increase in equal steps like times. Return None if there is no
    such column either."""
    for position, (name, column) in enumerate(columns.items()):
        numbers = numeric_sample(column)
        if numbers is None or (len(column) > 1 and np.ptp(numbers) == 0):
            continue
        words, rises = words_of(name), bool((np.diff(numbers) >= 0).all() or (np.diff(numbers) <= 0).all())
        is_named = name.strip().lower() in YEAR_WORDS or (bool(words & DATE_WORDS) and numbers.min() > COMPACT_LEAST)
        if calendar_form(numbers, name) is not None and (rises or position == 0 or is_named):
            return name
        if is_unix(numbers) and (words & UNIX_WORDS or (position == 0 and rises and len(numbers) > 2)):
            return name
        is_elapsed = bool(words & ELAPSED_WORDS) and (position == 0 or bool(words & RELATIVE_WORDS))
        is_elapsed = is_elapsed or time_unit(name) is not None
        if is_elapsed and len(numbers) > 2 and (np.diff(numbers) > 0).all():
            return name
    if len(columns) < 2:
        return None
    for position, (name, column) in enumerate(columns.items()):
        numbers = numeric_sample(column)
        if numbers is not None and ((position == 0 and _is_even(column)) or (is_unix(numbers) and _is_even(column))):
            return name
    return None


def epoch_column(columns: dict[str, Any], form: str) -> str | None:
    """Return the first column of increasing numbers that are dates between 1700 and 2040 in the format `form`, or None
    if there is no such column."""
    for name, column in columns.items():
        numbers = numeric_sample(column)
        if numbers is not None and len(numbers) > 1 and not is_unix(numbers) and (np.diff(numbers) > 0).all():
            ends = to_seconds(numbers[[0, -1]], form)
            if (
                ends[0] >= EARLIEST_DAY * DAY
                and ends[1] <= LATEST_UNIX
                and calendar_form(numbers, name) in (None, form)
            ):
                return name
    return None


def _is_even(column: Any) -> bool:
    """Return whether the numbers of a column increase in equal steps other than 1, like times or positions."""
    if (numbers := _all_numbers(column)) is None:
        return False
    steps = np.diff(numbers)
    return bool(steps[0] > 0 and steps[0] != 1 and np.allclose(steps, steps[0], rtol=1e-3, atol=0))


def _all_numbers(column: Any) -> np.ndarray | None:
    """Return all cells of a column of numbers, or None for other columns and for short columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(column) < FEWEST_EVEN or numeric_sample(column) is None:
        return None
    try:
        return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(), np.float64)
    except pa.ArrowInvalid:
        return None


def is_unix(numbers: np.ndarray) -> bool:
    """Return whether all numbers have the size of times since 1970 in one unit."""
    if any(bool(((numbers >= low) & (numbers <= high)).all()) for low, high, *_ in TICKS):
        return True
    scales = (1.0, *(per_second for _, per_second, _ in EPOCHS))
    return any(bool(((numbers >= EARLIEST_UNIX * k) & (numbers <= LATEST_UNIX * k)).all()) for k in scales)
