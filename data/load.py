"""A series, or a table of several, from a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rfa.data.frame import read_frame
from rfa.data.series import Series
from rfa.data.table import MAX_BYTES, Table, read_table


def load_table(source: str | Path) -> Table:
    """The table of a file, its cells yet to be read: CSV in any dress, Parquet or Arrow, plain or packed.

    Args:
        source: a file, or "-" for standard input.

    Raises:
        ValueError: what the file is, or the row that cannot be read, and what to do.
    """
    return read_table(_content(source))


def load_series(
    source: str | Path,
    *,
    time: str | None = None,
    columns: Sequence[str] = (),
    zone: str = "UTC",
    time_format: str | None = None,
    strict: bool = False,
    start: str | None = None,
    end: str | None = None,
    every: str | None = None,
) -> Series:
    """Read one recorded series; see `load_table` for files, and `read_frame` for what can be chosen.

    Raises:
        ValueError: what the file is, or the row and column that cannot be read, and what to do.
    """
    (series,) = read_frame(
        load_table(source), time=time, columns=columns, zone=zone, time_format=time_format, strict=strict, start=start,
        end=end, every=every,
    ).values()  # fmt: skip
    return series


def _content(source: str | Path) -> bytes:
    if str(source) == "-":
        return sys.stdin.buffer.read(MAX_BYTES)
    path = Path(source)
    if not path.exists():
        raise ValueError(f"file {str(path)!r} does not exist")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file")
    if path.stat().st_size >= MAX_BYTES:
        raise ValueError(f"{path.name} has 2 GiB or more: give a part of it")
    return path.read_bytes()
