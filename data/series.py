"""A recorded series."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Series:
    """times `[N]` non-decreasing, in seconds where dates were given, values `[N, P]` (NaN = missing), names of the P
    columns; has_clock: times were given; notes: what was decided or left out while reading, a line each."""

    times: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]
    has_clock: bool = True
    notes: tuple[str, ...] = ()
