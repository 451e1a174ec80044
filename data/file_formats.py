"""The formats of a file: CSV, JSON, Parquet, Arrow, ORC, SQLite or a workbook, plain or compressed."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any, Final

from rfa.data.csv_text import decode_text, read_text
from rfa.data.excel import OLD_WORKBOOK, is_workbook, read_workbook
from rfa.data.json_text import is_json, read_json
from rfa.data.table import Table

MAX_BYTES: Final = 2**31  # decompressed; also the limit of Arrow's string arrays
PACKED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
ZIP: Final = b"PK\x03\x04"
CHUNK: Final = 2**20
DATABASE: Final = b"SQLite format 3\x00"
ARROW: Final = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"FEA1", b"ORC")
UNREAD: Final = {
    b"Obj\x01": "Avro", b"\x89HDF": "HDF5 and NetCDF", b"CDF\x01": "NetCDF", b"CDF\x02": "NetCDF", b"%PDF": "PDF",
}  # fmt: skip
# Endings of tables among the other files of an archive.
TABLES: Final = (
    ".csv", ".tsv", ".txt", ".dat", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".orc", ".xlsx",
    ".xls", ".ods", ".db", ".sqlite",
)  # fmt: skip
OTHERS: Final = ("readme", "license", "licence", "metadata", "manifest")


def is_plain_text(content: bytes) -> bool:
    """Whether the content begins like CSV: not compressed, binary or JSON."""
    magics = (*PACKED, ZIP, DATABASE, OLD_WORKBOOK, *UNREAD, *ARROW)
    return not (content.startswith(magics) or b"\0" in content[:4096] or is_json(content))


def read_limited(file: Any) -> bytes:
    """Read a file in chunks up to the size limit; a stated size is not trusted."""
    pieces, size = [], 0
    while size < MAX_BYTES and (piece := file.read(CHUNK)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def read_table(content: bytes, sheet: str | None = None, query: str | None = None) -> Table:
    """A table from the content of a file, plain or compressed; its first bytes tell the format.

    Args:
        sheet: of a workbook; None: the first.
        query: of a SQLite database; None: its only table.

    Raises:
        ValueError: unknown format, or a row and the header differ in their number of cells.
    """
    import pyarrow as pa

    content = _decompress(content)
    if is_workbook(content):
        return read_workbook(content, sheet)
    if sheet is not None:
        raise ValueError(f"--sheet {sheet!r} is for workbooks, and this file is not one")
    if content.startswith(DATABASE):
        from rfa.data.sqlite import read_database

        return read_database(content, query)
    if query is not None:
        raise ValueError("--query is for SQLite databases, and this file is not one")
    try:
        found = _read_arrow(content)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"the file cannot be read: {str(error).splitlines()[0]}") from None
    if found is not None:
        return Table.of(found)
    for magic, name in UNREAD.items():
        if content.startswith(magic):
            raise ValueError(f"{name} files are not read: save the table as CSV or Parquet")
    return read_json(content) if is_json(content) else _read_csv(content)


def _read_csv(content: bytes) -> Table:
    text, notes, encoded = decode_text(content)
    return read_text(text, notes, encoded)


def _read_arrow(content: bytes) -> Any:
    """The Arrow table of a file in one of the formats that pyarrow reads; None for others."""
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


def _decompress(content: bytes) -> bytes:
    import pyarrow as pa

    for magic, codec in PACKED.items():
        if content.startswith(magic):
            try:
                with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
                    content = read_limited(stream)
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"the {codec} file is damaged: {error}") from None
    if content.startswith(ZIP) and not is_workbook(content):
        content = _read_archive(content)
    if len(content) >= MAX_BYTES:
        raise ValueError("the file has 2 GiB or more, the limit: split it")
    return content


def _may_be_table(name: str) -> bool:
    base = name.rpartition("/")[2].lower()
    return base.endswith(TABLES) and not base.startswith((*OTHERS, "."))


def _read_archive(content: bytes) -> bytes:
    """The only table of a ZIP archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
            if len(names) > 1:
                names = [name for name in names if _may_be_table(name)]
            if len(names) != 1:
                raise ValueError(f"this ZIP archive has {len(names)} tables: unpack it and give the files")
            with archive.open(names[0]) as file:
                return read_limited(file)
    except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"this ZIP archive or workbook cannot be read: {error}; unpack it, or save it as CSV"
        ) from None
