"""Options for reading a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a table. See `read_frame`."""

    time: str | None = None
    columns: Sequence[str] = ()
    by: Sequence[str] = ()
    zone: str = "UTC"
    time_format: str | None = None
    strict: bool = False
    start: str | None = None
    end: str | None = None
    every: str | None = None
    missing: Sequence[str] = ()
    known: Sequence[str] = ()
