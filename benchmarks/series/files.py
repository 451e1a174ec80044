"""Read the series of M4, ETT, R packages and the UCR archive from a data folder."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

Array = np.ndarray
# The number by which R marks a missing integer.
R_MISSING = -(2**31)


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


def read_r_matrix(path: Path) -> Array:
    """Read the columns `[series, rows]` of the numeric matrix in an R data file with one object. Missing is NaN.

    The file is gzipped XDR: a header, a pair list with the object's name, and a vector of int32 or float64.
    """
    content = gzip.decompress(path.read_bytes())
    if not content.startswith(b"RDX2\nX\n"):
        raise ValueError(f"{path} is not an R data file of version 2 in XDR format")
    name_length = int.from_bytes(content[31:35])
    kind, length = np.frombuffer(content, ">i4", 2, 35 + name_length).tolist()
    types = {13: ">i4", 14: ">f8"}
    if kind & 0xFF not in types:
        raise ValueError(f"{path} does not hold a numeric matrix")
    values = np.frombuffer(content, types[kind & 0xFF], length, 43 + name_length).astype(np.float64)
    values[values == R_MISSING] = np.nan
    rows = int.from_bytes(content[_dimensions(content) :][:4])
    return values.reshape(-1, rows)


def _dimensions(content: bytes) -> int:
    """Return where the numbers of the attribute `dim` begin: after its name, their type and their count."""
    return content.index(b"\0\0\0\x03dim") + 7 + 8


def read_archives(folder: Path) -> dict[str, Array]:
    """Read the arrays of all .npz files, sorted by name."""
    found: dict[str, Array] = {}
    for path in folder.glob("*.npz"):
        found |= dict(np.load(path))
    return dict(sorted(found.items()))
