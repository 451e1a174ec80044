"""Cells of text as numbers: words for what is missing, decimal commas, separators of thousands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rfa.data.table import MISSING

# What people write for a thousand apart, other than a point or a comma.
SPACES: Final = "[ '\u2019\u00a0\u202f_]"
MONEY: Final = r"\p{Sc}"
EXPONENT: Final = r"([eE][+-]?\d+)?"
PLAIN: Final = rf"^[+-]?(\d+\.?\d*|\.\d+){EXPONENT}$"
DECIMAL_COMMA: Final = rf"^[+-]?(\d{{1,3}}(\.\d{{3}})+(,\d+)?|\d+(,\d+)?|,\d+){EXPONENT}$"
THOUSANDS: Final = rf"^[+-]?(\d{{1,3}}(,\d{{3}})+(\.\d*)?|\d+\.?\d*|\.\d+){EXPONENT}$"

SAID: Final = {
    "": "", "decimal comma": "a comma stands before decimals", "thousands": "commas stand between thousands"
}  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """values `[N]`, NaN = missing; note: what was decided about the column, or empty."""

    values: np.ndarray
    note: str = ""


def read_numbers(
    column: Any, name: str, separator: str | None, first_row: int, *, strict: bool = False
) -> Numbers | None:
    """A column of text as numbers; None: it holds labels (fewer than half of what is there are numbers).

    A comma is for decimals where a semicolon or a tab separates the cells, else for thousands, unless only the other
    reading fits every cell. A few cells that are no numbers, or not finite, are missing, and said.

    Raises:
        ValueError: decimal points and commas are mixed; with `strict`, a cell is no number where most are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pc.utf8_trim_whitespace(column)
    is_missing = pc.is_in(pc.utf8_lower(cells), pa.array(MISSING))
    cells = pc.if_else(is_missing, pa.scalar(None, pa.string()), cells)
    if pc.all(pc.match_substring_regex(cells, PLAIN), min_count=0).as_py():
        return _finite(cells, "", name, first_row, [], strict)
    texts, cells = cells, _tidied(cells)
    rules = {"": PLAIN, "decimal comma": DECIMAL_COMMA, "thousands": THOUSANDS}
    if separator not in (";", "\t"):
        rules = {"": PLAIN, "thousands": THOUSANDS, "decimal comma": DECIMAL_COMMA}
    is_number = pc.match_substring_regex(cells, "|".join(f"(?:{pattern})" for pattern in rules.values()))
    is_odd = pc.fill_null(pc.invert(is_number), False)
    odd = np.flatnonzero(is_odd.to_numpy())
    if 2 * len(odd) >= len(cells) - cells.null_count:
        return None
    cells = pc.if_else(is_odd, pa.scalar(None, pa.string()), cells)
    for rule, pattern in rules.items():
        if pc.all(pc.match_substring_regex(cells, pattern), min_count=0).as_py():
            return _finite(cells, rule, name, first_row, [(int(k), texts[int(k)].as_py()) for k in odd], strict)
    raise ValueError(
        f"column {name!r}: decimal points and decimal commas are mixed; write one of them, or choose columns with "
        "--column"
    )


def _tidied(cells: Any) -> Any:
    """Without signs of percent and of money, true minus signs, and spaces between thousands."""
    import pyarrow.compute as pc

    cells = pc.replace_substring_regex(cells, r"\s*%$", "")
    cells = pc.replace_substring(cells, "\N{MINUS SIGN}", "-")
    cells = pc.replace_substring_regex(cells, rf"^([+-]?){MONEY}\s*", r"\1")
    cells = pc.replace_substring_regex(cells, rf"\s*{MONEY}$", "")
    for _ in range(2):  # digits that two of them share
        cells = pc.replace_substring_regex(cells, rf"(\d){SPACES}(\d{{3}})", r"\1\2")
    return cells


def _finite(cells: Any, rule: str, name: str, first_row: int, odd: list[tuple[int, str]], strict: bool) -> Numbers:
    """The numbers of a column, missing where it is odd or no number is so large.

    Args:
        odd: rows, from 0, and what they hold.
    """
    values = _cast(cells, rule)
    notes = [f"column {name!r}: {SAID[rule]}"] if rule else []
    if odd:
        row, text = odd[0]
        told = "not finite" if text.lower().lstrip("+-") in ("inf", "infinity") else f"{text[:40]!r} is not a number"
        notes.append(odd_cells(name, first_row + row, told, len(odd), strict=strict))
    is_large = np.isinf(values)
    if is_large.any():
        notes.append(
            odd_cells(name, first_row + int(np.argmax(is_large)), "not finite", int(is_large.sum()), strict=strict)
        )
        values = np.where(is_large, np.nan, values)
    return Numbers(values, "; ".join(notes))


def odd_cells(name: str, row: int, told: str, count: int, *, strict: bool) -> str:
    """What is said of cells that are no numbers.

    Raises:
        ValueError: they are not allowed.
    """
    said = f"row {row}, column {name!r}: {told} ({count} such cells)"
    if strict:
        raise ValueError(f"{said}; leave the cell empty, choose columns with --column, or read without --strict")
    return f"{said}: read as missing"


def _cast(cells: Any, rule: str) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if rule == "decimal comma":
        cells = pc.replace_substring(pc.replace_substring(cells, ".", ""), ",", ".")
    elif rule == "thousands":
        cells = pc.replace_substring(cells, ",", "")
    bare = pc.replace_substring_regex(cells, r"^\+", "")
    return np.asarray(pc.cast(bare, pa.float64()).to_numpy(), np.float64)
