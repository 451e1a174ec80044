"""Convert text cells to numbers. Cells may have decimal commas, thousands separators, currency signs and percent
signs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import clock_column
from rfa.data.marks import present_cells
from rfa.data.number_forms import (
    MARKS,
    PLAIN,
    RULES,
    SEPARATORS_WITH_DECIMAL_COMMA,
    all_have_points,
    choose_rule,
    fits,
    has_point,
    may_have_thousands_points,
)
from rfa.data.switches import switches_among_numbers
from rfa.data.table import Table
from rfa.data.units import NOT_ZERO, Units, split_units

# Thousands separators other than points and commas.
SPACES: Final = "[ '\u2019\u00a0\u202f_]"
MONEY: Final = r"\p{Sc}"
# Maximum length of a word that marks missing values in most cells of a column, and minimum number of different numbers
# next to it.
LONGEST_MARK, FEWEST_NUMBERS = 4, 5
# Maximum number of words among numbers that are read as missing if they are a fifth of the cells.
MOST_WORDS: Final = 5
# A pattern for signs, bounds or marks around a number, the replacement, and a note.
SIGNS: Final = (
    (rf"^\(\s*{MONEY}?\s*(\d[^()]*?)\s*{MONEY}?\s*\)$", r"-\1", "numbers in brackets are negative"),
    (r"^(\d[\d.,]*)\s*-$", r"-\1", "a minus sign after a number is read as if it were before it"),
    (r"^(<|>|≤|≥|<=|>=)\s*([+-]?[\d.])", r"\2", "bounds are read as numbers, such as <0.05 as 0.05"),
    (r"^([+-])\s+([\d.])", r"\1\2", "blanks after signs are ignored"),
    (
        r"^([+-]?[\d.,]*\d[.]?)\s*(?:[*#†‡]+|\[\w{1,3}\]|\(\pL{1,2}\)|[¹²³⁰⁴-⁹ᵃ-ᶻ]+)$",
        r"\1",
        "marks after numbers, such as * [1] (p) ¹, are ignored",
    ),
)
# Flags after a number and a blank, such as Eurostat's p for provisional or e for estimated. Units and multiples are not
# flags.
FLAG: Final = r"^([+-]?[\d.,]*\d)\s+([bcdefinprsuz]{1,3})$"
NO_FLAGS: Final = ("sec", "in", "ns", "us", "ppb")

RULE_NOTES: Final = {
    "": "", "decimal comma": "commas are decimal marks", "thousands": "commas separate thousands",
    "points": "points separate thousands",
}  # fmt: skip
AMBIGUOUS_POINTS: Final = (
    "a point before three digits is read as a decimal point; if it separates thousands, write the numbers without it"
)


@dataclass(frozen=True)
class Numbers:
    """The numbers of a column.

    Attributes:
        values: Numbers `[N]`. NaN is a missing value.
        notes: Notes on how the column was read.
        unit: Unit of the cells. An empty string if they have none.
    """

    values: np.ndarray
    notes: tuple[str, ...] = ()
    unit: str = ""


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are written in the columns of a table.

    Attributes:
        table: Table with the columns.
        missing: Words for missing values in addition to the usual ones.
        reads_switches: Whether words such as on and off among numbers are read as 1 and 0.
    """

    table: Table
    missing: tuple[str, ...] = ()
    reads_switches: bool = False

    @cached_property
    def decimal_marks(self) -> set[str]:
        """The decimal marks in the number columns, except the time column. Columns without a decimal mark are not
        considered."""
        clock = clock_column(self.table.columns)
        columns = (column for name, column in self.table.columns.items() if name != clock)
        return {_decimal_mark(column, self.table.separator) for column in columns} - {""}


def parse_numbers(writing: NumberFormat, name: str, *, strict: bool = False) -> Numbers | None:
    """Return a column of text as numbers. Return None for a column of labels, in which fewer than half of the cells are
    numbers.

    A comma is a decimal comma if semicolons or tabs separate the cells. Otherwise it separates thousands, unless only
    the other reading fits every cell. If a few cells are not finite numbers, they are missing, with a note. See
    `_resolve_points` for points that may separate thousands.

    Raises:
        ValueError: If decimal points and commas are mixed, or `strict` is set and a cell is not a number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = writing.table
    if (plain := _plain_numbers(table.columns[name])) is not None:
        values, cells = plain
        points, note = _resolve_points("", cells, writing)
        if not points:
            return Numbers(values, (f"column {name!r}: {note}",) if note else ())
    texts, notes = present_cells(table.columns[name], writing.missing)
    cells, units, odd = texts, None, np.array([], int)
    rule: str | None = ""
    if not fits(texts, PLAIN):
        if writing.reads_switches:
            texts, more = switches_among_numbers(texts)
            notes += more
        cells, signs, units = _without_units(texts)
        is_odd = _is_odd(cells, texts)
        if _are_labels(texts, is_odd):
            return None
        odd = np.flatnonzero(is_odd.to_numpy())
        cells = pc.if_else(is_odd, pa.scalar(None, pa.string()), cells)
        rule, notes = choose_rule(cells, table.separator), [*signs[0], *notes, *signs[1]]
    if rule is None:
        raise ValueError(
            f"column {name!r} mixes decimal points and decimal commas; use one of them, or choose columns with --column"
        )
    rule, note = _resolve_points(rule, cells, writing)
    notes = [f"column {name!r}: {text}" for text in (RULE_NOTES[rule], note, *notes) if text]
    unreadable = [(int(k), texts[int(k)].as_py()) for k in odd]
    read = _finite(cells, rule, name, table.first_row, unreadable, notes, strict=strict)
    if units is None:
        return read
    return Numbers(units.convert(read.values), read.notes, units.unit)


def _without_units(texts: Any) -> tuple[Any, tuple[list[str], list[str]], Units | None]:
    """Return the cells without signs, units and flags, the notes on the signs and on the rest, and the units."""
    import pyarrow.compute as pc

    cells, signs = _strip_symbols(texts)
    cells = _separate_percent(texts, cells)
    if not pc.any(_is_odd(cells, texts), min_count=0).as_py():
        return cells, (signs, []), None
    if (units := split_units(cells)) is not None:
        return units.cells, (signs, [units.note]), units
    if (unflagged := _without_flags(cells)) is not None:
        return unflagged, (signs, ["letters after numbers are flags and are ignored"]), None
    return cells, (signs, []), None


def _plain_numbers(column: Any) -> tuple[np.ndarray, Any] | None:
    """Return the numbers of a column that contains only plain finite numbers and empty cells. Also return its cells,
    with null for empty cells.

    This is the fast path for most files. Return None for other columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_empty = pc.equal(column, "")
    cells = pc.if_else(is_empty, pa.scalar(None, pa.string()), column) if pc.any(is_empty).as_py() else column
    try:
        values = np.asarray(pc.cast(cells, pa.float64()).to_numpy(), np.float64)
    except pa.ArrowInvalid:
        return None
    is_finite = int(np.isfinite(values).sum()) == len(cells) - cells.null_count
    return (values, cells) if is_finite else None


def _is_odd(cells: Any, texts: Any) -> Any:
    """Return whether each cell is not a number. Null cells are included unless they are missing in `texts`."""
    import pyarrow.compute as pc

    is_number = pc.match_substring_regex(cells, "|".join(f"(?:{form})" for form in RULES.values()))
    is_odd = pc.fill_null(pc.invert(is_number), False)
    return pc.or_(is_odd, pc.and_(pc.is_null(cells), pc.is_valid(texts)))


def _without_flags(cells: Any) -> Any:
    """Return the cells without flags after numbers, or None if there are no flags or most numbers have one."""
    import pyarrow.compute as pc

    parts = pc.fill_null(pc.match_substring_regex(cells, FLAG), False)
    count = pc.sum(parts, min_count=0).as_py()
    flags = set(pc.unique(pc.replace_substring_regex(cells.filter(parts), FLAG, r"\2")).to_pylist())
    bare = pc.sum(pc.match_substring_regex(cells, PLAIN), min_count=0).as_py() or 0
    if not count or count > bare or flags & set(NO_FLAGS):
        return None
    return pc.replace_substring_regex(cells, FLAG, r"\1")


def _are_labels(texts: Any, is_odd: Any) -> bool:
    """Return whether the cells are labels. They are labels if at least half of the cells are not numbers, unless these
    cells mark missing values. They are also labels if at least a fifth of the cells are not numbers and contain more
    than MOST_WORDS different words."""
    import pyarrow.compute as pc

    count, cells = pc.sum(is_odd, min_count=0).as_py(), len(texts) - texts.null_count
    if 2 * count >= cells:
        return not _is_mark(texts, is_odd)
    return 5 * count >= cells and pc.count_distinct(texts.filter(is_odd)).as_py() > MOST_WORDS


def _is_mark(texts: Any, is_odd: Any) -> bool:
    """Return whether all cells that are not numbers contain the same short word, which then marks missing values."""
    import pyarrow.compute as pc

    words = pc.unique(texts.filter(is_odd)).to_pylist()
    numbers = pc.count_distinct(texts.filter(pc.invert(is_odd))).as_py()
    return len(words) == 1 and len(words[0]) <= LONGEST_MARK and numbers >= FEWEST_NUMBERS


def _separate_percent(texts: Any, cells: Any) -> Any:
    """Return the cells of a column. If some cells are in percent and others are not, the cells of the rarer kind are
    replaced by null, because a column with both 5 % and 0.05 is not a series."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_percent = pc.fill_null(pc.ends_with(texts, "%"), False)
    count = pc.sum(is_percent, min_count=0).as_py()
    if not count:
        return cells
    is_bare = pc.and_(pc.invert(is_percent), pc.fill_null(pc.match_substring_regex(cells, NOT_ZERO), False))
    bare = pc.sum(is_bare).as_py()
    if bare > count:
        return pc.if_else(is_percent, texts, cells)
    return pc.if_else(is_bare, pa.scalar(None, pa.string()), cells) if bare else cells


def _resolve_points(rule: str, cells: Any, writing: NumberFormat) -> tuple[str, str]:
    """Return the rule for plain numbers whose points may separate thousands, such as 999 and 1.007, and a note if the
    rule is uncertain.

    The decimal marks of other columns decide. Without any, points are decimal points, which is uncertain if some
    numbers have none.
    """
    if rule or not may_have_thousands_points(cells):
        return rule, ""
    if writing.decimal_marks == {","}:
        return "points", ""
    return "", "" if writing.decimal_marks == {"."} or all_have_points(cells) else AMBIGUOUS_POINTS


def _decimal_mark(column: Any, separator: str | None) -> str:
    """Return the decimal mark in a column of numbers, or an empty string if no number has one.

    If points may separate thousands and not every number has one, the cell separator decides, as for commas.
    """
    import pyarrow as pa

    if not pa.types.is_string(column.type):
        return ""
    if (plain := _plain_numbers(column)) is not None:
        cells = plain[1]
    else:
        cells, _ = present_cells(column)
        if not fits(cells, PLAIN):
            cells, _ = _strip_symbols(cells)
        rule = choose_rule(cells, separator)
        if rule != "":
            return "" if rule is None else MARKS[rule]
    if may_have_thousands_points(cells):
        return "," if separator in SEPARATORS_WITH_DECIMAL_COMMA and not all_have_points(cells) else ""
    return "." if has_point(cells) else ""


def _strip_symbols(cells: Any) -> tuple[Any, list[str]]:
    """Return the cells without percent and currency signs, brackets, Unicode minus signs and spaces between thousands,
    and notes on cells with an unusual sign or bound.
    """
    import pyarrow.compute as pc

    notes: list[str] = []
    cells = pc.replace_substring_regex(cells, r"\s*%$", "")
    cells = pc.replace_substring(cells, "\N{MINUS SIGN}", "-")
    cells = pc.replace_substring_regex(cells, rf"^([+-]?){MONEY}\s*", r"\1")
    cells = pc.replace_substring_regex(cells, rf"\s*{MONEY}$", "")
    for pattern, plain, note in SIGNS:
        if pc.any(pc.match_substring_regex(cells, pattern), min_count=0).as_py():
            cells, notes = pc.replace_substring_regex(cells, pattern, plain), [*notes, note]
    for _ in range(2):  # matches do not overlap, so 1 000 000 needs two passes
        cells = pc.replace_substring_regex(cells, rf"(\d){SPACES}(\d{{3}})", r"\1\2")
    return cells, notes


def _finite(
    cells: Any,
    rule: str,
    name: str,
    first_row: int,
    unreadable: list[tuple[int, str]],
    notes: list[str],
    *,
    strict: bool,
) -> Numbers:
    """Return the numbers of a column. Unreadable and infinite ones are missing.

    Args:
        unreadable: Rows of unreadable cells, from 0, and the text of the cells.
        notes: Notes on the column so far.
    """
    values = _cast(cells, rule)
    if unreadable:
        row, text = unreadable[0]
        reason = f"{text[:40]!r} is not a number"
        if text.lower().lstrip("+-") in ("inf", "infinity"):
            reason = "the value is not finite"
        elif any(re.search(form, text) for form in RULES.values()):
            reason = f"{text[:40]!r} has no unit, but other cells have one"
        notes.append(report_unreadable(name, first_row + row, reason, len(unreadable), strict=strict))
    is_large = np.isinf(values)
    if is_large.any():
        notes.append(
            report_unreadable(
                name,
                first_row + int(np.argmax(is_large)),
                "the value is not finite",
                int(is_large.sum()),
                strict=strict,
            )
        )
        values = np.where(is_large, np.nan, values)
    return Numbers(values, tuple(notes))


def report_unreadable(name: str, row: int, reason: str, count: int, *, strict: bool) -> str:
    """Return the note on cells that are not numbers.

    Raises:
        ValueError: If `strict` is set.
    """
    message = f"row {row}, column {name!r}: {reason} (cells in total: {count})"
    if strict:
        raise ValueError(
            f"{message}; leave the cell empty, choose columns with --column, or read the file without --strict"
        )
    return f"{message}; read as missing"


def _cast(cells: Any, rule: str) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if MARKS[rule] == ",":
        cells = pc.replace_substring(pc.replace_substring(cells, ".", ""), ",", ".")
    elif rule == "thousands":
        cells = pc.replace_substring(cells, ",", "")
    bare = pc.replace_substring_regex(cells, r"^\+", "")
    return np.asarray(pc.cast(bare, pa.float64()).to_numpy(), np.float64)
