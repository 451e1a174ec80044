"""The offset of a local clock from UTC over time: that of a time zone, or of the rows of a table."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from rfa.data.clock import get_zone

# A zone's changes are known from 1970 to 2100. Two changes of a zone are farther apart than EVERY.
LAST: Final = 4_102_444_800
EVERY: Final = 7 * 86_400


@dataclass(frozen=True)
class UtcOffsets:
    """Local time minus UTC.

    Attributes:
        begins: moments from which on each offset holds, in seconds since 1970, rising; the first one holds before it.
        seconds: the offsets. None at all is UTC.
    """

    begins: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    @classmethod
    def of_zone(cls, name: str) -> UtcOffsets:
        """The offsets of a time zone.

        Raises:
            ValueError: unknown name.
        """
        get_zone(name)
        return _of_zone(name)

    @classmethod
    def of_rows(cls, times: np.ndarray, seconds: np.ndarray) -> UtcOffsets:
        """The offsets of rows `[N]`, in order of time; each holds until it changes."""
        if not len(seconds) or (seconds == seconds[0]).all():
            return UTC
        first = np.flatnonzero(np.diff(seconds, prepend=np.nan))
        return cls(tuple(times[first].tolist()), tuple(seconds[first].tolist()))

    def array(self) -> np.ndarray:
        """Moments and offsets, `[K, 2]`."""
        return np.array([self.begins, self.seconds], np.float64).T.copy()


UTC: Final = UtcOffsets()


@functools.lru_cache(64)
def _of_zone(name: str) -> UtcOffsets:
    zone = get_zone(name)

    def offset(seconds: int) -> float:
        return (datetime.fromtimestamp(seconds, zone).utcoffset() or timedelta()).total_seconds()

    begins, found = [0.0], [offset(0)]
    for end in range(EVERY, LAST, EVERY):
        if offset(end) == found[-1]:
            continue
        before, after = end - EVERY, end
        while after - before > 1:
            middle = (before + after) // 2
            before, after = (middle, after) if offset(middle) == found[-1] else (before, middle)
        begins.append(float(after))
        found.append(offset(end))
    return UtcOffsets(tuple(begins), tuple(found)) if len(found) > 1 else UTC
