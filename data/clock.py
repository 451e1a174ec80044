"""Read the times of a column as seconds since 1970 UTC.

Times without a time zone are in UTC unless the caller names a time zone; the time zone of the machine is never used.
The order of the rows resolves the hour that repeats in autumn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from rfa.data.clock_choice import take
from rfa.data.clock_numbers import (
    DAY_FIRST,
    MONTH_FIRST,
    PER_TICK,
    calendar_form,
    check_finite,
    first_hour,
    is_hour_name,
    time_unit,
    unix_seconds,
)
from rfa.data.durations import elapsed
from rfa.data.epochs import DAY, origin_and_unit, parse_form, to_seconds
from rfa.data.iso import INTERVAL, ISO, cast_iso, parse_iso
from rfa.data.local_time import stamp_counts, stamp_seconds, stamps_to_utc, utc_seconds
from rfa.data.month_names import PERSIAN
from rfa.data.time_formats import PLAIN_TEXT, candidate_formats, parse
from rfa.data.units import TIMES

# Dates without separators.
COMPACT: Final = r"^(19|20)\d{6}$"
# The name of a time zone after its offset, as JavaScript writes it.
ZONE_NAME: Final = r" \([^()+-][^()]*\)$"
# Times without words that are rewritten: with a colon before milliseconds, the mark of a footnote, or an offset but no
# date.
MARKED: Final = r":\d\d:\d{3}$|\*$|^\d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d:\d\d$"
# Format of elapsed times as hours, minutes and seconds.
CLOCK_FACE: Final = "hours:minutes:seconds"
# Formats of hours of consecutive days without a date, counted from 0 and from 1.
HOURS_OF_DAY: Final = ("hours from 0", "hours from 1")
FACE: Final = r"\d+:\d\d(:\d\d(\.\d+)?)?"
# Number of cells that are searched for text that must be rewritten.
MOST_ALL: Final = 10_000
# Midnight that is written as 24:00 of the day before.
END_OF_DAY: Final = r"^(.*\d)[ T]24([:.]?(?:00)?)([:.]?00)?$"
# Number of cells on which formats are tested before they are tried on all cells.
SAMPLED: Final = 60
# Number of sampled cells from which candidate formats are derived. There are several, because a month may have the same
# name in several languages.
TRIED: Final = 12


@dataclass(frozen=True)
class Clock:
    """Times of the rows of a table.

    Attributes:
        stamps: `[N]` seconds since 1970, plain numbers, or Arrow timestamps without a time zone that are local to
            `zone`.
        note: Description of how the column was read.
        is_dated: Whether times are dates rather than plain numbers.
        zone: Time zone of the timestamps. None for numbers.
        form: Format of the times: a strptime format, ISO, or units per second. None for Arrow's date types.
    """

    stamps: Any
    note: str
    is_dated: bool = True
    zone: str | None = None
    form: str | float | None = None

    def seconds(self, rows: slice) -> np.ndarray:
        """Return the times of one series, whose rows are contiguous, in seconds or as plain numbers."""
        if self.zone is None:
            return np.asarray(self.stamps[rows], np.float64)
        return stamps_to_utc(self.stamps[rows], self.zone)


class AmbiguousDates(ValueError):
    """Raised when dates match several formats. The attribute `formats` contains them."""

    def __init__(self, name: str, cell: str, formats: list[str]) -> None:
        options = " or ".join(f"--time-format={each!r}" for each in formats)
        super().__init__(f"column {name!r}: {cell!r} matches several time formats; specify {options}")
        self.formats = formats


def get_zone(name: str) -> tzinfo:
    """Return a time zone by name. UTC does not need a time zone database.

    Raises:
        ValueError: If the name is unknown.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, IsADirectoryError):
        raise ValueError(f"unknown time zone {name!r}; use a name such as Europe/Berlin or UTC") from None


def read_clock(
    column: Any, name: str, *, zone: str, time_format: str | None, rows: np.ndarray, begins: np.ndarray | None = None
) -> Clock:
    """Return the times of a column of numbers, text, or dates in Arrow's types.

    Args:
        column: The column.
        name: Name of the column, for messages.
        zone: Time zone of times without a time zone.
        time_format: Format of the times. If None, it is detected.
        rows: Row numbers in the file, for messages.
        begins: Positions where another series begins. Its times may be before those of the previous series.

    Raises:
        ValueError: If a cell is empty or not a time, day and month are ambiguous, or the time zone is unknown.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    get_zone(zone)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        _check_no_missing(column, name, rows)
        return _from_timestamps(
            column if pa.types.is_timestamp(column.type) else pc.cast(column, pa.timestamp("s")), "", zone
        )
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        _check_no_missing(column, name, rows)
        return _numbers(column, name, rows, zone, time_format)
    if not pa.types.is_string(column.type):
        raise ValueError(
            f"column {name!r} has type {column.type}, which cannot contain times; specify another column with --time"
        )
    is_iso = time_format is None and not (len(column) and PERSIAN.match((column[0].as_py() or "").strip()))
    if is_iso and (stamps := cast_iso(column)) is not None and not stamps.null_count:
        return replace(_from_timestamps(stamps, "ISO ", zone), form=ISO)
    cells = _plain_text(column)
    is_empty = pc.equal(cells, "")
    if cells.null_count or pc.any(is_empty).as_py():
        _check_no_missing(pc.if_else(is_empty, pa.scalar(None, pa.string()), cells), name, rows)
    if (plain := _without_ends(cells, time_format)) is not None:
        starts, later, note = plain
        found = read_clock(starts, name, zone=zone, time_format=time_format, rows=rows, begins=begins)
        if later is not None:
            found = replace(found, stamps=found.seconds(slice(None)) + later, zone=None)
        return replace(found, note=f"{found.note}, {note}")
    begins = np.array([], int) if begins is None else begins
    return _text_clock(cells, name, zone, rows, begins, time_format=time_format, is_iso=is_iso)


def _without_ends(cells: Any, time_format: str | None) -> tuple[Any, np.ndarray | None, str] | None:
    """Replace times such as 24:00 by midnight, or intervals by their start times. Return the cells, the seconds to add
    to each time, and a note. Return None for text that contains neither."""
    import pyarrow.compute as pc

    if (
        any(pc.any(pc.match_substring(cells, end)).as_py() for end in (" 24", "T24"))
        and pc.any(is_end := pc.match_substring_regex(cells, END_OF_DAY)).as_py()
    ):
        starts = pc.replace_substring_regex(cells, END_OF_DAY, r"\1 00\2\3")
        return starts, DAY * np.asarray(is_end.to_numpy(), np.float64), "24:00 is read as the end of the day"
    if time_format is None and pc.match_substring_regex(cells[0], INTERVAL).as_py():
        return pc.replace_substring_regex(cells, INTERVAL, r"\1\2"), None, "the start of each interval is read"
    return None


def _text_clock(
    cells: Any, name: str, zone: str, rows: np.ndarray, begins: np.ndarray, *, time_format: str | None, is_iso: bool
) -> Clock:
    """Read the times of a text column without empty cells."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if time_format is None and all(
        pc.all(pc.match_substring_regex(part, COMPACT)).as_py() for part in (cells.slice(0, SAMPLED), cells)
    ):
        time_format = "%Y%m%d"
    if time_format is not None and parse_form(time_format) is None:
        return _with_format(parse(cells, time_format, name, rows), time_format, zone)
    for kind in (pa.int64(), pa.float64()):
        try:
            return _numbers(pc.cast(cells, kind), name, rows, zone, time_format)
        except pa.ArrowInvalid:
            pass
    if time_format is not None:
        raise ValueError(f"column {name!r}: --time-format {time_format!r} requires numbers, got {cells[0].as_py()!r}")
    if (since := _elapsed(cells, name, rows, begins)) is not None:
        return since
    if is_iso and (stamps := parse_iso(cells)) is not None:
        return replace(_from_timestamps(stamps, "ISO ", zone), form=ISO)
    return _guess_format(cells, name, zone, rows, begins)


def _plain_text(column: Any) -> Any:
    """Return the cells without surrounding spaces and names of time zones, and with the English spelling
    of am and pm."""
    import pyarrow.compute as pc

    cells = pc.utf8_trim_whitespace(column)
    if not _may_have_words(column) and not (len(cells) and re.search(MARKED, cells[0].as_py() or "")):
        return cells
    part = cells if len(cells) <= MOST_ALL else take(cells, np.linspace(0, len(cells) - 1, MOST_ALL).astype(np.int64))
    for pattern, plain in ((ZONE_NAME, ""), *PLAIN_TEXT):
        if pc.any(pc.match_substring_regex(part, pattern)).as_py():
            cells = pc.replace_substring_regex(cells, pattern, plain)
    return cells


def _may_have_words(column: Any) -> bool:
    """Return whether a cell of the column may contain a letter or a bracket. This check is faster than regular
    expressions."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    texts = (np.frombuffer(chunk.buffers()[2] or b"", np.uint8) for chunk in chunks)
    return any(bool(((text >= ord("A")) | (text == ord("("))).any()) for text in texts)


def _from_timestamps(stamps: Any, kind: str, zone: str) -> Clock:
    """Return the times of Arrow timestamps, which have a time zone or are local to `zone`."""
    if stamps.type.tz is not None:
        return Clock(stamp_seconds(stamps), f"{kind}dates")
    note = f"{kind}dates, taken as {zone}"
    return Clock(stamp_seconds(stamps), note) if zone == "UTC" else Clock(stamps, note, zone=zone)


def _with_format(stamps: Any, time_format: str, zone: str) -> Clock:
    return replace(_from_timestamps(stamps, "", zone), note=_note(time_format, zone), form=time_format)


def _note(time_format: str, zone: str) -> str:
    return f"dates as {time_format}" + ("" if "%z" in time_format else f", taken as {zone}")


def _check_no_missing(column: Any, name: str, rows: np.ndarray) -> None:
    if column.null_count:
        row = rows[int(np.argmax(np.asarray(column.is_null().to_numpy(), bool)))]
        raise ValueError(f"row {row}, column {name!r}: the time is missing (cells in total: {column.null_count})")


def _numbers(column: Any, name: str, rows: np.ndarray, zone: str, time_format: str | None) -> Clock:
    """Read the times of a column of numbers. They are interpreted as seconds since 1970, Excel days, years or compact
    dates if their size and the name of the column suggest it.

    Args:
        time_format: A format that `parse_form` accepts. Other formats are for text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = column.to_numpy()
    check_finite(numbers, name, rows)
    chosen = None if time_format is None else parse_form(time_format)
    if chosen in TIMES:
        note = f"numbers in {chosen}"
        return Clock(numbers * TIMES[chosen], note, is_dated=False, form=1 / TIMES[chosen])
    form = chosen or (calendar_form(numbers, name) if len(numbers) else None)
    if form is not None and origin_and_unit(form) is not None:
        seconds = to_seconds(numbers, form)
        return Clock(seconds if zone == "UTC" else utc_seconds(seconds, zone), f"{form}, taken as {zone}", form=form)
    if form is not None:
        cells = pc.cast(pc.cast(column, pa.int64()), pa.string())
        cells = pc.utf8_lpad(cells, 8, "0") if form in (DAY_FIRST, MONTH_FIRST) else cells
        chunked = pa.chunked_array([cells]) if isinstance(cells, pa.Array) else cells
        return _with_format(parse(chunked, form, name, rows), form, zone)
    seconds, note, per_second, is_dated = unix_seconds(numbers)
    if not is_dated and is_hour_name(name) and (first := first_hour(numbers)) is not None:
        days = np.cumsum(np.diff(numbers, prepend=numbers[0]) < 0)
        note = f"hours of consecutive days, from {first}"
        return Clock(TIMES["h"] * (numbers - first + 24 * days), note, is_dated=False, form=HOURS_OF_DAY[first])
    if not is_dated and (unit := time_unit(name)) is not None and unit[1] != 1.0:
        return Clock(seconds * unit[1], f"numbers in {unit[0]}", is_dated=False, form=1 / unit[1])
    return Clock(seconds, note, is_dated, form=note if per_second == PER_TICK else per_second)


def _elapsed(cells: Any, name: str, rows: np.ndarray, begins: np.ndarray) -> Clock | None:
    """Read elapsed times, such as 26:10:00 or 90 min. Times of day continue after midnight. Return None
    for other text."""
    if elapsed(str(cells[0])) is None:
        return None
    found = [elapsed(cell) for cell in cells.to_pylist()]
    if None in found:
        return None
    seconds = np.array(found, np.float64)
    check_finite(seconds, name, rows)
    is_midnight = np.diff(seconds, prepend=seconds[0]) < -DAY / 2
    is_midnight[begins] = False
    note = "elapsed times" + (", with a new day after each midnight" if is_midnight.any() else "")
    if re.fullmatch(FACE, str(cells[0])):
        days = np.cumsum(is_midnight)
        if len(begins):  # each series begins on its first day
            days = days - np.repeat(days[begins], np.diff(begins, append=len(days)))
        return Clock(seconds + DAY * days, note, is_dated=False, form=CLOCK_FACE)
    unit = re.search(r"[^\W\d_]+$", str(cells[0]))
    per_second = 1 / (elapsed(f"1 {unit[0]}") or 1.0) if unit else 1.0
    return Clock(seconds, note, is_dated=False, form=per_second)


def _guess_format(cells: Any, name: str, zone: str, rows: np.ndarray, begins: np.ndarray) -> Clock:
    """Read the times of text in a format that is detected. This is the only known format that all cells match or, if
    several formats match, the only one of them for which times do not decrease."""
    first = cells[0].as_py()
    read: dict[str, Any] = {}
    problem = f"row {rows[0]}, column {name!r}: {first!r} is not in a known time format; specify it with "
    problem += "--time-format, such as '%d.%m.%Y %H:%M'"
    for time_format in _sampled_formats(cells) or candidate_formats(str(first)):
        try:
            read[time_format] = parse(cells, time_format, name, rows)
        except ValueError as error:
            problem = str(error)
    if not read:
        raise ValueError(problem)
    different = {stamp_counts(stamps).tobytes(): made for made, stamps in reversed(read.items())}
    (made, *others) = different.values()
    note = ""
    if others:
        rising = [made for made in different.values() if _rises(stamp_counts(read[made]), begins)]
        if len(rising) != 1:
            raise AmbiguousDates(name, str(first), sorted(different.values()))
        (made,) = rising
        others = [each for each in different.values() if each != made]
        note = f"; with {' or '.join(others)}, the rows would not be in order"
    clock = _with_format(read[made], made, zone)
    return replace(clock, note=clock.note + note)


def _sampled_formats(cells: Any) -> list[str]:
    """Return the formats that all sampled cells match."""
    import pyarrow as pa

    chosen = np.unique(np.linspace(0, len(cells) - 1, SAMPLED).astype(np.int64))
    sampled = pa.chunked_array([take(cells, chosen).unique()])
    found: list[str] = []
    for cell in sampled.to_pylist()[:TRIED]:
        formats = [made for made in candidate_formats(cell) if made not in found]
        found += [made for made in formats if _fits(sampled, made)]
        if found:
            break
    return found


def _fits(cells: Any, time_format: str) -> bool:
    try:
        parse(cells, time_format, "", np.arange(len(cells)))
    except ValueError:
        return False
    return True


def _rises(counts: np.ndarray, begins: np.ndarray) -> bool:
    is_back = np.diff(counts) < 0
    is_back[begins[begins > 0] - 1] = False
    return not is_back.any()
