"""Recorded series and their covariates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rfa.data.utc_offsets import UTC, UtcOffsets

if TYPE_CHECKING:
    from rfa.data.clock_parts import ClockParts

Key = tuple[Any, ...]


def key_name(key: Key) -> str:
    """Return the key of a series as text."""
    return " / ".join(map(str, key))


def with_file(name: str, series: Mapping[Key, Series]) -> dict[Key, Series]:
    """Return one series per column of the series in a file. Their keys begin with the name of the file."""
    columns = ((key, column) for key, one in series.items() for column in one.by_column())
    return {(name, *key, column.names[0]): column for key, column in columns}


@dataclass(frozen=True)
class Covariates:
    """Columns whose future values are known.

    Attributes:
        times: Times `[N]` of the rows of a series and of the rows to come.
        values: Values `[N, K]`. NaN is a missing value.
        names: Names of the K columns.
    """

    times: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True)
class Series:
    """A recorded series with one or several columns.

    Attributes:
        times: Non-decreasing times `[N]`, in seconds since 1970 if `is_dated`.
        values: Values `[N, P]`. NaN is a missing value.
        names: Names of the P columns.
        clock: Name of the time column. None if there is none.
        is_dated: Whether times are dates. Otherwise they are numbers.
        notes: Notes on how the series was read.
        rows: Rows `[N]` of the table, from 0. None after resampling.
        clock_columns: Names of the time columns of the table. There are several if parts of the times are separate.
        clock_parts: Description of how several time columns are joined. None if there is only one.
        zone: Time zone of times without a time zone.
        form: Format of the times. See `rfa.data.clock.Clock`.
        utc_offsets: UTC offsets of the local time, which determines the days and weeks of models.
        covariates: Columns whose future values are known.
    """

    times: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]
    clock: str | None = None
    is_dated: bool = False
    notes: tuple[str, ...] = ()
    rows: np.ndarray | None = None
    clock_columns: tuple[str, ...] = ()
    clock_parts: ClockParts | None = None
    zone: str = "UTC"
    form: str | float | None = None
    utc_offsets: UtcOffsets = UTC
    covariates: Covariates | None = None

    def moments(self, times: np.ndarray) -> np.ndarray:
        """Return times as UTC dates with microseconds. They are unchanged if the series has no dates."""
        return np.rint(1e6 * times).astype("datetime64[us]") if self.is_dated else times

    def by_column(self) -> list[Self]:
        """Return one series per column."""
        return [replace(self, values=self.values[:, [a]], names=(name,)) for a, name in enumerate(self.names)]
