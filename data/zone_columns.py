"""Read columns that contain the time zones of local times, such as EST and EDT."""

from __future__ import annotations

import re
from typing import Any, Final

from rfa.data.clock_choice import sample

# Unambiguous abbreviations of time zones, and their offsets in minutes.
ZONES: Final = {
    "Z": 0, "UTC": 0, "GMT": 0, "WET": 0, "WEST": 60, "CET": 60, "CEST": 120, "MEZ": 60, "MESZ": 120, "EET": 120,
    "EEST": 180, "MSK": 180, "JST": 540, "KST": 540, "AEST": 600, "AEDT": 660, "NZST": 720, "NZDT": 780, "EST": -300,
    "EDT": -240, "CDT": -300, "MST": -420, "MDT": -360, "PST": -480, "PDT": -420, "AKST": -540, "AKDT": -480,
    "HST": -600, "MET": 60,
}  # fmt: skip
# CST is Central Standard Time if CDT also occurs. Otherwise it may be China's.
US_CENTRAL: Final = {"CST": -360}
OFFSET: Final = re.compile(r"(?:UTC|GMT)?([+-])(\d\d?)(?::(\d\d))?")


def is_local(column: Any) -> bool:
    """Return whether a column of text has times of day without offsets."""
    import pyarrow as pa

    cells = sample(column).to_pylist() if pa.types.is_string(column.type) else []
    return bool(cells) and all(":" in cell and not re.search(r"([+-]\d\d:?\d\d|[A-Z])$", cell) for cell in cells)


def zone_minutes(column: Any) -> dict[str, int]:
    """Return the UTC offset in minutes of each time zone in a column. The result is empty unless all cells are time
    zones."""
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
    """Return the time zones of a column as UTC offsets in the form +hh:mm. Empty cells are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    minutes = zone_minutes(column)
    offsets = [f"{'-' if each < 0 else '+'}{abs(each) // 60:02d}:{abs(each) % 60:02d}" for each in minutes.values()]
    found = pc.index_in(pc.utf8_trim_whitespace(column), pa.array(list(minutes), pa.string()))
    return pc.take(pa.array(offsets, pa.string()), found)


def unzoned(texts: list[str]) -> Any:
    """Return times without the UTC offset at their end."""
    import pyarrow as pa

    return pa.array([re.sub(r" ?[+-]\d\d:?\d\d$", "", text) for text in texts])


def zone_cells(texts: list[str], column: Any) -> Any:
    """Return the time zones of times that end with a UTC offset, with the names that the column uses for them."""
    import pyarrow as pa

    names = {minutes: name for name, minutes in zone_minutes(column).items()}
    found = [re.search(r"([+-])(\d\d):?(\d\d)$", text) for text in texts]
    return pa.array([names[int(f"{each[1]}1") * (60 * int(each[2]) + int(each[3]))] for each in found if each])
