"""Find the tables in text with several tables or several kinds of lines, and choose the one to read."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rfa.data.header import is_data
from rfa.data.table import MISSING, NO_TIME

SEPARATORS: Final = "\t;|,"
# Larger text is treated as one table.
MOST_CHARACTERS: Final = 2**26
# Larger text is not searched for headers among its rows.
MOST_SEARCHED: Final = 2**22
# If a table has this many times the rows of another one, it is chosen without asking.
LONGER: Final = 2
BLANK: Final = re.compile(r"(?:[ \t;,|]*\r?\n)+")
# The first lines of text in which each line names its table, and whether it is a header or a row.
SECTION: Final = re.compile(r"[^,\n]+,Header,[^\n]*\n[^,\n]+,Data,")
# A line that names the table below it.
HEADING: Final = re.compile(r'(?m)^"?##+ ?\w[\w ]*"?\r?$')
# A line without digits.
WORDY: Final = re.compile(r"(?m)^[^\d\r\n]*[;,\t|][^\d\r\n]*$")
HAS_BLANK: Final = re.compile(r'\n\r?\n|\n[;,]+\r?\n|\n""\r?\n')
EMPTY: Final = ' \t;,|\r"'
# The first cell of a line that states its kind, the maximum number of kinds, and the minimum fraction of the most
# frequent kind.
KIND: Final = re.compile(r'"?([A-Z]{1,10}|\d{2,3}|//[A-Z]+)"?(?=[,;|\t]|$)')
MOST_KINDS, LEAST_SHARE, FEWEST_LINES = 8, 0.75, 8
MOST_LISTED: Final = 8


@dataclass(frozen=True)
class Block:
    """Lines of one table.

    Attributes:
        lines: Lines of the table, beginning with its header.
        first: Number of the first line in the file, from 0.
    """

    lines: list[str]
    first: int

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def find_tables(text: str) -> list[Block]:
    """Return the tables of a text in which blank lines or further headers separate tables. The result is empty if there
    are fewer than two tables."""
    if len(text) > MOST_CHARACTERS:
        return []
    if HEADING.match(text) and len(HEADING.findall(text)) > 1:
        text = HEADING.sub("", text)
    if SECTION.match(text):
        return _sections(text)
    if not (HAS_BLANK.search(text) or _has_words(text)):
        return []
    found: list[Block] = []
    lines: list[str] = []
    everything = [*text.splitlines(), ""]
    for number, line in enumerate(everything):
        if line.strip(EMPTY):
            if len(lines) > 1 and _is_inner_header(line, lines, everything[number + 1]):
                found.append(Block(lines, number - len(lines)))
                lines = []
            lines.append(line)
        elif lines:
            found.append(Block(lines, number - len(lines)))
            lines = []
    tables = [block for block in found if _is_table(block.lines)]
    if len(tables) == 1 and _has_footers(tables[0], found):
        return [Block(everything[: tables[0].first + len(tables[0].lines)], 0)]
    if len(tables) == 1 and not everything[tables[0].first - 1].strip(' "') and _is_hidden(tables[0], found):
        return tables
    joined: dict[tuple[str, ...], Block] = {}
    for table in tables:
        separator = max(SEPARATORS, key=table.lines[0].count)
        names = tuple(sorted(cell.strip() for cell in _cells(table.lines[0], separator)))
        if (same := joined.setdefault(names, table)) is not table:
            same.lines.extend(_in_order(table.lines, same.lines[0], separator))
    is_reordered = len({table.lines[0].strip() for table in tables}) > len(joined)
    return list(joined.values()) if len(joined) > 1 or is_reordered else []


def _sections(text: str) -> list[Block]:
    """Return the tables of text in which each line begins with the name of a table, followed by `Header` or `Data`."""
    tables: dict[str, Block] = {}
    for number, line in enumerate(text.splitlines()):
        name, _, rest = line.partition(",")
        kind, _, cells = rest.partition(",")
        if kind == "Header" and name not in tables:
            tables[name] = Block([cells], number)
        elif kind == "Data" and name in tables:
            tables[name].lines.append(cells)
    return list(tables.values())


def _in_order(lines: Sequence[str], header: str, separator: str) -> Sequence[str]:
    """Return the rows of a table with their cells in the order of another header with the same names."""
    if lines[0].strip() == header.strip():
        return lines[1:]
    names = [cell.strip() for cell in _cells(lines[0], separator)]
    order = [names.index(cell.strip()) for cell in _cells(header, separator)]
    rows = (_cells(line, separator) for line in lines[1:])
    return [separator.join(_quoted(row[k], separator) for k in order) for row in rows if len(row) == len(names)]


def _has_words(text: str) -> bool:
    """Return whether text that is not large has a line without digits below its first line."""
    return len(text) <= MOST_SEARCHED and WORDY.search(text, text.find("\n") + 1) is not None


def _is_inner_header(line: str, above: Sequence[str], below: str) -> bool:
    """Return whether a line between rows has a different word in each column that has values above and below it."""
    if WORDY.fullmatch(line) is None or line.strip() == above[0].strip():
        return False
    if sorted(re.split(r"\s*[;,\t|]\s*", line.strip())) == sorted(re.split(r"\s*[;,\t|]\s*", above[0].strip())):
        return True  # the same names in another order
    separator = max(SEPARATORS, key=above[-1].count)
    rows = [[cell.strip() for cell in _cells(each, separator)] for each in (above[-1], line, below)]
    if len({len(row) for row in rows}) > 1 or is_data(_cells(above[0], separator)):
        return False
    columns = [column for column in zip(*rows, strict=True) if is_data([column[0]]) and is_data([column[2]])]
    words = [column[1] for column in columns]
    return len({*words}) == len(words) > 1 and all(re.search(r"[^\W\d_]{2}", word) and not _is_filler(word)
                                                   for word in words)  # fmt: skip


def _is_filler(word: str) -> bool:
    return word.lower() in MISSING or NO_TIME.fullmatch(word) is not None


def _has_footers(table: Block, blocks: Sequence[Block]) -> bool:
    """Return whether there are lines below a table that are not rows, and fewer than its rows."""
    below = [line for block in blocks[blocks.index(table) + 1 :] for line in block.lines]
    separator = max(SEPARATORS, key=table.lines[0].count)
    signs = table.lines[-1].count(separator)
    return 0 < len(below) < len(table.lines) and not any(line.count(separator) == signs for line in below)


def _is_hidden(table: Block, blocks: Sequence[Block]) -> bool:
    """Return whether a table is the last block and has most lines, and another block has a line with as many cells."""
    others = [line for block in blocks if block is not table for line in block.lines]
    if table is not blocks[-1]:
        return False
    separator = max(SEPARATORS, key=table.lines[0].count)
    signs = table.lines[0].count(separator)
    return len(table.lines) > len(others) and any(line.count(separator) == signs for line in others)


def choose_table(tables: Sequence[Block], sheet: str | None) -> tuple[Block, str]:
    """Return the chosen table and a note. Without a choice, return the longest table.

    Args:
        tables: Tables of a file.
        sheet: Name of the chosen table, which is "table 1" for the first one.

    Raises:
        ValueError: If no table has that name, or if none is chosen and another table is about as long.
    """
    names = [f"table {k + 1}" for k in range(len(tables))]
    if sheet is not None and sheet not in names:
        raise ValueError(f"there is no table {sheet!r}; the tables are {', '.join(map(repr, names))}")
    sizes = [len(table.lines) - 1 for table in tables]
    longest = sizes.index(max(sizes))
    if sheet is None and len(sizes) > 1 and sorted(sizes)[-2] * LONGER > sizes[longest]:
        listed = " or ".join(f"--sheet '{name}' ({table.lines[0].strip()[:40]!r})"
                             for name, table in list(zip(names, tables, strict=True))[:MOST_LISTED])  # fmt: skip
        raise ValueError(f"the file has {len(tables)} tables; choose one with {listed}")
    chosen = longest if sheet is None else names.index(sheet)
    more = f", {names[chosen]!r} of {len(tables)}; --sheet chooses others" if len(tables) > 1 else ""
    return tables[chosen], f"the table that starts in line {tables[chosen].first + 1} is read{more}"


def _is_table(lines: Sequence[str]) -> bool:
    """Return whether lines are a header and rows with as many cells as the header."""
    separator = max(SEPARATORS, key=lines[0].count)
    rows = [_cells(line, separator) for line in (*lines[:4], lines[-1])]
    width = len(rows[0])
    is_even = width > 1 and sum(len(row) == width for row in rows) >= len(rows) - 1
    is_header = not is_data(rows[0]) and sum(bool(cell.strip()) for cell in rows[0]) > 1
    return len(lines) > 1 and is_even and is_header and _has_values(rows)


def _has_values(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the last row that has as many cells as the header has a number or a date."""
    last = [row for row in rows[1:] if len(row) == len(rows[0])]
    return bool(last) and any(is_data([cell.lstrip("$€£")]) for cell in last[-1] if cell)


def choose_kind(text: str) -> tuple[str, str] | None:
    """Return the lines of the most frequent kind, below their header, and a note. In such text, the first cell of each
    line contains its kind.

    Files of electricity markets and of some loggers have this form, with `I` for a header and `D` for a row. Return
    None for other text.
    """
    if len(text) > MOST_CHARACTERS or KIND.match(text) is None:
        return None
    lines = [line for line in text.splitlines() if line.strip()]
    kinds = [found[1] if (found := KIND.match(line)) else "" for line in lines]
    counts = Counter(kinds)
    kind, count = counts.most_common(1)[0]
    if not 1 < len(counts) <= MOST_KINDS or "" in counts or count < max(FEWEST_LINES, LEAST_SHARE * len(lines)):
        return None
    separator = max(SEPARATORS, key=lines[kinds.index(kind)].count)
    rows = [_cells(line, separator) for line in lines]
    widths = {len(row) for row, each in zip(rows, kinds, strict=True) if each == kind}
    others = [row for row, each in zip(rows, kinds, strict=True) if each != kind]
    if len(widths) > 1 or all(len(row) in widths for row in others) or kinds[0] == kind:
        return None
    headers = [row for row in others if len(row) in widths and not is_data(row)]
    if not headers and kinds[-1] == kind:
        return None
    header = ["" if is_data([cell.strip()]) else cell for cell in (headers or [[""] * max(widths)])[-1][1:]]
    body = [separator.join(_quoted(cell, separator) for cell in row[1:])
            for row, each in zip(rows, kinds, strict=True) if each == kind]  # fmt: skip
    named = separator.join(_quoted(cell.strip() or f"column {k}", separator) for k, cell in enumerate(header, start=2))
    return "\n".join([named, *body]) + "\n", f"only lines that begin with {kind!r} are read as rows"


def _quoted(cell: str, separator: str) -> str:
    return f'"{cell}"' if separator in cell else cell


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator))
    except csv.Error:
        return [line]
