"""Files to learn from or to be judged by: what was decided in reading them is said, as `rfa filter` says it."""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

from rfa.data import Series, load_series


def load_recorded(source: str | Path) -> Series:
    """A series of a file; notes of the loader go to stderr.

    Raises:
        ValueError: it cannot be read, or is no file: the record of a run keeps the hash of what it learned from.
    """
    if str(source) == "-" or "://" in str(source):
        raise ValueError(f"data to learn from are a file, whose hash is kept; save {str(source)!r} as one first")
    series = load_series(source)
    for note in series.notes:
        tqdm.write(f"{Path(source).name}: {note}", file=sys.stderr)
    return series
