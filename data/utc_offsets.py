"""Read the UTC offsets of a local clock over time from a time zone or from the rows of a table."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np

from rfa.data.clock import get_zone

# Changes of a time zone are searched from 1970 to 2100. They are more than EVERY apart.
LAST: Final = 4_102_444_800
EVERY: Final = 7 * 86_400
# A time that ends with its offset. If the offsets of the rows change more often than MOST_CHANGES, the rows are from
# several locations.
SHOWN: Final = r":\d\d(?:[.,]\d+)? ?(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)$"
MOST_CHANGES: Final = 1_000


@dataclass(frozen=True)
class UtcOffsets:
    """Differences between local time and UTC.

    Attributes:
        begins: Increasing times from which each offset applies, in seconds since 1970. The first offset also applies to
            times before.
        seconds: Offsets in seconds. An empty tuple means UTC.
    """

    begins: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    @classmethod
    def of_zone(cls, name: str) -> UtcOffsets:
        """Return the offsets of a time zone.

        Raises:
            ValueError: If the name is unknown.
        """
        get_zone(name)
        return _of_zone(name)

    @classmethod
    def of_rows(cls, times: np.ndarray, seconds: np.ndarray) -> UtcOffsets:
        """Return the offsets of rows `[N]` in chronological order. Each offset applies until it changes. The result is
        UTC if the offsets never change, or change too often."""
        first = np.flatnonzero(np.diff(seconds, prepend=np.nan))
        if not 1 < len(first) <= MOST_CHANGES:
            return UTC
        return cls(tuple(times[first].tolist()), tuple(seconds[first].tolist()))

    def local(self, times: np.ndarray) -> np.ndarray:
        """Convert seconds since 1970 UTC to local time."""
        if not self.begins:
            return times
        place = np.searchsorted(self.begins, times, side="right") - 1
        return times + np.array(self.seconds)[place.clip(min=0)]

    def array(self) -> np.ndarray:
        """Return the times and offsets of the K changes as an array `[K, 2]`."""
        return np.array([self.begins, self.seconds], np.float64).T.copy()


UTC: Final = UtcOffsets()


def shown_offsets(column: Any) -> np.ndarray | None:
    """Return the UTC offsets `[N]` in seconds that the times of a table contain, or None if a time has no offset."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type) or not pc.match_substring_regex(column[:1], SHOWN)[0].as_py():
        return None
    parts = pc.extract_regex(pc.utf8_trim_whitespace(column), SHOWN)
    if parts.null_count:
        return None
    sign, hours, minutes = (pc.struct_field(parts, name) for name in ("sign", "hours", "minutes"))
    size = 3600 * pc.cast(hours, pa.float64()).to_numpy() + 60 * pc.cast(minutes, pa.float64()).to_numpy()
    return np.where(pc.equal(sign, "-").to_numpy(), -size, size)


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
