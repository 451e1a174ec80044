"""Convert CSV text to a table. The encoding, separator, title lines and header are detected, and pyarrow reads the
cells."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from rfa.data.attributes import (
    as_csv,
    counted_header_as_csv,
    numbered_names_as_csv,
    pairs_as_csv,
    scope_as_csv,
    seismic_as_csv,
    wristband_as_csv,
)
from rfa.data.changing_headers import common_columns
from rfa.data.csv_cells import is_empty, read_cells
from rfa.data.encodings import decode_other
from rfa.data.header import (
    END_OF_PROPERTIES,
    MOST_DESCRIPTIONS,
    count_descriptions,
    is_data,
    is_headless,
    join_names,
    uncomment_header,
)  # fmt: skip
from rfa.data.hours_across import nem12_as_csv
from rfa.data.influx_csv import is_annotated, join_tables, split_tables
from rfa.data.line_readers import READERS
from rfa.data.row_remarks import without_comments, without_footnotes, without_headers
from rfa.data.sql_dump import read_dump
from rfa.data.table import Table, unique_names
from rfa.data.text_blocks import choose_kind, choose_table, find_tables
from rfa.data.text_tables import as_separated, count_titles, split_all_spaces, split_spaces
from rfa.data.timed_blocks import find_timed_blocks
from rfa.data.titles import add_date, add_marks

PREVIEW_LINES: Final = 50
# Separators, in the order of preference. Separators that occur less often inside cells are first.
SEPARATORS: Final = "\t;|,"
BOMS: Final = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
NOT_SPACE: Final = re.compile(r"\S")
# Line above the types of the columns in files of Ignition.
TYPES: Final = "#types"
# Line in which only the first cell is not empty. The lookaheads search it for a letter in linear time.
FIRST_ONLY: Final = re.compile(r'\s*("(?=[^"]*[^\W\d])[^"]*"|(?=[^;,\t|"]*[^\W\d])[^;,\t|"]*)?([;,\t|])\s*(?:\2\s*)*')
# Arabic and Persian digits, and their decimal and thousands separators.
DIGITS: Final = str.maketrans("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹٫", "01234567890123456789.", "٬")
FOREIGN_DIGIT: Final = re.compile("[٠-٩۰-۹]")
SEARCHED: Final = 4096
# Line above the rows that contains the names of the columns in files of LabChart.
TITLED: Final = re.compile(r"(?i)\s*(channel ?title|channels?|names?|variables?)\s*[:=]")
WORDS: Final = re.compile(r"[^\W\d_]")
MONITORED: Final = re.compile(r"(?m)^(\d\d:\d\d:\d\d\.\d{3}) -> ")
FEWEST_ROWS: Final = 6
LINE_END: Final = re.compile(r"\r\n|\r|\n")


def decode_text(content: bytes) -> tuple[str, tuple[str, ...], bytes | None]:
    """Decode the text of a file. Return the text, notes on its encoding, and the content if it is UTF-8.

    Raises:
        ValueError: If the file is not text.
    """
    for bom, encoding in BOMS.items():
        if content.startswith(bom):
            try:
                return content.decode(encoding), (), None
            except UnicodeDecodeError:
                raise ValueError(
                    f"the file has a byte order mark of {encoding}, but is not valid {encoding}; save it as UTF-8"
                ) from None
    if b"\0" in content[:4096]:
        raise ValueError("the file is not text, Parquet or Arrow; save it as CSV")
    try:
        return content.decode(), (), content
    except UnicodeDecodeError:
        text, name = decode_other(content)
        return text, (f"not UTF-8: read as {name}",), None


def has_tables(text: str) -> bool:
    """Return whether a text contains several tables."""
    return bool(find_timed_blocks(text) or find_tables(text))


def read_text(text: str, notes: tuple[str, ...] = (), encoded: bytes | None = None, sheet: str | None = None) -> Table:
    """Return a table from CSV with any separator, with or without header and title lines.

    Args:
        text: The text.
        notes: Notes that are added to those of the table.
        encoded: The text in UTF-8, if it is already available.
        sheet: Name of a table such as "table 2", for text with several tables. None selects the longest table.

    Raises:
        ValueError: If there are no rows, or a row and the header have different numbers of cells.
    """
    if FOREIGN_DIGIT.search(text, 0, SEARCHED) is not None:
        text, encoded = text.translate(DIGITS), None
    if (other := _read_part(text, notes, sheet)) is not None or (other := _read_other(text)) is not None:
        return other
    text, encoded = _rewrite(text, encoded)
    lines = _preview(text)
    if (other := _read_below_properties(text, lines, notes)) is not None:
        return other
    if not lines:
        raise ValueError("the file is empty")
    if (other := _read_repaired(text, lines, notes)) is not None:
        return other
    return _read_separated(text, lines, notes, encoded)


def _read_part(text: str, notes: tuple[str, ...], sheet: str | None) -> Table | None:
    """Return the chosen table of text with several tables, or the rows of the most frequent kind in text with several
    kinds of rows. Return None for other text."""
    if (tables := find_timed_blocks(text) or find_tables(text)) or sheet is not None:
        chosen, note = choose_table(tables, sheet)
        table = read_text(chosen.text, (*notes, note))
        titles = "\n".join(text.splitlines()[: chosen.first])
        return add_marks(add_date(replace(table, first_row=table.first_row + chosen.first), titles), titles)
    if (of_kind := choose_kind(text)) is not None:
        return read_text(of_kind[0], (*notes, of_kind[1]))
    if (common := common_columns(text)) is not None:
        return read_text(common[0], (*notes, common[1]))
    return None


def _read_other(text: str) -> Table | None:
    """Return the table of text that does not consist of rows of cells, such as a log. Return None for other text."""
    for reader in READERS:
        if (logged := reader(text)) is not None:
            return logged.table()
    if (dumped := read_dump(text)) is not None:
        return dumped
    if is_annotated(text):
        return join_tables([read_text(f"{header}\n{rows}") for header, rows in split_tables(text).items()])
    return None


def _rewrite(text: str, encoded: bytes | None) -> tuple[str, bytes | None]:
    """Convert the formats of some programs and instruments to CSV. Other text is returned unchanged. Also return the
    text in UTF-8 if it was not converted, and otherwise None."""
    rewritten = (rewrite(text) for rewrite in REWRITERS)
    if (changed := next(filter(None, rewritten), None)) is not None:
        text, encoded = changed, None
    if all(";\t" in line[0] for line in _preview(text)) and text.count(";\t") >= text.count("\n"):
        text, encoded = text.replace(";\t", ";"), None
    return text, encoded


def _read_below_properties(text: str, lines: Sequence[re.Match[str]], notes: tuple[str, ...]) -> Table | None:
    """Return the table below a line that marks the end of the properties of the file. Return None if there is no such
    line, or the cells below it have separators."""
    ends = [line.end() for line in lines if END_OF_PROPERTIES.fullmatch(line[0].strip())]
    if not ends or any(sign in line[0] for line in lines[-2:] for sign in SEPARATORS):
        return None
    properties = text[: ends[-1]]
    table = read_text(text[ends[-1] :].lstrip("\r\n"), notes)
    table = replace(table, first_row=table.first_row + len(LINE_END.findall(properties)))
    return add_marks(add_date(table, properties), properties)


def _read_repaired(text: str, lines: Sequence[re.Match[str]], notes: tuple[str, ...]) -> Table | None:
    """Return the table of text that is drawn with lines and spaces, or whose header lacks the separator at the end of
    the other lines. Return None for other text."""
    if (separated := as_separated(text, [line[0] for line in lines], SEPARATORS)) is not None:
        note = "the table has border lines, which row numbers do not count"
        return add_marks(read_text(separated, (*notes, note)), text[: lines[0].start()])
    if (sign := _missing_end([line[0] for line in lines])) is not None:
        return read_text(text[: lines[0].end()] + sign + text[lines[0].end() :], notes)
    return None


def _read_separated(text: str, lines: Sequence[re.Match[str]], notes: tuple[str, ...], encoded: bytes | None) -> Table:
    """Return the table of text with separators between its cells, which begins below the title lines."""
    count = _count_titles(lines)
    separator, above = _separator([line[0] for line in lines[count:]])
    above += count
    if above:
        notes += (f"{above} lines above the header are skipped",)
    titles = text[: lines[above].start()]
    title_rows = [_cells(line[0], separator) for line in lines[:above]]
    header, names, start, more = _header(lines[above:], separator, title_rows)
    notes += more
    if NOT_SPACE.search(text, start) is None:
        raise ValueError("the file has a header but no rows")
    if (width := _common_width(lines[above:], separator, len(names))) < len(names):
        table = _read_narrowed(text, lines[above : above + 2], separator, notes, names[width:])
        return add_marks(replace(table, first_row=_lines_before(text, start) + 1), titles)
    names = unique_names(names)
    header_line = lines[above][0] if start > lines[above].start() else ""
    text, encoded, repeated = without_headers(text, header_line, start, encoded)
    text, encoded, commented = without_comments(text, start, encoded)
    text, encoded, footnotes = without_footnotes(text, separator, len(names), start, encoded)
    before = _lines_before(text, start)
    if encoded is None:
        encoded, offset = text[start:].encode(), 0
    else:
        offset = len(text[:start].encode())
    columns, remarks = read_cells(encoded, offset, names, separator, before)
    while len(names) > 1 and not header[len(names) - 1].strip() and is_empty(columns[names[-1]]):
        del columns[names.pop()]  # every line ends with a separator
    table = Table(columns, separator, before + 1, (*notes, *commented, *repeated, *footnotes, *remarks))
    return add_marks(add_date(table, titles), titles)


def _read_narrowed(
    text: str, lines: Sequence[re.Match[str]], separator: str, notes: tuple[str, ...], left_out: Sequence[str]
) -> Table:
    """Return the table without its last columns, for which only the header and the first row contain cells.

    Args:
        lines: The header and the first row.
        left_out: Names of these columns.
    """
    width = len(_cells(lines[0][0], separator)) - len(left_out)
    cut = [separator.join(_quoted(cell, separator) for cell in _cells(line[0], separator)[:width]) for line in lines]
    table = read_text("\n".join(cut) + text[lines[1].end() :], notes)
    note = f"columns {', '.join(map(repr, left_out))} are left out, because only their first row has a cell"
    return replace(table, notes=(*table.notes, note))


def _common_width(lines: Sequence[re.Match[str]], separator: str, width: int) -> int:
    """Return the number of cells of all rows below the first, if it is the same in all of them and less than that of
    the header and of the first row. Otherwise, return `width`."""
    widths = [len(_cells(line[0], separator)) for line in lines]
    others = {*widths[2:-1]}
    is_cut = len(widths) > FEWEST_ROWS and widths[:2] == [width, width] and len(others) == 1 and 1 < min(others) < width
    return min(others) if is_cut else width


def _quoted(cell: str, separator: str) -> str:
    return f'"{cell}"' if separator in cell else cell


def _lines_before(text: str, start: int) -> int:
    # The end of the header line is counted with the lines before the rows.
    return len(LINE_END.findall(text[:start])) + (LINE_END.match(text, start) is not None)


def _missing_end(lines: Sequence[str]) -> str | None:
    """Return the separator at the end of every line except the header, if the header has one cell fewer than the other
    lines. Return None for other lines."""
    for sign in SEPARATORS if len(lines) > 1 else "":
        rows = [_cells(line, sign) for line in lines]
        width = len(rows[1])
        if len(rows[0]) == width - 1 > 1 and all(len(row) == width and not row[-1].strip() for row in rows[1:]):
            return sign if not is_data(rows[0]) else None
    return None


def _header(
    lines: Sequence[re.Match[str]], separator: str, titles: Sequence[Sequence[str]] = ()
) -> tuple[Sequence[str], list[str], int, tuple[str, ...]]:
    """Return the cells of the header line, the names of the columns, the position at which the rows begin, and
    notes."""
    first = _cells(lines[0][0], separator)
    rows = [_cells(line[0], separator) for line in lines[1 : 2 * MOST_DESCRIPTIONS]]
    if is_headless(first, rows):
        named = [row for row in titles if len(row) == len(first) > 1 and TITLED.match(row[0])
                 and all(WORDS.search(cell) and not re.search(r"\d", cell) for cell in row[1:])]  # fmt: skip
        if named:
            return first, ["time", *named[-1][1:]], lines[0].start(), ("column names are in a line above the rows",)
        names = [f"column {k}" for k in range(1, len(first) + 1)]
        return first, names, lines[0].start(), ("no header: columns are numbered",)
    described = count_descriptions(rows)
    notes = (f"{described} lines below the header are names or units, and are skipped",) if described else ()
    named = [row for k, row in enumerate(rows[:described]) if not k or rows[k - 1][0].lower() != TYPES]
    return first, join_names([first, *named]), lines[described].end(), notes


def _count_titles(lines: Sequence[re.Match[str]]) -> int:
    """Return the number of lines above the header that are properties of the file."""
    ends = [k + 1 for k, line in enumerate(lines[:-1]) if END_OF_PROPERTIES.fullmatch(line[0].strip())]
    if ends:
        return ends[-1]
    count = next((k for k, line in enumerate(lines) if not FIRST_ONLY.fullmatch(line[0])), 0)
    below = re.split(r"[;,\t|]", lines[count][0])
    is_above = count and sum(bool(cell.strip()) for cell in below) > 1
    return count if is_above else count_titles([line[0] for line in lines])


def _preview(text: str) -> list[re.Match[str]]:
    """Return the first lines that are not blank, comments or Excel's `sep=` line."""
    found: list[re.Match[str]] = []
    for line in re.finditer(r"[^\r\n]+", text):
        if line[0].strip() and (found or not (line[0].startswith("#") or re.fullmatch(r"sep=.", line[0].strip()))):
            found.append(line)
            if len(found) == PREVIEW_LINES:
                break
    return found


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator))
    except csv.Error as error:
        raise ValueError(f"the file cannot be read as CSV: {error}") from None


SPLITS: Final[tuple[Callable[[str], list[str]], ...]] = (
    *(partial(_cells, separator=sign) for sign in SEPARATORS),
    split_spaces,
    split_all_spaces,
)


def _monitor_as_csv(text: str) -> str | None:
    """Convert lines such as `10:30:01.123 -> 20.5`, as in the output of Arduino's monitor, to CSV. Return None for
    other text."""
    if not all(MONITORED.match(line[0]) for line in _preview(text)):
        return None
    separator = next((sign for sign in SEPARATORS if sign in text[:SEARCHED]), ",")
    return MONITORED.sub(rf"\1{separator}", text)


REWRITERS: Final = (
    as_csv, counted_header_as_csv, numbered_names_as_csv, pairs_as_csv, scope_as_csv,
    seismic_as_csv, wristband_as_csv, _monitor_as_csv, nem12_as_csv,
    partial(uncomment_header, splits=SPLITS),
)  # fmt: skip


def _separator(lines: list[str]) -> tuple[str, int]:
    """Return the separator for which most lines have as many cells as the header, and the number of title lines."""
    found = {separator: _fit([len(_cells(line, separator)) for line in lines]) for separator in SEPARATORS}
    best = max(share for share, _ in found.values())
    if best <= 0:
        return ",", 0
    separator = next(separator for separator in SEPARATORS if found[separator][0] == best)
    above = found[separator][1]
    # A row with more cells than the header does not turn the header into a title line.
    are_titles = above > 1 and all(len(_cells(line, separator)) == 1 for line in lines[:above])
    is_titled = are_titles or not is_data(_cells(lines[above], separator))
    return separator, above if above < len(lines) - 1 and is_titled else 0


def _fit(counts: list[int]) -> tuple[float, int]:
    """Return the fraction of the lines that have as many cells as the first line, and 0.

    If this fraction is less than a half, return instead the fraction of the lines that have the most frequent number of
    cells above 1, and the index of the first such line.
    """
    as_first = sum(count == counts[0] for count in counts) / len(counts) if counts[0] > 1 else 0.0
    usual, often = Counter(count for count in counts if count > 1).most_common(1)[0] if max(counts) > 1 else (0, 0)
    if often <= 1 or as_first >= 0.5:
        return as_first, 0
    above = counts.index(usual)
    return sum(count == usual for count in counts[above:]) / len(counts), above
