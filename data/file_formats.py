"""The formats of a file: CSV, Parquet, Arrow or a workbook, plain or compressed."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any, Final

from rfa.data.csv_text import decode_text, read_text
from rfa.data.excel import is_workbook, read_workbook
from rfa.data.table import Table

MAX_BYTES: Final = 2**31  # decompressed; also the limit of Arrow's string arrays
PACKED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
ZIP: Final = b"PK\x03\x04"
CHUNK: Final = 2**20


def read_limited(file: Any) -> bytes:
    """Read a file in chunks up to the size limit; a stated size is not trusted."""
    pieces, size = [], 0
    while size < MAX_BYTES and (piece := file.read(CHUNK)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def read_table(content: bytes, sheet: str | None = None) -> Table:
    """A table from the content of a CSV, Parquet, Arrow or workbook file, plain or compressed.

    Args:
        sheet: of a workbook; None: the first.

    Raises:
        ValueError: unknown format, or a row and the header differ in their number of cells.
    """
    import pyarrow as pa

    content = _decompress(content)
    if is_workbook(content):
        return read_workbook(content, sheet)
    if sheet is not None:
        raise ValueError(f"--sheet {sheet!r} is for workbooks, and this file is not one")
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
    return read_text(*decode_text(content))


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


def _read_archive(content: bytes) -> bytes:
    """The only file of a ZIP archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
            if len(names) != 1:
                raise ValueError(f"this ZIP archive has {len(names)} files: unpack it and give the files")
            with archive.open(names[0]) as file:
                return read_limited(file)
    except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"this ZIP archive or workbook cannot be read: {error}; unpack it, or save it as CSV"
        ) from None
