"""Recorded metrics for the metric filter: a folder of one-column CSVs, of which only the earlier 60 % is read.

The rest can then measure what was made. The filter has nothing to train: its few constants were chosen by NAB's score
on all of that part, and export calibrates on its last two fifths.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rfa.data import Series
from rfa.model.batch import Batch
from rfa.training.recorded import load_folder
from rfa.training.series import windows

# Share of each series that may be seen, and the share of that part which is not calibrated on.
READ, FITTED = 0.6, 0.6


def load_metrics(folder: Path, length: int) -> tuple[Batch, Batch, tuple[Path, ...]]:
    """Windows of `length` rows of the two parts, and the files they come from.

    Raises:
        ValueError: no CSV, one with more than one column, or one too short for a window in each part.
    """
    files = tuple(sorted(folder.rglob("*.csv")))
    if not files:
        raise ValueError(f"{folder} has no .csv")
    fit: list[Batch] = []
    held: list[Batch] = []
    for path, series in zip(files, load_folder(files), strict=True):
        if series.values.shape[1] != 1:
            raise ValueError(f"{path.name} has {series.values.shape[1]} columns of values, a metric has one")
        end = int(READ * len(series.times))
        middle = int(FITTED * end)
        if min(middle, end - middle) < length:
            raise ValueError(f"{path.name} is too short: a window has {length} rows, its parts {middle, end - middle}")
        for part, bounds in ((fit, slice(0, middle)), (held, slice(middle, end))):
            part.append(windows(Series(series.times[bounds], series.values[bounds], series.names), length))
    return _joined(fit), _joined(held), files


def _joined(parts: list[Batch]) -> Batch:
    return Batch(np.concatenate([p.times for p in parts]), np.concatenate([p.observations for p in parts]))
