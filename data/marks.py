"""Detect numbers that mark missing values, such as −999 or 9.96921e36, by their repetition and their distance from all
other values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rfa.data.table import MISSING

# Value of `--missing` that disables the search.
OFF: Final = "none"
# Numbers that are often used as marks.
NINES: Final = (
    999.0, 999.9, 999.99, 999.999, 9999.0, 9999.9, 9999.99, 99999.0, 99999.9, 999999.0, 9999999.0, 99999999.0,
    999999999.0, 8888.0, 88888.0, 32767.0, 32768.0, 65535.0, 2147483647.0, 2147483648.0, 4294967295.0,
)  # fmt: skip
MARKS: Final = frozenset((*NINES, *(-nine for nine in NINES), -99.0, -99.9, -99.99, -777.0, 99.9, 99.99))
# Positive marks below 100 must be further away from other values, because percentages are up to 100.
SMALL: Final = 100.0
FURTHER: Final = 10.0
# Larger numbers are not measurements. Usual fill values, of which 9.96921e36 is that of NetCDF.
FILL: Final = 9e19
FILLS: Final = (1e20, 9.999e20, 1e30, 1e32, 1e34, 1e35, 1e36, 9.969209968386869e36, 3.4028234663852886e38, 1e37)
# Minimum distance between a mark and the nearest other value, as a multiple of the range of the other values.
FAR: Final = 2.0
# Maximum number of marks in a column.
MOST: Final = 6
# Minimum number of other values.
LEAST: Final = 8


@dataclass(frozen=True)
class MissingRule:
    """Rule that determines which cells are missing in addition to empty cells.

    Attributes:
        words: Texts that mark missing values, in lower case.
        numbers: Numbers that mark missing values.
        finds_marks: Whether to also detect numbers that mark missing values.
    """

    words: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    finds_marks: bool = True

    @classmethod
    def of(cls, values: Sequence[str]) -> MissingRule:
        """Create a rule from the values of `--missing`."""
        words, numbers = [], []
        for value in values:
            try:
                numbers.append(float(value))
            except ValueError:
                words.append(value.strip().lower())
        return cls(tuple(word for word in words if word != OFF), tuple(numbers), OFF not in words)

    def apply(self, values: np.ndarray, name: str) -> tuple[np.ndarray, list[str]]:
        """Return values `[N]` in which marks are replaced by NaN, and notes on the marks."""
        notes = []
        found = [number for number in self.numbers if (values == number).any()]
        if found:
            values = _without(values, found)
        if self.finds_marks:
            marks, single = find_marks(values)
            if marks:
                counts = ", ".join(f"{mark:.6g} ({int((values == mark).sum())} cells)" for mark in marks)
                values = _without(values, marks)
                notes.append(f"column {name!r}: {counts} read as missing; --missing {OFF} keeps these values")
            notes += [f"column {name!r}: {x:.6g} is far from all other values; --missing={x:.6g} reads it as missing"
                      for x in single]  # fmt: skip
        return values, notes


def find_marks(values: np.ndarray) -> tuple[list[float], list[float]]:
    """Find numbers that mark missing values, such as -999, in values `[N]`.

    Returns:
        The marks that are read as missing values, and the marks that are only reported because they occur only once. A
        fill value, and a mark that is very far from all other values or occurs together with another mark, need not
        occur repeatedly.
    """
    others = values[~np.isnan(values)]
    present: list[float] = []
    fills: list[float] = []
    while len(others) >= LEAST and len(present) + len(fills) < MOST:
        low, high = float(others.min()), float(others.max())
        end = next((end for end in (low, high) if end in MARKS or abs(end) >= FILL), None)
        if end is None:
            break
        (fills if abs(end) >= FILL else present).append(end)
        others = others[others != end]
    if len(others) < LEAST:
        return [], []
    least, most = float(others.min()), float(others.max())
    reach = FAR * max(most - least, 0.05 * max(abs(least), abs(most)), 1e-9)
    counts = {mark: int((values == mark).sum()) for mark in present}
    far = [mark for mark in present if mark < least - reach or mark > most + reach * (FURTHER if mark < SMALL else 1)
           or (mark < 0 <= least and counts[mark] > 1)]  # fmt: skip
    repeated = [mark for mark in far if counts[mark] > 1]
    very_far = 20 * reach
    once = [mark for mark in far if counts[mark] == 1 and abs(mark) >= 999]
    repeated += [mark for mark in once if repeated or mark < least - very_far or mark > most + very_far]
    fills = [fill for fill in fills if (values == fill).sum() > 1 or np.isclose(abs(fill), FILLS, 1e-5).any()]
    return sorted([*repeated, *fills]), [mark for mark in once if mark not in repeated]


def _without(values: np.ndarray, marks: Sequence[float]) -> np.ndarray:
    return np.where(np.isin(values, marks), np.nan, values)


def present_cells(column: Any, words: tuple[str, ...] = ()) -> tuple[Any, list[str]]:
    """Return the cells without surrounding spaces and with null for missing values, and a note on words for missing
    values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pc.utf8_trim_whitespace(column)
    is_missing = pc.is_in(pc.utf8_lower(cells), pa.array([*MISSING, *words]))
    if cells.null_count == len(cells) or not pc.any(is_missing, min_count=0).as_py():
        return cells, []
    found = [str(word) for word in pc.unique(cells.filter(is_missing)).to_pylist() if word]
    note = [f"{', '.join(map(repr, found[:4]))} are missing values"] if found else []
    return pc.if_else(is_missing, pa.scalar(None, pa.string()), cells), note
