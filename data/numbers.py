"""Cells of text as numbers: words for what is missing, decimal commas, separators of thousands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rfa.data.table import MISSING

# What people write for a thousand apart, other than a point or a comma.
SPACES: Final = "[ '\u2019\u00a0\u202f_]"
EXPONENT: Final = r"([eE][+-]?\d+)?"
PLAIN: Final = rf"^[+-]?(\d+\.?\d*|\.\d+){EXPONENT}$"
DECIMAL_COMMA: Final = rf"^[+-]?(\d{{1,3}}(\.\d{{3}})+(,\d+)?|\d+(,\d+)?|,\d+){EXPONENT}$"
THOUSANDS: Final = rf"^[+-]?(\d{{1,3}}(,\d{{3}})+(\.\d*)?|\d+\.?\d*|\.\d+){EXPONENT}$"


@dataclass(frozen=True)
class Numbers:
    """values `[N]`, NaN = missing; note: what was decided about the column, or empty."""

    values: np.ndarray
    note: str = ""


def read_numbers(column: Any, name: str, separator: str | None, first_row: int) -> Numbers | None:
    """A column of text as numbers; None: it holds labels (fewer than half of what is there are numbers).

    A comma is for decimals where a semicolon or a tab separates the cells, else for thousands, unless only the other
    reading fits every cell.

    Raises:
        ValueError: a cell is no number where most are, or is not finite. The message has its row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pc.utf8_trim_whitespace(column)
    is_missing = pc.is_in(pc.utf8_lower(cells), pa.array(MISSING))
    cells = pc.if_else(is_missing, pa.scalar(None, pa.string()), cells)
    cells = pc.replace_substring_regex(cells, r"\s*%$", "")
    cells = pc.replace_substring(cells, "\N{MINUS SIGN}", "-")
    spaced = pc.replace_substring_regex(cells, rf"(\d){SPACES}(\d{{3}})", r"\1\2")
    cells = pc.replace_substring_regex(spaced, rf"(\d){SPACES}(\d{{3}})", r"\1\2")  # digits that two of them share
    rules = {"": PLAIN, "decimal comma": DECIMAL_COMMA, "thousands": THOUSANDS}
    if separator not in (";", "\t"):
        rules = {"": PLAIN, "thousands": THOUSANDS, "decimal comma": DECIMAL_COMMA}
    for rule, pattern in rules.items():
        if pc.all(pc.match_substring_regex(cells, pattern), min_count=0).as_py():
            values = _cast(cells, rule)
            break
    else:
        _refuse_unless_labels(cells, name, first_row)
        return None
    if not np.isfinite(values[~_nulls(cells)]).all():
        bad = int(np.flatnonzero(~np.isfinite(values) & ~_nulls(cells))[0])
        raise ValueError(f"row {first_row + bad}, column {name!r}: not finite")
    note = {"": "", "decimal comma": "a comma stands before decimals", "thousands": "commas stand between thousands"}
    return Numbers(values, f"column {name!r}: {note[rule]}" if rule else "")


def _nulls(cells: Any) -> np.ndarray:
    return np.asarray(cells.is_null().to_numpy(), bool)


def _cast(cells: Any, rule: str) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if rule == "decimal comma":
        cells = pc.replace_substring(pc.replace_substring(cells, ".", ""), ",", ".")
    elif rule == "thousands":
        cells = pc.replace_substring(cells, ",", "")
    bare = pc.replace_substring_regex(cells, r"^\+", "")
    return np.asarray(pc.cast(bare, pa.float64()).to_numpy(), np.float64)


def _refuse_unless_labels(cells: Any, name: str, first_row: int) -> None:
    """A column that is not all numbers holds labels, or numbers and a cell that is none."""
    texts = [cell for cell in cells.to_pylist() if cell is not None]
    bad = [cell for cell in texts if not any(re.match(rule, cell) for rule in (PLAIN, DECIMAL_COMMA, THOUSANDS))]
    if 2 * len(bad) >= len(texts):
        return
    if not bad:
        raise ValueError(
            f"column {name!r}: decimal points and decimal commas are mixed; write one of them, or choose "
            "columns with --column"
        )
    first = bad[0]
    row = first_row + cells.to_pylist().index(first)
    told = "not finite" if first.lower().lstrip("+-") in ("inf", "infinity") else f"{first!r} is not a number"
    raise ValueError(
        f"row {row}, column {name!r}: {told} ({len(bad)} such cells); leave the cell empty, or choose columns "
        "with --column"
    )
