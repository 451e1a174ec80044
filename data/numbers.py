"""Cells of text as numbers: words for what is missing, decimal commas, separators of thousands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from rfa.data.clock import clock_column
from rfa.data.table import MISSING, Table

# What people write for a thousand apart, other than a point or a comma.
SPACES: Final = "[ '\u2019\u00a0\u202f_]"
MONEY: Final = r"\p{Sc}"
EXPONENT: Final = r"([eE][+-]?\d+)?"
PLAIN: Final = rf"^[+-]?(\d+\.?\d*|\.\d+){EXPONENT}$"
DECIMAL_COMMA: Final = rf"^[+-]?(\d{{1,3}}(\.\d{{3}})+(,\d+)?|\d+(,\d+)?|,\d+){EXPONENT}$"
THOUSANDS: Final = rf"^[+-]?(\d{{1,3}}(,\d{{3}})+(\.\d*)?|\d+\.?\d*|\.\d+){EXPONENT}$"
POINTS: Final = rf"^[+-]?(\d{{1,3}}(\.\d{{3}})+|\d+){EXPONENT}$"
# Plain numbers that could have points between thousands.
MAY_HAVE_POINTS: Final = r"^[+-]?([1-9]\d{0,2}\.\d{3}|\d{1,3})$"
# What separates the cells where a comma stands before decimals.
BESIDE_COMMAS: Final = (";", "\t")
# By their order where a comma stands before decimals, and where a point does.
RULES: Final = {"": PLAIN, "points": POINTS, "decimal comma": DECIMAL_COMMA, "thousands": THOUSANDS}
BESIDE_POINTS: Final = ("", "points", "thousands", "decimal comma")
MARKS: Final = {"": ".", "points": ",", "decimal comma": ",", "thousands": "."}

SAID: Final = {
    "": "", "decimal comma": "a comma stands before decimals", "thousands": "commas stand between thousands",
    "points": "points stand between thousands",
}  # fmt: skip
IN_DOUBT: Final = (
    "a point before three digits is taken to stand before decimals; where it stands between thousands, write the "
    "numbers without it"
)


@dataclass(frozen=True)
class Numbers:
    """values `[N]`, NaN = missing; note: what was decided about the column, or empty."""

    values: np.ndarray
    note: str = ""


@dataclass(frozen=True)
class Writing:
    """How numbers are written in the columns of a table."""

    table: Table

    @cached_property
    def marks(self) -> set[str]:
        """What stands before decimals, by the columns that tell; the clock is none."""
        clock = clock_column(self.table.columns)
        columns = (column for name, column in self.table.columns.items() if name != clock)
        return {_mark(column, self.table.separator) for column in columns} - {""}


def read_numbers(writing: Writing, name: str, *, strict: bool = False) -> Numbers | None:
    """A column of text as numbers; None: it holds labels (fewer than half of what is there are numbers).

    A comma is for decimals where a semicolon or a tab separates the cells, else for thousands, unless only the other
    reading fits every cell. A few cells that are no numbers, or not finite, are missing, and said. Of points that could
    stand between thousands see `_settled`.

    Raises:
        ValueError: decimal points and commas are mixed; with `strict`, a cell is no number where most are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = writing.table
    texts = _present(table.columns[name])
    cells, odd = texts, np.array([], int)
    rule: str | None = ""
    if not _fits(texts, PLAIN):
        cells = _tidied(texts)
        is_number = pc.match_substring_regex(cells, "|".join(f"(?:{form})" for form in RULES.values()))
        is_odd = pc.fill_null(pc.invert(is_number), False)
        odd = np.flatnonzero(is_odd.to_numpy())
        if 2 * len(odd) >= len(cells) - cells.null_count:
            return None
        cells = pc.if_else(is_odd, pa.scalar(None, pa.string()), cells)
        rule = _rule(cells, table.separator)
    if rule is None:
        raise ValueError(
            f"column {name!r}: decimal points and decimal commas are mixed; write one of them, or choose columns with "
            "--column"
        )
    rule, doubt = _settled(rule, cells, writing)
    notes = [f"column {name!r}: {said}" for said in (SAID[rule], doubt) if said]
    return _finite(cells, rule, name, table.first_row, [(int(k), texts[int(k)].as_py()) for k in odd], notes, strict)


def _present(column: Any) -> Any:
    """The cells without spaces around them; what stands for nothing is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pc.utf8_trim_whitespace(column)
    is_missing = pc.is_in(pc.utf8_lower(cells), pa.array(MISSING))
    return pc.if_else(is_missing, pa.scalar(None, pa.string()), cells)


def _fits(cells: Any, form: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.match_substring_regex(cells, form), min_count=0).as_py())


def _rule(cells: Any, separator: str | None) -> str | None:
    """The first rule that fits every cell."""
    order = RULES if separator in BESIDE_COMMAS else BESIDE_POINTS
    return next((rule for rule in order if _fits(cells, RULES[rule])), None)


def _settled(rule: str, cells: Any, writing: Writing) -> tuple[str, str]:
    """The rule for plain numbers whose points may stand between thousands, and what is said where that is in doubt.

    Such are 999 and 1.007. What stands before decimals in the table tells. Where nothing does three digits behind every
    point are decimals, and so are those of numbers some of which have none; but that is in doubt.
    """
    if rule or not _may_have_points(cells):
        return rule, ""
    if writing.marks == {","}:
        return "points", ""
    return "", "" if writing.marks == {"."} or _are_pointed(cells) else IN_DOUBT


def _mark(column: Any, separator: str | None) -> str:
    """What stands before decimals in a column of numbers; nothing where it has none, or tells nothing.

    Where it may have points between thousands, and not behind every number, what separates the cells tells, as it does
    of commas.
    """
    import pyarrow as pa

    if not pa.types.is_string(column.type):
        return ""
    cells = _present(column)
    if not _fits(cells, PLAIN):
        cells = _tidied(cells)
    rule = _rule(cells, separator)
    if rule != "":
        return "" if rule is None else MARKS[rule]
    if _may_have_points(cells):
        return "," if separator in BESIDE_COMMAS and not _are_pointed(cells) else ""
    return "." if _is_pointed(cells) else ""


def _may_have_points(cells: Any) -> bool:
    """Whether the points of plain numbers may stand between thousands."""
    return _is_pointed(cells) and _fits(cells, MAY_HAVE_POINTS)


def _is_pointed(cells: Any) -> bool:
    """Whether a number has a point."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring(cells, "."), min_count=0).as_py())


def _are_pointed(cells: Any) -> bool:
    """Whether all of them have."""
    return _fits(cells, r"\.")


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


def _finite(
    cells: Any, rule: str, name: str, first_row: int, odd: list[tuple[int, str]], notes: list[str], strict: bool
) -> Numbers:
    """The numbers of a column, missing where it is odd or no number is so large.

    Args:
        odd: rows, from 0, and what they hold.
        notes: what was decided so far.
    """
    values = _cast(cells, rule)
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

    if MARKS[rule] == ",":
        cells = pc.replace_substring(pc.replace_substring(cells, ".", ""), ",", ".")
    elif rule == "thousands":
        cells = pc.replace_substring(cells, ",", "")
    bare = pc.replace_substring_regex(cells, r"^\+", "")
    return np.asarray(pc.cast(bare, pa.float64()).to_numpy(), np.float64)
