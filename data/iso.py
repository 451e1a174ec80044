"""Parse times in ISO 8601."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

ISO: Final = "ISO"
ZONED: Final = r"(Z|[+-]\d{2}(:?\d{2})?)$"
# Patterns of an interval such as `01.01.2024 00:00 - 01.01.2024 01:00`.
_DAY: Final = r"[^\s:]*\d[-/.]\d+[-/.]\d[^\s:]*"
_TO: Final = r"\s+(?:-|–|to|bis|/)\s+"
INTERVAL: Final = rf"^(?:(.*\d:\d{{2}}(?::\d{{2}}(?:\.\d+)?Z?)?)(?:{_TO}|/).*\d:\d{{2}}.*|({_DAY}){_TO}{_DAY})$"
HAS_TIME: Final = r"\d[T ]\d{2}:?\d{2}"


def cast_iso(cells: Any) -> Any:
    """Return timestamps like `parse_iso`, for text that need not be rewritten, as in most files. Return None for other
    text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # A cast fails at the first cell in another format, so it is fast for other text.
    for zone in (None, "UTC"):
        with suppress(pa.ArrowInvalid):
            return pc.cast(cells, pa.timestamp("ns", zone))
    return None


def parse_iso(cells: Any) -> Any:
    """Return the timestamps in an Arrow column of text, if all cells have a time zone or none has. Return None for
    other text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if (found := cast_iso(cells)) is not None:
        return found
    cells = pc.replace_substring_regex(cells, r"(:\d{2}),(\d+)", r"\1.\2")
    cells = pc.replace_substring_regex(cells, r" (UTC|GMT|Z)$", "Z")
    cells = pc.replace_substring_regex(cells, r"(:\d{2}(\.\d+)?) ([+-]\d{2})", r"\1\3")
    cells = pc.replace_substring_regex(cells, r"(\.\d{9})\d+", r"\1")
    is_zoned = pc.and_(pc.match_substring_regex(cells, HAS_TIME), pc.match_substring_regex(cells, ZONED))
    # A cell must contain a time of day, because the end of a date looks like a UTC offset.
    zones = pc.all(is_zoned, min_count=0).as_py(), pc.any(is_zoned, min_count=0).as_py()
    if zones == (False, True):
        return None
    try:
        return pc.cast(cells, pa.timestamp("ns", "UTC" if zones[0] and len(cells) else None))
    except pa.ArrowInvalid:
        return None
