"""Series of M4, ETT and the UCR archive, as the files of a data folder hold them."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

Array = np.ndarray


def read_ett(data: Path) -> tuple[Array, dict[str, Array]]:
    """Times `[N]` and columns `[N]` of ett/ETTh1.csv; none if the file is missing."""
    path = data / "ett" / "ETTh1.csv"
    if not path.is_file():
        return np.array([], "datetime64[s]"), {}
    with path.open(newline="") as file:
        (_, *names), *table = csv.reader(file)
    columns = np.array([row[1:] for row in table], float).T
    return np.array([row[0] for row in table], "datetime64[s]"), dict(zip(names, columns, strict=True))


def read_m4(path: Path) -> dict[str, Array]:
    """Series by name: a file of M4 has one per row."""
    with gzip.open(path, "rt", newline="") as file:
        return {name: np.array([float(cell) for cell in cells if cell]) for name, *cells in list(csv.reader(file))[1:]}


def read_archives(folder: Path) -> dict[str, Array]:
    """The arrays of all .npz files, sorted by name."""
    found: dict[str, Array] = {}
    for path in folder.glob("*.npz"):
        found |= dict(np.load(path))
    return dict(sorted(found.items()))
