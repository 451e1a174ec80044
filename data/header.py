"""Find the header of a text table, and combine the names in several header lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from rfa.data.clock_choice import CLOCK_NAMES
from rfa.data.clock_numbers import RUNNING_WORDS
from rfa.data.table import MISSING
from rfa.data.units import TIMES, named
from rfa.data.wide import step_columns

# Rows may be numbered as in `12)`.
NUMBER: Final = re.compile(r"[+-]?(\d[\d.,']*|\.\d+)([eE][+-]?\d+)?%?|\d+\)")
DATE: Final = re.compile(r"\d{1,4}[-/.]\d{1,2}([-/.]\d{1,4})?([T _].*)?|\d{1,2}:\d{2}(:\d{2})?.*")
PLAIN: Final = re.compile(r"[+-]?\d+(\.\d+)?")
DECIMAL: Final = re.compile(r"\d*[.,]?\d+")
# Maximum number of lines below a header that describe the columns, such as units and types.
MOST_DESCRIPTIONS: Final = 8
# A table of two columns has at most this number of header lines. Further lines above the rows are properties.
MOST_NAMES: Final = 4
# Rows with more cells are not described by numbers.
WIDE: Final = 12
# Number of last rows of a preview that show which columns have values.
LAST: Final = 4
TYPE: Final = re.compile(r"\d+[sdn]")
# Line at the end of the properties of a file.
END_OF_PROPERTIES: Final = re.compile(r"\W*(end[ _](of[ _])?header|startofdata|\[data\]|\*end\*)\W*", re.IGNORECASE)
COMMENT: Final = re.compile(r"[#%!]+\s*")
# Maximum number of comments above the rows that are compared with the rows to find a header, and number of these rows.
MOST_COMMENTS: Final = 6
COMPARED: Final = 6


def is_data(cells: Sequence[str]) -> bool:
    """Return whether a row contains only numbers and dates, so that it is not a header."""
    filled = [cell.strip() for cell in cells if cell.strip().lower() not in MISSING]
    return bool(filled) and all(map(_is_value, filled))


def _is_value(cell: str) -> bool:
    return bool(NUMBER.fullmatch(cell) or DATE.fullmatch(cell))


def is_headless(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row belongs to the table and is not its header.

    The first row belongs to the table if it contains only values. It also belongs to the table if it contains a date,
    or numbers that do not increase, and no names in columns of values.

    Args:
        first: Cells of the first row.
        rows: Cells of some of the rows below it.
    """
    cells = [cell.strip() for cell in first]
    dates = [cell for cell in cells if DATE.fullmatch(cell) and not DECIMAL.fullmatch(cell)]
    numbers = [float(cell) for cell in cells if PLAIN.fullmatch(cell)]
    is_unsorted = len(numbers) > 1 and numbers != sorted(numbers)  # numbers in a header increase
    return is_data(first) or (bool(dates or is_unsorted) and _is_like(first, rows))


def _is_like(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a row has values in all columns in which the rows below have values. If the values of the row are
    the time steps of a wide table, return False."""
    cells = [cell.strip() for cell in first]
    below = [[row[k].strip() for row in rows if len(row) == len(first)] for k in range(len(first))]
    below = [[cell for cell in column if cell.lower() not in MISSING] for column in below]
    if len(step_columns(cells)) > 1:
        return False
    are_values = [bool(column) and all(map(_is_value, column)) for column in below]
    return any(are_values) and all(_is_value(cell) for cell, ours in zip(cells, are_values, strict=True) if ours)


def count_descriptions(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of rows directly below a header that describe the columns.

    These rows have no digits, no digits in their first cell, or only types, as in files of the USGS. The rows below
    them have digits in their first cell.
    """

    def describes(row: Sequence[str]) -> bool:
        first = row[0].strip()
        if len(row) > WIDE and is_data(row[1:]):
            return False  # a row of a wide table, which has a label
        is_label = first.lower() not in MISSING and not re.search(r"\d", first)
        return is_label or not re.search(r"\d", "".join(row)) or all(TYPE.fullmatch(cell) for cell in row)

    count = next((k for k, row in enumerate(rows) if not describes(row)), 0)
    if rows and all(TYPE.fullmatch(cell) for cell in rows[0]):
        return 1
    is_clear = count and all(row and re.search(r"\d", row[0]) for row in rows[count:])
    return count if is_clear else _count_words(rows)


def _count_words(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of rows below a header that have no value in the first column in which the last rows have
    values.

    The other cells of the last of these rows are not numbers.
    """
    width = len(rows[-1]) if rows else 0
    below = [row for row in rows[-LAST:] if len(row) == width]
    is_valued = [all(_is_value(row[k].strip()) for row in below) for k in range(width)]
    if len(rows) < 2 * LAST or not any(is_valued):
        return 0
    first = is_valued.index(True)
    count = 0
    for k, row in enumerate(rows[:MOST_DESCRIPTIONS]):
        if len(row) != width and not row[0].startswith("#"):
            break
        if len(row) == width:
            cell, others = row[first].strip(), [row[j].strip() for j in range(first + 1, width)]
            if _is_value(cell):
                break
            is_wordy = not any(NUMBER.fullmatch(other) for other in others)
            count = k + 1 if is_wordy and (cell or any(others)) else count
        else:
            count = k + 1
    return count


def join_names(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the column names of a header with several rows.

    The row with the most distinct names provides the names, and the other rows fill its empty cells. A repeated name is
    preceded by its group, which is the cell above it or, if that is empty, the next one to the left. A unit of time in
    a row below is added to the name of the first column and of columns with names of elapsed time.
    """
    width = len(rows[0])
    rows = [[cell.strip() for cell in row] for row in rows if len(row) == width]

    def score(row: Sequence[str]) -> tuple[int, bool]:
        names = {cell for cell in row if cell.lower() not in MISSING and not _is_unit(cell)}
        return len(names), row[0].lower() in CLOCK_NAMES

    if width == 2 and len(rows) > MOST_NAMES:
        return list(rows[-1])  # the rows above are properties
    base = max(range(len(rows)), key=lambda k: score(rows[k]))
    names = list(rows[base])
    for above in reversed(rows[:base]):
        groups = _fill(above)
        names = [f"{groups[k]} {name}" if name and names.count(name) > 1 and groups[k] else name or above[k]
                 for k, name in enumerate(names)]  # fmt: skip
    for below in rows[base + 1 :]:
        longer = [f"{name} {below[k]}".strip() if names.count(name) > 1 else name for k, name in enumerate(names)]
        if len(set(longer)) == len(longer) > len(set(names)) and not any(map(_is_unit, below)):
            names = longer
        names = [name or below[k] for k, name in enumerate(names)]
    clocks = [row[0] for row in rows if row[0].lower() in CLOCK_NAMES]
    if clocks:
        names[0] = clocks[0]
    for row in rows[base + 1 :]:
        units = [cell.strip("()[]") for cell in row]
        names = [named(name, unit) if unit in TIMES and (not k or name.lower() in RUNNING_WORDS) else name
                 for k, (name, unit) in enumerate(zip(names, units, strict=True))]  # fmt: skip
    return [name or f"column {k}" for k, name in enumerate(names, start=1)]


def _is_unit(cell: str) -> bool:
    return bool(re.fullmatch(r"\(.*\)|\[.*\]", cell) or TYPE.fullmatch(cell))


def _fill(row: Sequence[str]) -> list[str]:
    """Return the cells of a row. An empty cell is replaced by the nearest cell to its left that is not empty."""
    found: list[str] = []
    for cell in row:
        found.append(cell or (found[-1] if found else ""))
    return found


def uncomment_header(text: str, splits: Sequence[Callable[[str], list[str]]]) -> str | None:
    """Return the text from a header on that is a comment above the rows, without its comment sign. Return None for
    other text.

    Args:
        text: The text.
        splits: Functions that split a line into cells.
    """
    comments: list[re.Match[str]] = []
    rows: list[str] = []
    for line in re.finditer(r"[^\r\n]+", text):
        if COMMENT.match(line[0]) and not rows:
            comments.append(line)
        elif line[0].strip():
            rows.append(line[0])
        if len(rows) == COMPARED:
            break
    for split in splits if comments and len(rows) > 1 else ():
        counts = {len(split(row)) for row in rows}
        if len(counts) > 1 or counts <= {1} or not all(any(map(_is_value, split(row))) for row in rows):
            continue
        first = [cell.strip() for cell in split(rows[0])]
        if not (is_data(first) or _is_like(first, [split(row) for row in rows[1:]])):
            continue
        for line in comments[-MOST_COMMENTS:]:
            names = split(COMMENT.sub("", line[0], count=1))
            if len(names) == len(first) and not any(_is_value(name.strip()) for name in names):
                begin = line.start() + len(COMMENT.match(line[0])[0])  # type: ignore[index]
                rest = text[begin:]
                return re.sub(r"(?m)^[#%!]+ ?", "", rest[:4096]) + rest[4096:]
    return None
