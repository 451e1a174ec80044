"""Read a sample of a large CSV file, which consists of its beginning, its end, and evenly spaced parts between
them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rfa.data.csv_text import BOMS, decode_text, read_text
from rfa.data.file_formats import is_plain_text
from rfa.data.influx_csv import is_annotated
from rfa.data.source import is_url
from rfa.data.table import Table

# Smaller files are read whole.
LARGE: Final = 2**25
# Size in bytes of the first and of the last part, and number and size of the parts between them.
ENDS: Final = 2**20
PARTS: Final = 16
PART: Final = 2**17
# Maximum number of lines of a quoted cell.
MOST_LINES: Final = 100


@dataclass(frozen=True)
class TableSample:
    """A sample of the rows of a large file.

    Attributes:
        table: Rows of the sample.
        share: Fraction of the bytes of the file that were read.
        breaks: Number of positions at which rows were skipped.
    """

    table: Table
    share: float
    breaks: int


def sample_table(source: str | Path) -> TableSample | None:
    """Return a sample of the rows of a large local CSV file. Return None for small files and other formats, which are
    read completely.

    Raises:
        ValueError: If the first part cannot be read. See `read_text`.
    """
    path = Path(source)
    if str(source) == "-" or is_url(source) or not path.is_file() or path.stat().st_size < LARGE:
        return None
    first, *others = _read_parts(path)
    if first.startswith(tuple(BOMS)[1:]) or not is_plain_text(first) or is_annotated(first[:PART].decode("latin-1")):
        return None
    size = path.stat().st_size
    # A quoted cell with line ends may begin before a part.
    for parts in ([first, *others], [first]):
        content = b"".join(parts)
        text, notes, encoded = decode_text(content)
        try:
            return TableSample(read_text(text, notes, encoded), len(content) / size, len(parts) - 1)
        except ValueError:
            if len(parts) == 1:
                raise
    return None


def _read_parts(path: Path) -> list[bytes]:
    """Return parts of the file that consist of whole lines. The first part has the header."""
    size = path.stat().st_size
    begins = np.linspace(ENDS, size - ENDS, PARTS + 2).astype(int)[1:].tolist()
    with path.open("rb") as file:
        parts = [_whole_rows(file.read(ENDS))]
        for begin, length in zip(begins, [PART] * PARTS + [ENDS + 1], strict=True):
            file.seek(begin)
            part = file.read(length)
            rest = part[part.find(b"\n") + 1 :]
            parts.append(rest if begin + length > size else _until_line_end(rest))
    return parts


def _whole_rows(part: bytes) -> bytes:
    """Return the part up to the last line end that is outside of quotes."""
    whole = _until_line_end(part)
    for _ in range(MOST_LINES):
        if whole.count(b'"') % 2 == 0:
            return whole
        whole = _until_line_end(whole[:-1])
    return _until_line_end(part)


def _until_line_end(part: bytes) -> bytes:
    return part[: part.rfind(b"\n") + 1]
