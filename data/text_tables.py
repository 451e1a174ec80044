"""Convert tables that are drawn as text, with lines of dashes or with columns separated by spaces, to CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from rfa.data.header import END_OF_PROPERTIES, is_data
from rfa.data.table import MISSING

RULE: Final = re.compile(r"[\s|+:=-]*(-{3,}|={3,}|:-+|-+:)[\s|+:=-]*")
FOOTER: Final = re.compile(
    r"\|?\s*\(?\d+ rows?( in set.*| selected.*| affected.*|\s+\d+ columns.*)?[.)]?", re.IGNORECASE
)
# Characters of table frames and their replacements.
FRAMES: Final = str.maketrans(
    dict.fromkeys("│┃┆┇┊║", "|")
    | dict.fromkeys("─━═╌╍", "-")
    | dict.fromkeys("┌┬┐├┼┤└┴┘╞╪╡┏┳┓┡╇┩╔╦╗╠╬╣╚╩╝╭╮╰╯┠╂┨╟╫╢", "+")
)
AVERAGE: Final = re.compile(r"average|mean|mittelwert|durchschn\.?|moyenne", re.IGNORECASE)
GAP: Final = re.compile(r"\s{2,}|\t")
# Lines above a header, such as `Instrument:,UV-1800`.
TITLE: Final = re.compile(r'"?[^\d,;\t|":]{1,40}[:=]"?\s*([,;\t|]|$)')
# Minimum fraction of lines that have bars, or as many cells as the others.
ALIGNED_SHARE: Final = 0.8
MOST_CHARACTERS: Final = 2**26
CLOCK: Final = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\b\.?)?(?: (?:UTC|GMT|[A-Z]{2,4}T|[+-]\d{4})\b)?"
DAY: Final = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})"
CELL: Final = re.compile(rf'"[^"]*"|{CLOCK}(?=\s|$)|\S+')
DATED_CELL: Final = re.compile(rf'"[^"]*"|{DAY}[ _]{CLOCK}(?=\s|$)|{CLOCK}(?=\s|$)|\S+')
# Types of columns, which some programs write in a line below the names.
TYPE: Final = re.compile(r"<\w+>|(?:Date|DateTime|String|Float\d+|Int\d+|Bool)\??")
FEWEST_ROWS: Final = 3
# A table without a header must have at least this many lines and cells per line, and a time in each line.
FEWEST_LINES, FEWEST_CELLS = 8, 4
MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|1\d{9}\.\d+")
# Maximum fraction of lines between the rows that have another number of cells, such as sums and notes.
MOST_OTHERS: Final = 0.2


def split_spaces(line: str) -> list[str]:
    """Return the cells of a line that are separated by spaces. A date and a time of day are one cell."""
    return [cell.strip('"').removesuffix(":") for cell in DATED_CELL.findall(line)]


def split_all_spaces(line: str) -> list[str]:
    """Return the cells of a line that are separated by spaces. A date and a time of day are separate cells."""
    return [cell.strip('"').removesuffix(":") for cell in CELL.findall(line)]


def as_separated(text: str, preview: Sequence[str], separators: str) -> str | None:
    """Return the rows of a table that is drawn as text, with separators between their cells. Return None for other
    text.

    Args:
        text: Text of the file.
        preview: First lines of the text.
        separators: Characters that separate cells in text that is not a drawn table.
    """
    if len(text) > MOST_CHARACTERS or any(END_OF_PROPERTIES.fullmatch(line.strip()) for line in preview):
        return None
    if any(line[:1] in "┌│╭╔┏" for line in preview if line):
        text, preview = text.translate(FRAMES), [line.translate(FRAMES) for line in preview]
    if any(line.rstrip().endswith("|") for line in preview) and all(line.count("|") <= 1 for line in preview):
        text, preview = re.sub(r"(?m) +\|\s*$", "", text), [re.sub(r" +\|\s*$", "", line) for line in preview]
    if any(RULE.fullmatch(line) for line in preview) and not _are_separated(preview, separators):
        lines = [line.strip() for line in text.splitlines()]
        rows = [line for line in lines if line and not (RULE.fullmatch(line) or FOOTER.fullmatch(line))]
        header = next((row for row in rows if not re.search(r"\d", row)), "")
        rows = [row for k, row in enumerate(rows) if row != header or row not in rows[:k]]
        if all(re.match(r"(Row|\d+) *\||[^|]*$|\|", row) and row.count("|") < 2 for row in rows):
            rows = [row.replace("|", " ") for row in rows]  # bars after the numbers of the rows only, as in Julia
        if sum("|" in row for row in rows) >= ALIGNED_SHARE * len(rows):
            begin = next(k for k, row in enumerate(rows) if "|" in row)
            if rows[begin].count("|") == rows[-1].count("|"):
                rows = rows[begin:]  # text above the first line of dashes is a title
            if rows[0].startswith("|"):  # otherwise an empty last cell needs its bar
                rows = [row.removeprefix("|").removesuffix("|").strip() for row in rows]
            if rows[0].count("|") == rows[-1].count("|"):
                return "\n".join(rows)
            rows = [row.replace("|", " ") for row in rows]  # bars around the table only, as drawn by Stata
        return _spaced(rows, len(preview))
    has_separators = sum(any(sign in line for sign in separators) for line in preview)
    if has_separators > (1 - ALIGNED_SHARE) * len(preview):
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    begin = next((k for k, line in enumerate(lines) if not line.startswith("#")), 0)
    return _spaced(lines[begin:], len(preview))


def _are_separated(preview: Sequence[str], separators: str) -> bool:
    """Return whether the last lines have the same number of separators, and lines of dashes occur only above them."""
    for sign in separators.replace("|", ""):
        counts = [line.count(sign) for line in preview]
        if len(counts) >= FEWEST_LINES and len({*counts[-FEWEST_LINES:]}) == 1 and counts[-1] > 1:
            first = counts.index(counts[-1])
            return not any(RULE.fullmatch(line) for line in preview[max(0, first - 1) :])
    return False


def _spaced(lines: Sequence[str], shown: int) -> str | None:
    for split in (split_spaces, split_all_spaces):
        if (found := _rows_of_values(lines, split, shown)) is not None:
            return found
    if (timed := _timed_rows(lines)) is not None:
        return timed
    if _are_aligned(lines[:shown]):
        return "\n".join(GAP.sub("\t", row) for row in lines)
    return _rows_of_values(lines, split_spaces, shown, is_named=False)


def _timed_rows(lines: Sequence[str]) -> str | None:
    """Convert lines without a header to text with tabs between the cells, and with numbers as column names. Return None
    unless all lines have equally many cells and one column contains times."""
    rows = [split_spaces(line) for line in lines]
    width = len(rows[0]) if rows else 0
    if len(rows) < FEWEST_LINES or width < FEWEST_CELLS or any(len(row) != width for row in rows):
        return None
    if not any(all(MOMENT.fullmatch(cell) for cell in column) for column in zip(*rows, strict=True)):
        return None
    names = [f"column {k}" for k in range(1, width + 1)]
    return "\n".join("\t".join(cells) for cells in [names, *rows])


def _rows_of_values(
    lines: Sequence[str], split: Callable[[str], list[str]], shown: int, *, is_named: bool = True
) -> str | None:
    """Return the rows of a table, with tabs between the cells. Return None if there are none.

    Rows have as many cells as the header above them, or one more for a row number or year.

    Args:
        is_named: Whether the line above the rows must have a name for each column. Otherwise it is a title.
    """
    first = next((k for k in range(min(shown, len(lines))) if _begins(lines[k:], split)), None)
    if first is None:
        return None
    count = len(split(lines[first]))
    header = _names(lines[first - 1], split, count) if first else []
    if first > 1 and len(split(lines[first - 2])) == count > len(header) and not any(is_data([c]) for c in header):
        lines = [*lines[: first - 1], *lines[first:]]  # a line of units, which the first columns do not have
        first, header = first - 1, split(lines[first - 2])
    if first > 1 and all(map(TYPE.fullmatch, header)):
        lines = [*lines[: first - 1], *lines[first:]]
        first, header = first - 1, split(lines[first - 2])
    if is_named and first and len(header) not in (count, count - 1) and not is_data(header):
        return None
    header = ["", *header] if len(header) == count - 1 else header if len(header) == count else []
    rows = [cells for line in lines[first:] if len(cells := _without_remarks(split(line), count)) == count]
    repeated = sum(cells[1:] == header[1:] for cells in rows)
    rows = [cells for cells in rows if cells[1:] != header[1:] and not AVERAGE.fullmatch(cells[0])]
    column = next((k for k, cell in enumerate(rows[0]) if _is_value(cell)), 0) if rows else 0
    while rows and not (_is_value(rows[-1][column]) or rows[-1][column].lower() in MISSING):
        rows.pop()  # a remark below the rows
    if len(lines) - first - repeated - len(rows) > max(3, MOST_OTHERS * (len(lines) - first)):
        return None
    header = ["time" if re.fullmatch(CLOCK, name) else name for name in header]
    top = first - bool(header)
    while top and len(above := split(lines[top - 1])) == count and not any(is_data([cell]) for cell in above):
        top -= 1
    headers = [*(split(line) for line in lines[top : first - bool(header)]), *([header] if header else [])]
    titles = [line.replace("\t", " ") for line in lines[:top] if not is_data(split(line))]
    return "\n".join([*titles, *("\t".join(cells) for cells in [*headers, *rows])])


def _names(line: str, split: Callable[[str], list[str]], count: int) -> list[str]:
    """Return the cells of a header line. Names that consist of several words are separated by at least two spaces."""
    names, spaced = split(line), GAP.split(line.strip())
    return spaced if len(names) not in (count, count - 1) and len(spaced) == count else names


def _without_remarks(cells: list[str], count: int) -> list[str]:
    """Return the first `count` cells of a row if the cells after them are words. Other rows are unchanged."""
    return cells[:count] if not any(re.search(r"\d", cell) for cell in cells[count:]) else cells


def _begins(lines: Sequence[str], split: Callable[[str], list[str]]) -> bool:
    """Return whether lines begin with rows of numbers and dates that have the same number of cells."""
    rows = [split(line) for line in lines[:FEWEST_ROWS]]
    are_alike = len(rows) == FEWEST_ROWS and len({len(row) for row in rows}) == 1 and len(rows[0]) > 1
    return are_alike and all(sum(_is_value(cell) for cell in row) * 2 >= len(row) for row in rows)


def _is_value(cell: str) -> bool:
    """Return whether a cell is a date or a number with or without a unit."""
    return is_data([cell]) or re.fullmatch(r"[+-]?\d+([.,]\d+)?(%|[A-Za-zµ]{1,3}(/s)?)", cell) is not None


def count_titles(preview: Sequence[str]) -> int:
    """Return the number of lines above the header that name a property of the file. A single line may be a header, so
    that the number is zero or at least two."""
    count = next((k for k, line in enumerate(preview) if not TITLE.match(line)), 0)
    return count if count > 1 else 0


def _are_aligned(lines: Sequence[str]) -> bool:
    """Return whether most lines have as many cells as the header or, if there is no header, the same number of cells.
    Cells are separated by at least two spaces."""
    counts = {line: len(GAP.split(line.strip())) for line in lines if not RULE.fullmatch(line)}
    found = [counts[line] for line in lines if line in counts]
    usual = max(found, key=found.count, default=0)
    headers = [count for line, count in counts.items() if not re.search(r"\d", line)]
    is_headed = not headers or usual in headers
    return usual > 1 and is_headed and found.count(usual) >= ALIGNED_SHARE * len(found)
