"""Columns of zones beside local times, such as EST and EDT."""

from __future__ import annotations

import re
from typing import Any, Final

from rfa.data.clock_choice import sample

# Abbreviations of zones with one meaning each, or offsets, in a column beside local times.
ZONES: Final = {
    "Z": 0, "UTC": 0, "GMT": 0, "WET": 0, "WEST": 60, "CET": 60, "CEST": 120, "MEZ": 60, "MESZ": 120, "EET": 120,
    "EEST": 180, "MSK": 180, "JST": 540, "KST": 540, "AEST": 600, "AEDT": 660, "NZST": 720, "NZDT": 780, "EST": -300,
    "EDT": -240, "CDT": -300, "MST": -420, "MDT": -360, "PST": -480, "PDT": -420, "AKST": -540, "AKDT": -480,
    "HST": -600,
}  # fmt: skip
# Central Standard Time, if daylight time is there as well; China's otherwise.
US_CENTRAL: Final = {"CST": -360}
OFFSET: Final = re.compile(r"(?:UTC|GMT)?([+-])(\d\d?)(?::(\d\d))?")


def is_local(column: Any) -> bool:
    """Whether text has times of day without an offset."""
    import pyarrow as pa

    cells = sample(column).to_pylist() if pa.types.is_string(column.type) else []
    return bool(cells) and all(":" in cell and not re.search(r"([+-]\d\d:?\d\d|[A-Z])$", cell) for cell in cells)


def zone_minutes(column: Any) -> dict[str, int]:
    """The offsets from UTC, in minutes, of a column that has nothing but zones; empty for others."""
    import pyarrow as pa

    cells = sample(column).unique().to_pylist() if pa.types.is_string(column.type) else []
    zones = ZONES | (US_CENTRAL if "CDT" in cells else {})
    found: dict[str, int] = {}
    for cell in cells:
        if (offset := OFFSET.fullmatch(cell)) is not None:
            found[cell] = int(f"{offset[1]}1") * (60 * int(offset[2]) + int(offset[3] or 0))
        elif cell in zones:
            found[cell] = zones[cell]
        else:
            return {}
    return found if any(re.search("[A-Z:]", cell) for cell in cells) else {}


def zone_offsets(column: Any) -> Any:
    """The zones as +hh:mm; null where a cell is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    minutes = zone_minutes(column)
    offsets = [f"{'-' if each < 0 else '+'}{abs(each) // 60:02d}:{abs(each) % 60:02d}" for each in minutes.values()]
    found = pc.index_in(pc.utf8_trim_whitespace(column), pa.array(list(minutes), pa.string()))
    return pc.take(pa.array(offsets, pa.string()), found)


def unzoned(texts: list[str]) -> Any:
    """Times without the offset at their end."""
    import pyarrow as pa

    return pa.array([re.sub(r" ?[+-]\d\d:?\d\d$", "", text) for text in texts])


def zone_cells(texts: list[str], column: Any) -> Any:
    """The zones, as the column names them, of times that end with an offset."""
    import pyarrow as pa

    names = {minutes: name for name, minutes in zone_minutes(column).items()}
    found = [re.search(r"([+-])(\d\d):?(\d\d)$", text) for text in texts]
    return pa.array([names[int(f"{each[1]}1") * (60 * int(each[2]) + int(each[3]))] for each in found if each])
