"""Maintenance windows. Rows in them are treated as missing, so they neither raise alarms nor are learned from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np

from rfa.data.clock import get_zone
from rfa.data.utc_offsets import UTC, UtcOffsets
from rfa.runtime.compiling import inline_jit
from rfa.runtime.errors import InvalidInput
from rfa.runtime.local_time_numba import utc_offset

Array = np.ndarray[Any, Any]
Window = str | Sequence[float]
MOST_WINDOWS: Final = 64
MUTE_FORM: Final = 'a weekly window such as "sat 22:00-23:30", two times joined by /, or a list of two times'
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NAMES: Final = "|".join(_DAYS)
_WEEKLY: Final = re.compile(rf"(daily|(?:{_NAMES})(?:-(?:{_NAMES}))?) (\d\d?):(\d\d)-(\d\d?):(\d\d)", re.IGNORECASE)
DAY, WEEK = 86_400.0, 604_800.0
# 1970 began on a Thursday.
MONDAY: Final = 3 * DAY


@dataclass(frozen=True)
class Mute:
    """Maintenance windows of a request.

    Attributes:
        spans: Begin and end of single windows, in the unit of the times.
        weekly: Begin and end of weekly windows, in seconds since Monday at 00:00 local time. They may exceed a week.
        utc_offsets: Offsets of local time.
    """

    spans: tuple[tuple[float, float], ...] = ()
    weekly: tuple[tuple[float, float], ...] = ()
    utc_offsets: UtcOffsets = UTC

    @classmethod
    def of(cls, windows: Sequence[Window], tz: str = "UTC") -> Mute:
        """Return the maintenance windows of a request.

        Args:
            windows: Windows, as described by MUTE_FORM.
            tz: Time zone of the windows.

        Raises:
            InvalidInput: If a window is invalid. The message names it.
        """
        if isinstance(windows, str) or not isinstance(windows, Sequence) or len(windows) > MOST_WINDOWS:
            raise _invalid("alarm.mute", f"be a list of at most {MOST_WINDOWS} windows")
        spans: list[tuple[float, float]] = []
        weekly: list[tuple[float, float]] = []
        for k, window in enumerate(windows):
            name = f"alarm.mute[{k}]"
            if isinstance(window, str) and (found := _WEEKLY.fullmatch(window.strip())):
                weekly += _weekly_windows(name, found)
            else:
                spans.append(_span(name, window, tz))
        shift = constant_offset(tz)
        return cls(tuple(spans), tuple((begin - shift, end - shift) for begin, end in weekly), UtcOffsets.of_zone(tz))

    def __bool__(self) -> bool:
        return bool(self.spans or self.weekly)

    def arrays(self) -> tuple[Array, Array, Array]:
        """Return the single windows, the weekly windows and the UTC offsets as arrays, `[W, 2]` each."""
        spans, weekly = (np.array(windows, np.float64).reshape(-1, 2) for windows in (self.spans, self.weekly))
        return spans, weekly, self.utc_offsets.array()

    def covers(self, times: Array) -> Array:
        """Return whether each time `[N]` is in a maintenance window."""
        spans, weekly, offsets = self.arrays()
        found = np.zeros(len(times), bool)
        for begin, end in spans:
            found |= (times >= begin) & (times < end)
        local = times + MONDAY
        if len(offsets):
            local = local + offsets[np.maximum(np.searchsorted(offsets[:, 0], times, "right") - 1, 0), 1]
        in_week = np.mod(local, WEEK)
        for begin, end in weekly:
            for shown in (in_week, in_week - WEEK, in_week + WEEK):
                found |= (shown >= begin) & (shown < end)
        return found


def _weekly_windows(name: str, found: re.Match[str]) -> list[tuple[float, float]]:
    days, *numbers = found.groups()
    hour, minute, last_hour, last_minute = map(int, numbers)
    if max(minute, last_minute) > 59 or max(60 * hour + minute, 60 * last_hour + last_minute) > 24 * 60:
        raise _invalid(name, "have times from 00:00 to 24:00")
    begin, end = 60.0 * (60 * hour + minute), 60.0 * (60 * last_hour + last_minute)
    end += DAY if end <= begin else 0.0
    first, last = 0, len(_DAYS) - 1
    if days.lower() != "daily":
        ends = days.lower().split("-")
        first, last = _DAYS.index(ends[0]), _DAYS.index(ends[-1])
        last += len(_DAYS) if last < first else 0
    return [(begin + DAY * (day % 7), end + DAY * (day % 7)) for day in range(first, last + 1)]


def _span(name: str, window: Any, tz: str) -> tuple[float, float]:
    ends = window.split("/") if isinstance(window, str) else window
    try:
        begin, end = (_moment(each, tz) for each in ends)
    except (TypeError, ValueError):
        raise _invalid(name, f"be {MUTE_FORM}") from None
    if not begin < end:
        raise _invalid(name, "begin before it ends")
    return begin, end


def _moment(text: Any, tz: str) -> float:
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    moment = datetime.fromisoformat(str(text).strip())  # TOML and YAML parsers return objects for times
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=get_zone(tz))).timestamp()


def constant_offset(tz: str) -> float:
    """Return the UTC offset of a zone that has had only one offset since 1970, or 0 for other zones."""
    if UtcOffsets.of_zone(tz) != UTC:
        return 0.0
    return (datetime.fromtimestamp(0, get_zone(tz)).utcoffset() or timedelta()).total_seconds()


def _invalid(name: str, expected: str) -> InvalidInput:
    return InvalidInput(f"{name} must {expected}", param=name, code="out_of_range")


@inline_jit
def is_muted_between(begin, end, spans, weekly, utc_offsets):  # type: ignore[no-untyped-def]
    """Return whether a window overlaps the time from `begin` to `end`. See `Mute.arrays` for the other arguments."""
    for k in range(len(spans)):
        if spans[k, 0] < end and spans[k, 1] > begin:
            return True
    last = (end + utc_offset(utc_offsets, end) + MONDAY) % WEEK
    first = last - (end - begin)
    for k in range(len(weekly)):
        for week in range(-2, 2):
            if weekly[k, 0] + week * WEEK < last and weekly[k, 1] + week * WEEK > first:
                return True
    return False
