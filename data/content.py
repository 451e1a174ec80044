"""What a file holds: a table as text, Parquet, Arrow or a workbook, plain or packed."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any, Final

from rfa.data.excel import is_workbook, read_workbook
from rfa.data.table import Table
from rfa.data.text import decoded, read_text

MAX_BYTES: Final = 2**31  # unpacked; arrays of Arrow's strings end there as well
PACKED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
ZIP: Final = b"PK\x03\x04"
CHUNK: Final = 2**20


def all_of(file: Any) -> bytes:
    """A file piece by piece, up to where it is too large: what it says of its size need not be so."""
    pieces, size = [], 0
    while size < MAX_BYTES and (piece := file.read(CHUNK)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def read_table(content: bytes, sheet: str | None = None) -> Table:
    """A table from a file's content: CSV in any dress, Parquet, Arrow or a workbook, plain or packed.

    Args:
        sheet: of a workbook; None is the first.

    Raises:
        ValueError: it is none, or a row has another number of cells than the header.
    """
    import pyarrow as pa

    content = _unpacked(content)
    if is_workbook(content):
        return read_workbook(content, sheet)
    if sheet is not None:
        raise ValueError(f"--sheet {sheet!r} is of workbooks, and this file is none")
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
    return read_text(*decoded(content))


def _unpacked(content: bytes) -> bytes:
    import pyarrow as pa

    for magic, codec in PACKED.items():
        if content.startswith(magic):
            try:
                with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
                    content = all_of(stream)
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"the {codec} file is damaged: {error}") from None
    if content.startswith(ZIP) and not is_workbook(content):
        content = _of_archive(content)
    if len(content) >= MAX_BYTES:
        raise ValueError("the file has 2 GiB or more: give a part of it")
    return content


def _of_archive(content: bytes) -> bytes:
    """The only file of a ZIP archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
            if len(names) != 1:
                raise ValueError(f"this is a ZIP archive of {len(names)} files: unpack it, and give those to read")
            with archive.open(names[0]) as file:
                return all_of(file)
    except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"this is a ZIP archive or a workbook and cannot be read: {error}; unpack it, or save as CSV"
        ) from None
