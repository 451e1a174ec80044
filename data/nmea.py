"""Read positions from NMEA 0183 sentences, which satellite navigation receivers write."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Final

from rfa.data.json_values import Rows

SENTENCE: Final = re.compile(r"(?m)^.{0,40}?\$[A-Z]{2}(RMC|GGA),(\d{6}(?:\.\d+)?),([^\r\n*]*)")
FIRST: Final = re.compile(r".{0,40}?\$[A-Z]{5},")
PREVIEW: Final = 20
# Minimum fraction of sentences among the first lines.
SHARE: Final = 0.8
TIME: Final = "time"
# The positions of the fields after the time.
GGA: Final = {"satellites": 5, "hdop": 6, "altitude (m)": 7}
RMC: Final = {"speed (knots)": 5, "course (°)": 6}
LATITUDE, LONGITUDE = "latitude", "longitude"
NAMES: Final = (LATITUDE, LONGITUDE, *GGA, *RMC)
MOST_CHARACTERS: Final = 2**27


def read_sentences(text: str) -> Rows | None:
    """Return the positions in NMEA sentences by time, or None for other text. Only RMC sentences contain the date.

    Raises:
        ValueError: If the file is too large, or has no date.
    """
    first = [line for line in text[:10_000].splitlines()[:PREVIEW] if line.strip()]
    if not first or sum(FIRST.match(line) is not None for line in first) < SHARE * len(first):
        return None
    if SENTENCE.search(text) is None:
        return None  # other sentences, such as those of a Geiger counter
    if len(text) > MOST_CHARACTERS:
        raise ValueError("NMEA sentences may have at most 128 MiB; split the file")
    rows: dict[str, dict[str, float | None]] = {}
    date: datetime | None = None
    waiting: list[tuple[float, dict[str, float | None]]] = []
    for kind, clock, rest in SENTENCE.findall(text):
        cells = rest.split(",")
        seconds = int(clock[:2]) * 3600 + int(clock[2:4]) * 60 + float(clock[4:])
        date = _date(cells[7]) or date if kind == "RMC" and len(cells) > 7 else date
        waiting.append((seconds, _values(kind, cells)))
        if date is not None:
            for each, values in waiting:
                rows.setdefault((date + timedelta(seconds=each)).isoformat(), {}).update(values)
            waiting.clear()
    if not rows:
        raise ValueError("the NMEA sentences have no date; log RMC sentences, which state it")
    names = [name for name in NAMES if any(row.get(name) is not None for row in rows.values())]
    found = Rows(note="NMEA sentences")
    columns: dict[str, Any] = {name: [row.get(name) for row in rows.values()] for name in names}
    found.add({}, **{TIME: list(rows), **columns})
    return found


def _date(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%d%m%y")
    except ValueError:
        return None


def _values(kind: str, cells: list[str]) -> dict[str, float | None]:
    begin, fields = (1, RMC) if kind == "RMC" else (0, GGA)
    degrees = [_degrees(*cells[at : at + 2]) for at in (begin, begin + 2) if len(cells) > at + 1]
    values = {name: _number(cells[at]) for name, at in fields.items() if at < len(cells)}
    return dict(zip((LATITUDE, LONGITUDE), degrees, strict=False)) | values


def _degrees(text: str, side: str) -> float | None:
    """Convert an angle in degrees and minutes to degrees. The text 4807.038, for example, is 48 degrees and 7.038
    minutes. Return None if the text is not an angle."""
    if (number := _number(text)) is None:
        return None
    whole, minutes = divmod(number, 100)
    return round((whole + minutes / 60) * (-1 if side in ("S", "W") else 1), 9)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?\d+(\.\d*)?", text) else None
