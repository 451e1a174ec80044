"""Load recorded files for training and evaluation, and print the loader's notes."""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

from rfa.data import Series, load_series


def load_recorded(source: str | Path) -> Series:
    """Load a series from a file, and print the loader's notes to stderr.

    Raises:
        ValueError: If the file cannot be read, or `source` is not a file. The record of a run needs the hash of a file.
    """
    if str(source) == "-" or "://" in str(source):
        raise ValueError(f"training data must be a file, because its hash is recorded; save {str(source)!r} to a file")
    series = load_series(source)
    for note in series.notes:
        tqdm.write(f"{Path(source).name}: {note}", file=sys.stderr)
    return series
