"""Write times in the format of the file that they continue."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import numpy as np

from rfa.data.clock import CLOCK_FACE, HOURS_OF_DAY, ZONE_NAME
from rfa.data.clock_numbers import PER_TICK, TICKS
from rfa.data.durations import elapsed
from rfa.data.epochs import DAY, origin_and_unit, to_numbers
from rfa.data.iso import ISO
from rfa.data.local_time import local_seconds
from rfa.data.series import Series
from rfa.data.table import Table
from rfa.data.time_formats import ABBREVIATED, BRACKETED, parse, write_moment
from rfa.data.units import TIMES

ISO_TIME: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}(?P<joint>[T ])?(?:\d{2}:?\d{2}(?P<seconds>:?\d{2}([.,]\d+)?)?)?"
    r"(?P<zone> ?(?:Z|UTC|GMT|[+-][\d:]+))?"
)
OFFSET: Final = re.compile(r"([+-])(\d{2}):?(\d{2})?$")
# Names of offsets behind a time of day.
OFFSETS: Final = {**ABBREVIATED, "GMT": "+0000", "UTC": "+0000"}


def write_clock(table: Table, series: Series, times: np.ndarray) -> dict[str, Any]:
    """Write times in the format of the time columns of the table from which a series was read. If the table has none,
    return a column `t`."""
    import pyarrow as pa

    if not series.clock_columns:
        return {"t": pa.array(times)}
    if not len(times):
        # The type and format of the column are those of any of its times.
        return {name: cells.slice(0, 0) for name, cells in write_clock(table, series, series.times[-1:]).items()}
    row = 0 if series.rows is None else int(series.rows[-1])
    last = {name: table.columns[name].slice(row, 1) for name in series.clock_columns}
    if series.clock_parts is None:
        (name,) = series.clock_columns
        return {name: write_times(series, times, last[name][0])}
    sample = series.clock_parts.cells(last)[0]
    if not sample.is_valid:  # its cells are merged with those above
        sample = series.clock_parts.cells(table.columns)[row]
    texts = write_times(series, times, sample).to_pylist()
    return series.clock_parts.split(texts, {name: table.columns[name] for name in series.clock_columns})


def write_times(series: Series, times: np.ndarray, sample: Any) -> Any:
    """Return times as an Arrow array in the type and format of the time column of a series.

    Args:
        series: Series that the times continue.
        times: Times `[M]` in the unit of the series.
        sample: A cell of the time column, such as the last one, as an Arrow scalar.

    Raises:
        ValueError: If the type of the column cannot represent the times. Nanoseconds end in 2262.
    """
    import pyarrow as pa

    kind = sample.type
    if isinstance(series.form, float):
        return _numbers(times * series.form, sample)
    origin = next((origin for _, _, origin, name in TICKS if name == series.form), None)
    if origin is not None:
        ticks = np.rint(times * PER_TICK).astype(np.int64) + origin * int(PER_TICK)
        return pa.array(ticks) if pa.types.is_integer(kind) else pa.array(list(map(str, ticks.tolist())))
    if series.form in HOURS_OF_DAY:
        return _numbers(np.rint(times / TIMES["h"]) % 24 + HOURS_OF_DAY.index(str(series.form)), sample)
    if series.form == CLOCK_FACE:
        return pa.array(_clock_faces(series, times, sample.as_py().strip()))
    if series.form is not None and origin_and_unit(series.form) is not None:
        return _numbers(to_numbers(local_seconds(times, series.zone), series.form), sample)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        texts = pa.array(_by_format(series, times, "", str(series.form)) or [])
        return texts.cast(pa.int64()).cast(kind)
    if not pa.types.is_string(kind):
        zone = kind.tz if pa.types.is_timestamp(kind) else None
        shown = times if zone else local_seconds(times, series.zone)
        stamps = pa.array(np.rint(1e6 * shown).astype(np.int64)).cast(pa.timestamp("us", zone))
        is_finest = pa.types.is_timestamp(kind) and kind.unit == "ns"
        try:
            return stamps.cast(kind, safe=is_finest)  # coarser units may round
        except pa.ArrowInvalid:
            raise ValueError(
                "times in nanoseconds cannot represent dates after the year 2262; use microseconds"
            ) from None
    cell = re.sub(BRACKETED, r"\1\2:00", re.sub(ZONE_NAME, "", sample.as_py().strip()))
    written = None if series.form == ISO else _by_format(series, times, cell, str(series.form))
    return pa.array(_by_iso(series, times, cell) if written is None else written)


def _clock_faces(series: Series, times: np.ndarray, cell: str) -> list[str]:
    """Return times as hours, minutes and seconds, in the format of the last cell.

    The times are times of day if the column starts again at midnight. Otherwise, they are elapsed times.
    """
    offset = cell[found.start() :] if (found := OFFSET.search(cell)) else ""
    cell = cell.removesuffix(offset)
    is_of_day = bool(offset) or (elapsed(cell) or 0.0) < series.times[-1] - 1
    hours, _, seconds = cell.split(":", maxsplit=1)[0], *cell.partition(".")[1:]
    texts = []
    for time in times.tolist():
        rest, second = divmod(round(time % DAY if is_of_day else time, 6), 60)
        hour, minute = divmod(int(rest), 60)
        width = 2 + (1 + len(seconds) if seconds else 0)
        end = f":{second:0{width}.{len(seconds)}f}" if cell.count(":") > 1 or second else ""
        texts.append(f"{hour:0{len(hours)}d}:{minute:02d}{end}{offset}")
    return texts


def _numbers(numbers: np.ndarray, sample: Any) -> Any:
    import pyarrow as pa

    kind = sample.type
    if pa.types.is_integer(kind):
        return pa.array(np.rint(numbers).astype(np.int64)).cast(kind)
    if pa.types.is_floating(kind):
        return pa.array(numbers).cast(kind)
    cell, unit = re.fullmatch(r"(.*?)( *[^\W\d_]*)", sample.as_py().strip()).groups()  # type: ignore[union-attr]
    mark = "," if "," in cell else "."
    digits = len(cell.partition(mark)[2])
    texts = [f"{number:.{digits}f}" for number in numbers.tolist()]
    exact = [
        math.isclose(float(text), number, rel_tol=4e-16) for text, number in zip(texts, numbers.tolist(), strict=True)
    ]
    texts = texts if all(exact) else [repr(number) for number in numbers.tolist()]
    return pa.array([text.replace(".", mark) + unit for text in texts])


def _local_moments(series: Series, times: np.ndarray, offset: timedelta | None) -> list[datetime]:
    """Return times as local times at a UTC offset or, without one, in the time zone of the series."""
    if offset is None:
        seconds = local_seconds(times, series.zone)
    else:
        seconds = times + offset.total_seconds()
    return [
        datetime.fromtimestamp(0, UTC).replace(tzinfo=None) + timedelta(microseconds=round(1e6 * s)) for s in seconds
    ]


def _by_format(series: Series, times: np.ndarray, cell: str, time_format: str) -> list[str] | None:
    """Write times in a strptime format. Return None if the format cannot represent them, such as 30 s in a format
    without seconds."""
    import pyarrow as pa

    offset, zone, shown = None, "", ""
    if "%z" in time_format:
        shown = next((name for name in OFFSETS if cell.endswith(f" {name}")), "")
        cell = cell.removesuffix(shown) + OFFSETS.get(shown, "")
        offset, zone = (
            datetime.strptime(cell, time_format).utcoffset(),
            re.sub(r"^.*?(?=(Z|[+-]\d\d:?\d\d)$)", "", cell),
        )
    moments = _local_moments(series, times, offset)
    if offset is not None:
        moments = [moment.replace(tzinfo=timezone(offset)) for moment in moments]
    plain = time_format.removesuffix("%z")
    texts = [write_moment(moment, plain) + (zone if plain != time_format else "") for moment in moments]
    again = parse(pa.chunked_array([texts]), time_format, "", np.arange(len(texts)))
    naive = [moment.replace(tzinfo=None) - (offset or timedelta()) for moment in moments]
    if again.cast(pa.timestamp("us")).to_pylist() != naive:
        return None
    return [text.removesuffix(zone) + shown for text in texts] if shown else texts


def _by_iso(series: Series, times: np.ndarray, cell: str) -> list[str]:
    """Return times in ISO 8601, with the precision of the cell or, if the times require it, with a higher precision."""
    found = ISO_TIME.match(cell)
    zone = (found["zone"] or "") if found else ""
    moments = _local_moments(series, times, _offset(zone))
    has_time = bool(found and found["joint"])
    if not has_time and all((m.hour, m.minute, m.second, m.microsecond) == (0, 0, 0, 0) for m in moments):
        return [moment.date().isoformat() for moment in moments]
    digits = 0 if found is None or found["seconds"] is None else len(re.sub(r"^[^.,]*[.,]?", "", found["seconds"]))
    if all(moment.microsecond == 0 for moment in moments) and not digits:
        is_short = has_time and found is not None and found["seconds"] is None
        unit = "minutes" if is_short and all(moment.second == 0 for moment in moments) else "seconds"
    else:
        unit = "milliseconds" if digits <= 3 and all(m.microsecond % 1000 == 0 for m in moments) else "microseconds"
    joint = (found["joint"] if found else None) or " "
    return [moment.isoformat(joint, unit) + zone for moment in moments]


def _offset(zone: str) -> timedelta | None:
    """Return the UTC offset at the end of a cell, or None if the cell has none."""
    if not zone:
        return None
    found = OFFSET.search(zone)
    span = timedelta(hours=int(found[2]), minutes=int(found[3] or 0)) if found else timedelta()
    return -span if found and found[1] == "-" else span
