"""Convert columns of word pairs, such as "on" and "off" or "true" and "false", to 1 and 0."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rfa.data.marks import present_cells
from rfa.data.number_forms import PLAIN
from rfa.data.table import combine_chunks

# Pairs of words that mean 1 and 0, in lower case.
SWITCHES: Final = (
    ("on", "off"), ("true", "false"), ("yes", "no"), ("open", "closed"), ("home", "not_home"), ("ein", "aus"),
    ("wahr", "falsch"), ("ja", "nein"), ("ja", "nee"), ("oui", "non"), ("vrai", "faux"), ("sí", "no"),
    ("vero", "falso"), ("detected", "clear"), ("up", "down"), ("enabled", "disabled"),
)  # fmt: skip


def read_switches(column: Any, missing: tuple[str, ...] = ()) -> tuple[np.ndarray, str] | None:
    """Convert a column of booleans, or of a pair of words such as "on" and "off", to 1 and 0. Also return a note.

    Return None for other columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(column.type):
        return np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64), "true and false are read as 1 and 0"
    cells = pc.utf8_lower(present_cells(column, missing)[0])
    present = {word for word in pc.unique(cells).to_pylist() if word is not None} if len(cells) else set()
    for on, off in SWITCHES:
        if present and present <= {on, off}:
            values = pc.if_else(pc.equal(cells, on), 1.0, 0.0)
            note = f"{on} and {off} are read as 1 and 0"
            return np.asarray(combine_chunks(values).to_numpy(zero_copy_only=False)), note
    return None


def switches_among_numbers(cells: Any) -> tuple[Any, list[str]]:
    """Replace words such as "on" and "off" by "1" and "0" if other cells are numbers. Also return notes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pc.any(pc.match_substring_regex(cells, PLAIN), min_count=0).as_py():
        return cells, []
    lower = pc.utf8_lower(cells)
    for on, off in SWITCHES:
        if pc.any(pc.is_in(lower, pa.array([on, off])), min_count=0).as_py():
            cells = pc.if_else(pc.equal(lower, off), pa.scalar("0"), cells)
            return pc.if_else(pc.equal(lower, on), pa.scalar("1"), cells), [f"{on} and {off} are read as 1 and 0"]
    return cells, []
