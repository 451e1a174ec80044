"""Convert local times of a time zone to seconds since 1970 UTC, and back."""

from __future__ import annotations

from typing import Any

import numpy as np


def local_seconds(times: np.ndarray, zone: str) -> np.ndarray:
    """Convert seconds since 1970 UTC to local time, as seconds since 1970 in the time zone."""
    import pyarrow.compute as pc

    return stamp_seconds(pc.local_timestamp(_stamps(times, zone)))


def utc_seconds(shown: np.ndarray, zone: str) -> np.ndarray:
    """Convert local times, as seconds since 1970 in a time zone, to UTC. In an hour that repeats, the first occurrence
    is used."""
    import pyarrow.compute as pc

    return stamp_seconds(pc.assume_timezone(_stamps(shown, None), zone, ambiguous="earliest", nonexistent="latest"))


def _stamps(times: np.ndarray, zone: str | None) -> Any:
    import pyarrow as pa

    return pa.array(np.rint(1e6 * times).astype(np.int64)).cast(pa.timestamp("us", zone))


def stamps_to_utc(stamps: Any, zone: str) -> np.ndarray:
    """Return the UTC seconds of timestamps that are local to `zone`."""
    import pyarrow.compute as pc

    early = pc.assume_timezone(stamps, zone, ambiguous="earliest", nonexistent="latest")
    late = pc.assume_timezone(stamps, zone, ambiguous="latest", nonexistent="latest")
    return _in_seconds(
        _order_repeated_hour(stamp_counts(stamps), stamp_counts(early), stamp_counts(late)), stamps.type.unit
    )


def stamp_seconds(stamps: Any) -> np.ndarray:
    """Return Arrow timestamps in seconds since 1970."""
    return _in_seconds(stamp_counts(stamps), stamps.type.unit)


def _in_seconds(counts: np.ndarray, unit: str) -> np.ndarray:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    whole, part = np.divmod(counts, per_second)
    return np.asarray(whole + part / per_second, np.float64) if part.any() else whole.astype(np.float64)


def stamp_counts(stamps: Any) -> np.ndarray:
    """Return Arrow timestamps as integers since 1970, in the unit of their type."""
    return np.asarray(stamps.cast("int64").to_numpy(), np.int64)


def _order_repeated_hour(shown: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Choose between the two possible UTC times of each row in an hour that occurs twice, and return the UTC times of
    all rows. The second occurrence of the hour starts where local times decrease."""
    found = first.copy()
    is_second = False
    for k in np.flatnonzero(first != second).tolist():
        # This is the first row of a repeated hour.
        if k == 0 or first[k - 1] == second[k - 1]:
            is_second = False
        elif shown[k] < shown[k - 1] or _is_hourly_pair(shown, k, second[k] - first[k]):
            is_second = True
        if is_second:
            found[k] = second[k]
    return found


def _is_hourly_pair(shown: np.ndarray, k: int, hour: int) -> bool:
    """Return whether row k is the only one that repeats the previous time, among rows that are at least an hour
    apart."""
    around = np.diff(shown[max(0, k - 3) : k + 3])
    others = around[around != 0]
    is_alone = 0 < len(others) == len(around) - 1
    return bool(shown[k] == shown[k - 1] and is_alone and others.min() >= hour)
