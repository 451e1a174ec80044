"""A file as a table: what it is packed in, its encoding, its separator, its header. pyarrow reads the cells."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BYTES: Final = 2**31  # unpacked; arrays of Arrow's strings end there as well
PREVIEW_LINES: Final = 50
# The rarer inside of a cell first.
SEPARATORS: Final = "\t;|,"
PACKED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
BOMS: Final = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
MISSING: Final = (
    "", "-", "--", ".", "?", "na", "n/a", "#n/a", "<na>", "nan", "nil", "none", "null", "missing", "undefined",
    "#value!", "#ref!", "#div/0!",
)  # fmt: skip
NUMBER: Final = re.compile(r"[+-]?(\d[\d.,']*|\.\d+)([eE][+-]?\d+)?%?")
DATE: Final = re.compile(r"\d{1,4}[-/.]\d{1,2}([-/.]\d{1,4})?([T ].*)?|\d{1,2}:\d{2}(:\d{2})?.*")


@dataclass(frozen=True)
class Table:
    """Columns by their names, which differ; first_row: where the file has the first row, for messages; notes: what was
    decided while reading."""

    columns: dict[str, Any]
    separator: str | None = None
    first_row: int = 1
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: pa.Table) -> Table:
        """A table of Arrow's.

        Raises:
            ValueError: a column holds what it may not.
        """
        import pyarrow as pa

        try:
            table.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"the table is damaged: {str(error).splitlines()[0]}") from None
        names = distinct([str(name) for name in table.column_names])
        return cls(dict(zip(names, map(_plain, table.columns), strict=True)))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


def read_table(content: bytes) -> Table:
    """A table from a file's content: CSV in any dress, Parquet or Arrow, plain or packed by gzip, zstd or bz2.

    Raises:
        ValueError: it is none, or a row has another number of cells than the header.
    """
    import pyarrow as pa

    content = _unpacked(content)
    if content.startswith(b"PK\x03\x04"):
        raise ValueError("this is a ZIP archive or an Excel workbook: save the sheet as CSV, or unpack it")
    try:
        if content.startswith(b"PAR1"):
            from pyarrow import parquet

            return Table.of(parquet.read_table(pa.BufferReader(content)))
        if content.startswith(b"ARROW1"):
            return Table.of(pa.ipc.open_file(content).read_all())
        if content.startswith(b"\xff\xff\xff\xff"):
            return Table.of(pa.ipc.open_stream(content).read_all())
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"the file cannot be read: {str(error).splitlines()[0]}") from None
    return _read_text(*_decoded(content))


def _unpacked(content: bytes) -> bytes:
    import pyarrow as pa

    for magic, codec in PACKED.items():
        if content.startswith(magic):
            try:
                with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
                    content = stream.read(MAX_BYTES)
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"the {codec} file is damaged: {error}") from None
    if len(content) >= MAX_BYTES:
        raise ValueError("the file has 2 GiB or more: give a part of it")
    return content


def _plain(column: Any) -> Any:
    """Text and dictionaries in their other layouts, such as polars writes, as text has it here."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_text = pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type)
    return column.cast(pa.string()) if is_text else column


def _decoded(content: bytes) -> tuple[str, tuple[str, ...]]:
    for bom, encoding in BOMS.items():
        if content.startswith(bom):
            try:
                return content.decode(encoding), ()
            except UnicodeDecodeError:
                raise ValueError(f"the file begins as {encoding} and is not: save it as UTF-8") from None
    if b"\0" in content[:4096]:
        raise ValueError("this is neither text nor Parquet nor Arrow: save it as CSV")
    try:
        return content.decode(), ()
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace"), ("not UTF-8: read as Windows-1252",)


def _read_text(text: str, notes: tuple[str, ...]) -> Table:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    before, preview = _preview(text)
    if not preview:
        raise ValueError("the file is empty")
    separator = _separator([line[0] for line in preview])
    header = _cells(preview[0][0], separator)
    start = preview[0].start()
    if not _is_data(header):
        before, start = before + 1, preview[0].end()
        names = [name.strip() or f"column {k}" for k, name in enumerate(header, start=1)]
    else:
        names = [f"column {k}" for k in range(1, len(header) + 1)]
        notes += ("no header: columns are called by their numbers",)
    body = text[start:]
    if not body.strip():
        raise ValueError("the file has a header and no rows: it needs at least one row")
    names = distinct(names)
    ragged: list[Any] = []

    def refuse(row: Any) -> str:
        ragged.append(row)
        return "error"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader((body + "\n").encode()),
            arrow_csv.ReadOptions(use_threads=False, column_names=names),
            arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=refuse),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        if ragged:
            row = ragged[0]
            place = f"row {before + row.number}" if row.number else "a row"
            raise ValueError(
                f"{place} has {row.actual_columns} cells, the header has {row.expected_columns}: {row.text[:60]!r}"
            ) from None
        raise ValueError(f"the file cannot be read as CSV: {error}") from None
    columns = dict(zip(names, table.columns, strict=True))
    return Table(columns, separator, before + 1, notes)


def _preview(text: str) -> tuple[int, list[re.Match[str]]]:
    """How many lines stand before the table (comments, blank ones, Excel's word about its separator), and its first."""
    before = 0
    found: list[re.Match[str]] = []
    for line in re.finditer(r"[^\r\n]+|\r\n|\r|\n", text):
        if line[0].strip() and (found or not (line[0].startswith("#") or re.fullmatch(r"sep=.", line[0].strip()))):
            found.append(line)
            if len(found) == PREVIEW_LINES:
                break
        elif not found and line[0] in ("\r\n", "\r", "\n"):
            before += 1
    return before, found


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator))
    except csv.Error as error:
        raise ValueError(f"the file cannot be read as CSV: {error}") from None


def _separator(lines: list[str]) -> str:
    """The separator that gives every line as many cells as the first, or the most lines."""

    def fits(separator: str) -> tuple[float, int]:
        counts = [len(_cells(line, separator)) for line in lines]
        return (sum(count == counts[0] for count in counts) / len(counts) if counts[0] > 1 else 0.0), counts[0]

    found = {separator: fits(separator) for separator in SEPARATORS}
    best = max(share for share, _ in found.values())
    return next(separator for separator in SEPARATORS if found[separator][0] == best) if best > 0 else ","


def _is_data(cells: list[str]) -> bool:
    """Whether a row is numbers and dates alone, as no header is."""
    filled = [cell.strip() for cell in cells if cell.strip().lower() not in MISSING]
    return bool(filled) and all(NUMBER.fullmatch(cell) or DATE.fullmatch(cell) for cell in filled)


def distinct(names: list[str]) -> list[str]:
    """Names that stand twice get a number."""
    found: list[str] = []
    for name in names:
        count, new = 1, name
        while new in found:
            count += 1
            new = f"{name}_{count}"
        found.append(new)
    return found
