"""Read columns whose future values are known, such as prices, promotions and holidays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rfa.data.columns import read_values
from rfa.data.marks import MissingRule
from rfa.data.series import Covariates, Series
from rfa.data.table import Table

# Maximum number of different words in a column of words. Each word becomes a column of 0 and 1.
MOST_WORDS: Final = 12


def read_covariates(table: Table, names: Sequence[str], rule: MissingRule, *, strict: bool) -> dict[str, np.ndarray]:
    """Return the known covariates. A column contains numbers, switches such as yes and no, or words, each of which
    becomes a column of 0 and 1.

    Raises:
        ValueError: If a column has too many words. The message says what to do.
    """
    found: dict[str, np.ndarray] = {}
    for name in names:
        try:
            values = read_values(table, [name], rule, is_chosen=True, is_long=False, strict=strict).values
        except ValueError:
            values = _indicators(table, name)
        found |= values
    return found


def _indicators(table: Table, name: str) -> dict[str, np.ndarray]:
    cells = np.array([None if cell is None else str(cell).strip() for cell in table.columns[name].to_pylist()], object)
    words = sorted({cell for cell in cells if cell})
    if not words or len(words) > MOST_WORDS:
        if not words:
            raise ValueError(f"column {name!r} has no values; remove it from --known")
        raise ValueError(
            f"column {name!r} has {len(words)} categories, more than the limit of {MOST_WORDS}; replace it with "
            "indicator columns (0 or 1), and specify these with --known"
        )
    return {f"{name}={word}": (cells == word).astype(np.float64) for word in words}


def split_covariates(series: Series, count: int) -> Series:
    """Split off the last `count` columns of a series, which are known covariates. Rows after the last row with another
    value are in the future.

    Raises:
        ValueError: If no other column has a value.
    """
    values, covariates = series.values[:, :-count], series.values[:, -count:]
    seen = np.flatnonzero(~np.isnan(values).all(axis=1))
    if not len(seen):
        raise ValueError("the value columns are empty")
    end = int(seen[-1]) + 1
    return replace(
        series, times=series.times[:end], values=values[:end], names=series.names[:-count],
        rows=None if series.rows is None else series.rows[:end],
        covariates=Covariates(series.times, covariates, series.names[-count:]),
    )  # fmt: skip
