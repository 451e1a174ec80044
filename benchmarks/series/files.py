"""Read the series of M4, ETT and the UCR archive from a data folder."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

Array = np.ndarray


def read_ett(data: Path) -> tuple[Array, dict[str, Array]]:
    """Read times `[N]` and columns `[N]` of ett/ETTh1.csv, or nothing if the file is missing."""
    path = data / "ett" / "ETTh1.csv"
    if not path.is_file():
        return np.array([], "datetime64[s]"), {}
    with path.open(newline="") as file:
        (_, *names), *table = csv.reader(file)
    columns = np.array([row[1:] for row in table], float).T
    return np.array([row[0] for row in table], "datetime64[s]"), dict(zip(names, columns, strict=True))


def read_m4(path: Path) -> dict[str, Array]:
    """Read the series of an M4 file, one per row, by name."""
    with gzip.open(path, "rt", newline="") as file:
        return {name: np.array([float(cell) for cell in cells if cell]) for name, *cells in list(csv.reader(file))[1:]}


def read_archives(folder: Path) -> dict[str, Array]:
    """Read the arrays of all .npz files, sorted by name."""
    found: dict[str, Array] = {}
    for path in folder.glob("*.npz"):
        found |= dict(np.load(path))
    return dict(sorted(found.items()))
