"""A recorded series."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np


@dataclass(frozen=True)
class Series:
    """times `[N]` non-decreasing, in seconds where dates were given, values `[N, P]` (NaN = missing), names of the P
    columns; clock: name of the column of times, None where there was none; is_dated: the times are moments, in seconds
    since 1970; notes: what was decided or left out while reading, a line each; rows: `[N]`, the row of the table, from
    0, that each comes from, None where cells of several were put together; clock_columns: those of the table that are
    the clock, two where date and time of day are apart; zone: where it hung if it names none; form: how it is written,
    see `rfa.data.clock.Clock`."""

    times: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]
    clock: str | None = None
    is_dated: bool = False
    notes: tuple[str, ...] = ()
    rows: np.ndarray | None = None
    clock_columns: tuple[str, ...] = ()
    zone: str = "UTC"
    form: str | float | None = None

    def moments(self, times: np.ndarray) -> np.ndarray:
        """Times of the series as dates in UTC, to the microsecond; as they are where it has no dates."""
        return np.rint(1e6 * times).astype("datetime64[us]") if self.is_dated else times

    def by_column(self) -> list[Self]:
        """A series for each column."""
        return [replace(self, values=self.values[:, [a]], names=(name,)) for a, name in enumerate(self.names)]
