"""Weekly pattern in local time: an offset for each type of day, time of day and column.

    value(t) = pattern[type of the day, time of the day]     linear between the nodes of a day

The type of a day is its weekday, or holiday for listed dates. The pattern follows local time when daylight saving
changes. A filter subtracts it from observations, as a known bias of the sensor, and adds it to forecasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DAY_SECONDS: Final = 86_400
WEEKDAYS: Final = 7
# Limits of a document: nodes per day (one per quarter of an hour), columns, and listed dates.
MOST_SLOTS, MOST_COLUMNS, MOST_DATES = 96, 64, 1_000
LARGEST: Final = 1e30
# The range begins in 1971, because smaller numbers may be row counts. It ends with the last year with four digits.
FIRST_MOMENT, LAST_MOMENT = 365 * DAY_SECONDS, 253_402_300_799 - DAY_SECONDS
_EPOCH = date(1970, 1, 1)


class Nodes(NamedTuple):
    """Positions of N times between the nodes of a calendar.

    Attributes:
        before, after: Nodes before and after each time, `[N]`. The index of a node is type of day · slots + slot.
        share: Relative position between the two nodes, from 0 to 1, `[N]`.
    """

    before: np.ndarray
    after: np.ndarray
    share: np.ndarray


@dataclass(frozen=True)
class Days:
    """The time zone, the number of nodes per day and the holidays of a calendar.

    Raises:
        ValueError: If the time zone is unknown, or a number or date is invalid.
    """

    zone: str
    slots: int
    holidays: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.zone, str) or not _is_zone(self.zone):
            raise ValueError(f"zone must be the name of a time zone such as Europe/Berlin or UTC, got {self.zone!r}")
        if not isinstance(self.slots, int) or isinstance(self.slots, bool) or not 1 <= self.slots <= MOST_SLOTS:
            raise ValueError(f"slots must be an integer from 1 to {MOST_SLOTS}, got {self.slots!r}")
        if len(self.holidays) > MOST_DATES:
            raise ValueError(f"holidays must be a list of at most {MOST_DATES} dates")
        object.__setattr__(self, "holidays", tuple(sorted(set(map(_checked_date, self.holidays)))))
        object.__setattr__(self, "_holidays", np.array([_day(day) for day in self.holidays], dtype=np.int64))

    @property
    def types(self) -> int:
        """Number of types of days, which is 7 for the weekdays, and 8 if the calendar also lists holidays."""
        return WEEKDAYS + bool(self.holidays)

    def nodes(self, times: np.ndarray) -> Nodes:
        """Return the positions of times between the nodes of the calendar.

        Args:
            times: Seconds since 1970, `[N]`.

        Raises:
            ValueError: If a time is outside the years 1971 to 9999.
        """
        if not is_moment(times).all():
            raise ValueError("a calendar requires times in seconds since 1970, in the years 1971 to 9999")
        day, rest = self._local(times)
        place = rest * (self.slots / (DAY_SECONDS * 1e6))
        slot = np.floor(place).astype(np.int64)
        following = slot + 1 == self.slots
        after = self._type(day + following) * self.slots + np.where(following, 0, slot + 1)
        return Nodes(self._type(day) * self.slots + slot, after, place - slot)

    def dates(self, times: np.ndarray) -> np.ndarray:
        """Return the local day of each time, in days since 1970."""
        return self._local(times)[0]

    def is_holiday(self, dates: np.ndarray) -> np.ndarray:
        """Return whether each day is a holiday.

        Args:
            dates: Days since 1970.
        """
        listed: np.ndarray = getattr(self, "_holidays")  # noqa: B009 - set in __post_init__, no field
        return np.isin(dates, listed)

    def _local(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the local day of each time, and the microseconds since its midnight."""
        micros = np.rint(1e6 * np.asarray(times, dtype=np.float64)).astype(np.int64)
        local = pc.local_timestamp(pa.array(micros, pa.timestamp("us", tz=self.zone))).to_numpy(zero_copy_only=False)
        day, rest = np.divmod(local.astype(np.int64), DAY_SECONDS * 1_000_000)
        return day, rest

    def _type(self, day: np.ndarray) -> np.ndarray:
        weekday = (day + _EPOCH.weekday()) % WEEKDAYS
        return np.where(self.is_holiday(day), WEEKDAYS, weekday)


@dataclass(frozen=True)
class Calendar:
    """The days of a calendar and their pattern.

    Args:
        days: Types of days, and nodes per day.
        pattern: Offsets `[P, types of days, slots]`. Monday is the first type of day, and holidays are the last.

    Raises:
        ValueError: If the pattern has the wrong shape, too many columns, or a non-finite value.
    """

    days: Days
    pattern: np.ndarray

    def __post_init__(self) -> None:
        pattern = np.asarray(self.pattern, dtype=np.float64)
        expected = self.days.types, self.days.slots
        if pattern.ndim != 3 or pattern.shape[1:] != expected or not 1 <= len(pattern) <= MOST_COLUMNS:
            shape = f"[1 to {MOST_COLUMNS} columns, {expected[0]} types of days, {expected[1]} slots]"
            raise ValueError(f"pattern must be {shape}, got {list(pattern.shape)}")
        if not (np.abs(pattern) <= LARGEST).all():
            raise ValueError(f"pattern must contain finite numbers of magnitude at most {LARGEST:g}")
        object.__setattr__(self, "pattern", pattern)

    def at(self, times: np.ndarray) -> np.ndarray:
        """Return the pattern `[N, P]` at `times` `[N]`, which are seconds since 1970."""
        before, after, share = self.days.nodes(times)
        flat = self.pattern.reshape(len(self.pattern), -1)
        return (flat[:, before] + share * (flat[:, after] - flat[:, before])).T

    def to_document(self) -> dict[str, Any]:
        """Return the calendar as a dictionary of JSON types."""
        days = self.days
        return {
            "zone": days.zone, "slots": days.slots, "holidays": list(days.holidays), "pattern": self.pattern.tolist()
        }  # fmt: skip

    @classmethod
    def from_document(cls, document: Any) -> Calendar:
        """Create a calendar from a dictionary of JSON types.

        Raises:
            ValueError: If an entry is missing, unknown or invalid. The message names the entry and the reason.
        """
        if not isinstance(document, Mapping):
            raise ValueError("calendar must be an object with zone, slots and pattern")
        if unknown := set(document) - {"zone", "slots", "holidays", "pattern"}:
            raise ValueError(
                f"calendar contains unknown entries {sorted(unknown)}; the allowed entries are zone, slots, holidays "
                "and pattern"
            )
        if missing := {"zone", "slots", "pattern"} - set(document):
            raise ValueError(f"calendar must contain the entries {sorted(missing)}")
        try:
            listed = document.get("holidays") or ()
            if not isinstance(listed, (list, tuple)):
                raise ValueError("holidays must be a list of dates such as 2026-12-25")
            days = Days(document["zone"], document["slots"], tuple(listed))
            try:
                pattern = np.asarray(document["pattern"], dtype=np.float64)
            except (TypeError, ValueError):
                raise ValueError(
                    "pattern must contain a list for each column, with a list of numbers for each type of day"
                ) from None
            return cls(days, pattern)
        except ValueError as error:
            raise ValueError(f"calendar.{error}") from None


@lru_cache(64)
def _is_zone(name: str) -> bool:
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", tz=name)))
    except (pa.ArrowException, ValueError):
        return False
    return bool(name)


def _checked_date(text: Any) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except (TypeError, ValueError):
        raise ValueError(f"holidays must be dates such as 2026-12-25, got {text!r}") from None


def _day(text: str) -> int:
    return (date.fromisoformat(text) - _EPOCH) // timedelta(days=1)


def is_moment(times: np.ndarray) -> np.ndarray:
    """Return whether each time can be interpreted as seconds since 1970. Row numbers, and times in years with more than
    four digits, cannot."""
    return (times >= FIRST_MOMENT) & (times <= LAST_MOMENT)
