"""Read a file in any format: CSV, JSON, Parquet, Arrow, ORC, SQLite or a workbook, plain or compressed."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from typing import Any, Final

from rfa.data.csv_text import decode_text, has_tables, read_text
from rfa.data.excel import OLD_WORKBOOK, is_workbook, read_workbook
from rfa.data.json_text import is_json, read_json
from rfa.data.table import Table
from rfa.data.xml_rows import is_xml, read_xml

MAX_BYTES: Final = 2**31  # of the decompressed file, which is also the limit of Arrow's string arrays
PACKED: Final = {
    b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4", b"\xfd7zXZ\x00": "xz",
}  # fmt: skip
# Maximum number of nested layers of compression, such as a compressed file in an archive.
MOST_LAYERS: Final = 3
ZIP: Final = b"PK\x03\x04"
CHUNK: Final = 2**20
DATABASE: Final = b"SQLite format 3\x00"
ARROW: Final = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"FEA1", b"ORC")
DUCKDB: Final = b"DUCK"
PDF: Final = b"%PDF"
# Avro, NetCDF and HDF5, which optional packages read.
OPTIONAL: Final = (b"Obj\x01", b"CDF", b"\x89HDF")
# Endings of the names of tables in an archive.
TABLES: Final = (
    ".csv", ".tsv", ".txt", ".dat", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".orc", ".xlsx",
    ".xls", ".ods", ".db", ".sqlite", ".avro", ".nc", ".duckdb", ".xml", ".gpx", ".sql", ".tsf", ".arff",
)  # fmt: skip
MOST_LISTED: Final = 8
COMPRESSED: Final = r"\.(gz|zst|bz2|xz|lz4)$"
OTHERS: Final = ("readme", "license", "licence", "metadata", "manifest")


def is_plain_text(content: bytes) -> bool:
    """Return whether the content begins like CSV, so that it is not compressed, binary, XML or JSON."""
    magics = (*PACKED, ZIP, DATABASE, OLD_WORKBOOK, PDF, *OPTIONAL, *ARROW)
    return not (content.startswith(magics) or b"\0" in content[:4096] or is_json(content) or is_xml(content))


def read_limited(file: Any) -> bytes:
    """Read a file in chunks up to the size limit, because a size in the header may be wrong."""
    pieces, size = [], 0
    while size < MAX_BYTES and (piece := file.read(CHUNK)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def read_table(content: bytes, sheet: str | None = None, query: str | None = None) -> Table:
    """Return a table from the content of a file, plain or compressed. The format is determined by the first bytes.

    Args:
        content: Content of the file.
        sheet: Sheet of a workbook, or table of an archive. None selects the first sheet or the only table.
        query: Query on a SQLite or DuckDB database. None selects the only table.

    Raises:
        ValueError: If the format is unknown, or a row and the header have different numbers of cells.
    """
    import pyarrow as pa

    content, sheet = _decompress(content, sheet)
    if is_workbook(content):
        return read_workbook(content, sheet)
    if sheet is not None and not (is_plain_text(content) and has_tables(decode_text(content)[0])):
        raise ValueError(
            f"--sheet {sheet!r} is only supported for workbooks, ZIP archives and text with several tables"
        )
    if content.startswith(DATABASE):
        from rfa.data.sqlite import read_database

        return read_database(content, query)
    if content[8:12] == DUCKDB:
        from rfa.data.optional_formats import read_duckdb

        return read_duckdb(content, query)
    if query is not None:
        raise ValueError("--query requires an SQLite or DuckDB database, but this file is neither")
    try:
        found = _read_arrow(content)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"the file cannot be read: {str(error).splitlines()[0]}") from None
    if found is not None:
        return Table.of(found)
    if content.startswith(OPTIONAL):
        from rfa.data.optional_formats import read_optional

        return read_optional(content)
    if content.startswith(PDF):
        raise ValueError("PDF files are not supported; save the table as CSV or Parquet")
    if is_xml(content):
        return read_xml(content)
    return read_json(content) if is_json(content) else _read_csv(content, sheet)


def _read_csv(content: bytes, sheet: str | None) -> Table:
    text, notes, encoded = decode_text(content)
    return read_text(text, notes, encoded, sheet)


def _read_arrow(content: bytes) -> Any:
    """Return the Arrow table of a file that pyarrow can read, or None for other files."""
    import pyarrow as pa

    if content.startswith(b"PAR1"):
        from pyarrow import parquet

        return parquet.read_table(pa.BufferReader(content))
    if content.startswith(b"ARROW1"):
        return pa.ipc.open_file(content).read_all()
    if content.startswith(b"\xff\xff\xff\xff"):
        return pa.ipc.open_stream(content).read_all()
    if content.startswith(b"FEA1"):
        from pyarrow import feather

        return feather.read_table(pa.BufferReader(content))
    if content.startswith(b"ORC"):
        from pyarrow import orc

        return orc.ORCFile(pa.BufferReader(content)).read()
    return None


def _decompress(content: bytes, sheet: str | None) -> tuple[bytes, str | None]:
    """Return the content of a compressed file or of a file in an archive, and `sheet`. If `sheet` has selected the file
    in the archive, return None instead."""
    for _ in range(MOST_LAYERS):
        codec = next((codec for magic, codec in PACKED.items() if content.startswith(magic)), None)
        if codec is not None:
            content = _unpack(content, codec)
        elif content.startswith(ZIP) and not is_workbook(content):
            content, sheet = _read_archive(content, sheet), None
        else:
            break
    if len(content) >= MAX_BYTES:
        raise ValueError("the file must be smaller than 2 GiB; split it")
    return content, sheet


def _unpack(content: bytes, codec: str) -> bytes:
    import pyarrow as pa

    try:
        if codec == "xz":
            import lzma

            with lzma.open(io.BytesIO(content)) as file:
                return read_limited(file)
        with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
            return read_limited(stream)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise ValueError(f"the {codec} file is damaged: {error}") from None
    except Exception as error:
        if type(error).__name__ != "LZMAError":
            raise
        raise ValueError(f"the {codec} file is damaged: {error}") from None


def may_be_table(name: str) -> bool:
    """Return whether a file is a table, as determined by its name."""
    base = re.sub(COMPRESSED, "", name.rpartition("/")[2].lower())
    return base.endswith(TABLES) and not base.startswith((*OTHERS, "."))


def _refuse_tables(names: list[str], chosen: str | None) -> str:
    if not names:
        return "this ZIP archive has no table; unpack it and specify a file"
    listed = ", ".join(map(repr, names[:MOST_LISTED])) + (" and more" if len(names) > MOST_LISTED else "")
    wrong = "" if chosen is None else f", and --sheet {chosen!r} does not match exactly one of them"
    return f"this ZIP archive has the tables {listed}{wrong}; choose one with --sheet {names[0]!r}"


def _read_archive(content: bytes, chosen: str | None) -> bytes:
    """Return the table `chosen` in a ZIP archive. Without a choice, return its only table."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
            if len(names) > 1:
                names = [name for name in names if may_be_table(name)]
            tables = names
            if chosen is not None:
                names = [name for name in names if chosen in (name, name.rpartition("/")[2])]
            if len(names) != 1:
                raise ValueError(_refuse_tables(tables, chosen))
            with archive.open(names[0]) as file:
                return read_limited(file)
    except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"this ZIP archive or workbook cannot be read: {error}; unpack it, or save it as CSV"
        ) from None
