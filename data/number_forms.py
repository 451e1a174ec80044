"""Define the patterns of plain numbers with their decimal marks and thousands separators, and choose a pattern for a
column."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

EXPONENT: Final = r"([eE][+-]?\d+)?"
PLAIN: Final = rf"^[+-]?(\d+\.?\d*|\.\d+){EXPONENT}$"
# A group that begins with 0 is not followed by a thousands separator, so 0,238 has a decimal comma.
DECIMAL_COMMA: Final = rf"^[+-]?([1-9]\d{{0,2}}(\.\d{{3}})+(,\d+)?|\d+(,\d+)?|,\d+){EXPONENT}$"
THOUSANDS: Final = rf"^[+-]?([1-9]\d{{0,2}}((,\d{{2}})*|(,\d{{3}})*),\d{{3}}(\.\d*)?|\d+\.?\d*|\.\d+){EXPONENT}$"
POINTS: Final = rf"^[+-]?([1-9]\d{{0,2}}(\.\d{{3}})+|\d+){EXPONENT}$"
# Plain numbers whose points may separate thousands.
MAY_HAVE_POINTS: Final = r"^[+-]?([1-9]\d{0,2}\.\d{3}|\d{1,3})$"
# Cell separators of files with decimal commas.
SEPARATORS_WITH_DECIMAL_COMMA: Final = (";", "\t")
# Mapping from names of rules to patterns. `RULES` has the order in which rules are tried in files with decimal commas,
# and `ORDER_WITH_POINT` the order in other files.
RULES: Final = {"": PLAIN, "points": POINTS, "decimal comma": DECIMAL_COMMA, "thousands": THOUSANDS}
ORDER_WITH_POINT: Final = ("", "points", "thousands", "decimal comma")
MARKS: Final = {"": ".", "points": ",", "decimal comma": ",", "thousands": "."}
# Number of cells that suffice to reject most columns.
FIRST: Final = 1000


def fits(cells: Any, form: str) -> bool:
    """Return whether all cells that are not null match the pattern `form`."""
    import pyarrow.compute as pc

    # The first cells suffice to reject most columns.
    parts = (cells.slice(0, FIRST), cells) if len(cells) > FIRST else (cells,)
    return all(pc.all(pc.match_substring_regex(part, form), min_count=0).as_py() for part in parts)


def choose_rule(cells: Any, separator: str | None) -> str | None:
    """Return the first rule whose pattern matches every cell, or None if there is none."""
    order = RULES if separator in SEPARATORS_WITH_DECIMAL_COMMA else ORDER_WITH_POINT
    return next((rule for rule in order if fits(cells, RULES[rule])), None)


def may_have_thousands_points(cells: Any) -> bool:
    """Return whether the points of plain numbers may separate thousands."""
    if not fits(cells.slice(0, FIRST), MAY_HAVE_POINTS):
        return False
    cells = cells.drop_null()
    chunks = cells.chunks if hasattr(cells, "chunks") else [cells]
    return all(map(_are_groups, chunks)) and has_point(cells)


def _are_groups(chunk: Any) -> bool:
    """Return whether all plain numbers of a chunk match MAY_HAVE_POINTS. The check is much faster than the regular
    expression."""
    offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    text = np.frombuffer(chunk.buffers()[2] or b"", np.uint8)
    sizes = np.diff(offsets)
    ends, sizes = offsets[1:][sizes > 0], sizes[sizes > 0]
    digits = sizes - np.isin(text[ends - sizes], (ord("+"), ord("-")))
    is_group = (digits >= 5) & (digits <= 7) & (text[ends - digits] != ord("0"))
    groups = ends[is_group]
    is_group[is_group] = (text[groups - 4] == ord(".")) & (text[groups - 3] < ord("E")) & (text[groups - 2] < ord("E"))
    short = ends[~is_group]
    return bool((digits[~is_group] <= 3).all()) and not any(
        (text[short[digits[~is_group] >= k] - k] == ord(".")).any() for k in (1, 2, 3)
    )


def has_point(cells: Any) -> bool:
    """Return whether at least one number has a point."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring(cells, "."), min_count=0).as_py())


def all_have_points(cells: Any) -> bool:
    """Return whether every number in the cells has a point."""
    import pyarrow.compute as pc

    return bool(pc.all(pc.match_substring(cells, "."), min_count=0).as_py())
