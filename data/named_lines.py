"""Read logs in which each line contains one value of a quantity that is named in quotes, or one frame of a CAN bus."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

from rfa.data.first_lines import check_size
from rfa.data.json_values import Rows
from rfa.data.log_lines import stamp_of
from rfa.data.number_lines import NUMBER, UNIT, UNITS
from rfa.data.units import named

QUOTED: Final = re.compile(r"'([^']{1,60})'")
OF_DAY: Final = re.compile(r"\s*\[?(\d\d:\d\d:\d\d(?:\.\d+)?)\]?")
# A frame as `candump` writes it, to a file or to a terminal.
FRAME: Final = re.compile(
    r"\((\d{9,10}\.\d+)\) +(\S+) +([0-9A-F]{3,8})(?:#((?:[0-9A-F]{2})*)| +\[\d+\] +((?:[0-9A-F]{2} ?)*))(?: [RT])?"
)
PREVIEW, FEWEST_LINES, SHARE = 20, 8, 0.5
TIME: Final = "time"


def read_named_values(text: str) -> Rows | None:
    """Return the values in the lines of a log that name a quantity in quotes, with one series per quantity. Only lines
    with the most frequent wording are read. Return None for other text.

    Raises:
        ValueError: If the file is too large.
    """
    first = [line for line in text[:100_000].splitlines()[:PREVIEW] if line.strip()]
    if len(first) < FEWEST_LINES or sum(_value(line) is not None for line in first) < SHARE * len(first):
        return None
    _check_size(text)
    lines = [line for line in text.splitlines() if line.strip()]
    read = [found for line in lines if (found := _value(line)) is not None]
    form, count = Counter(found[0] for found in read).most_common(1)[0]
    if count < SHARE * len(lines):
        return None
    series: dict[str, tuple[list[str], list[str]]] = {}
    for _, name, time, value in (found for found in read if found[0] == form):
        times, values = series.setdefault(name, ([], []))
        times.append(time)
        values.append(value)
    rows = Rows(note=f"values are read from {count} of {len(lines)} lines, such as {lines[0].strip()[:60]!r}")
    for name, (times, values) in series.items():
        rows.add({"name": name}, **{TIME: times, "value": values})
    return rows


def _value(line: str) -> tuple[str, str, str, str] | None:
    """Return the wording of a line, the name in quotes with its unit, the time, and the number after the name. Return
    None if the line has no such value."""
    time, rest, _ = stamp_of(line)
    of_day = OF_DAY.match(line) if time is None else None
    name = QUOTED.search(rest)
    number = NUMBER.search(rest, name.end()) if name is not None else None
    if name is None or number is None or (time is None and of_day is None):
        return None
    unit = UNIT.match(rest, number.end())
    is_unit = unit is not None and (unit[1] in UNITS or unit[1] in ("°C", "°F"))
    end = unit.end() if unit is not None and is_unit else number.end()
    before = OF_DAY.sub("", rest[: name.start()], count=1)
    form = NUMBER.sub("#", f"{before}'{rest[name.end() : number.start()]}#{rest[end:]}")
    moment = of_day[1] if of_day is not None else datetime.fromtimestamp(time or 0.0, UTC).isoformat()
    return form, named(name[1], unit[1] if unit is not None and is_unit else ""), moment, number[0]


def read_frames(text: str) -> Rows | None:
    """Return the bytes of the frames in a log of a CAN bus, with one series per identifier. Return None for other text.

    Raises:
        ValueError: If the file is too large.
    """
    first = [line for line in text[:10_000].splitlines()[:PREVIEW] if line.strip()]
    if not first or not all(FRAME.fullmatch(line.strip()) for line in first[:-1] or first):
        return None
    _check_size(text)
    frames = [found.groups() for line in text.splitlines() if (found := FRAME.fullmatch(line.strip())) is not None]
    series: dict[tuple[str, str], list[tuple[str, bytes]]] = {}
    for time, interface, identifier, compact, spaced in frames:
        data = bytes.fromhex(compact if compact is not None else spaced)
        series.setdefault((interface, identifier), []).append((time, data))
    rows = Rows(note="each row is a frame of a CAN bus with its bytes as values")
    for (interface, identifier), sent in series.items():
        labels = {"interface": interface} if len({key[0] for key in series}) > 1 else {}
        width = max(len(data) for _, data in sent)
        columns: dict[str, Any] = {TIME: [time for time, _ in sent]}
        columns |= {f"byte {k}": [data[k] if k < len(data) else None for _, data in sent] for k in range(width)}
        rows.add({**labels, "id": f"0x{identifier}"}, **columns)
    return rows


def _check_size(text: str) -> None:
    check_size(text, "a log may have at most 256 MiB; split the file, or save it as CSV")
