"""Parse durations such as 30min, 6h, 2 days, 1h30m, 01:30:00 and PT1H30M."""

from __future__ import annotations

import math
import re
from typing import Final

SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
WORDS: Final = {"sec": "s", "second": "s", "minute": "min", "hr": "h", "hour": "h", "day": "d", "week": "w"}
_WRITTEN: Final = re.compile(rf"(\d+\.?\d*|\.\d+)(e-?\d+)? *(?:({'|'.join(SECONDS)})|({'|'.join(WORDS)})s?)?")


# Duration with several units. In it, m means minutes, whereas a single m may mean months.
_COMBINED: Final = re.compile(
    r"(?=\D*\d+\D+\d|P)P?(?:(\d+) *w(?:eeks?)?)?[ ,]*(?:(\d+) *d(?:ays?)?)?[ ,T]*(?:(\d+) *h(?:ours?|rs?)?)?[ ,]*"
    r"(?:(\d+) *m(?:in(?:ute)?s?)?)?[ ,]*(?:(\d+\.?\d*) *s(?:ec(?:ond)?s?)?)?",
    re.IGNORECASE,
)
_OFFSET: Final = re.compile(r"(?<=\d\d:\d\d)(\.\d+)?[+-]\d\d:\d\d$")
_CLOCK: Final = re.compile(r"(?:(\d+)\.|(\d+) *d(?:ays?)?,? +)?(\d+):(\d\d)(?::(\d\d(?:\.\d+)?))?")


def _combined(text: str) -> float | None:
    """Convert a duration with several units to seconds, or return None for other text."""
    if found := _CLOCK.fullmatch(text):
        parts = (None, found[1] or found[2], *found.groups()[2:])
    elif (found := _COMBINED.fullmatch(text)) and any(found.groups()):
        parts = found.groups()
    else:
        return None
    return sum(float(part or 0) * SECONDS[unit] for part, unit in zip(parts, ("w", "d", "h", "min", "s"), strict=True))


# Number with a unit.
_ELAPSED: Final = re.compile(rf"(\d+\.?\d*|\.\d+) *(?:({'|'.join(SECONDS)})|({'|'.join(WORDS)})s?)")


def elapsed(text: str) -> float | None:
    """Convert an elapsed time, such as `90 min`, `26:10:00` or `0 days 00:10:00`, to seconds. Return None for other
    text. The UTC offset of a time of day is ignored."""
    text = _OFFSET.sub(r"\1", text.strip())
    if (found := _ELAPSED.fullmatch(text)) is not None:
        return float(found[1]) * SECONDS[WORDS[found[3]] if found[3] else found[2]]
    return _combined(text)


def duration(text: str) -> tuple[float, str | None] | None:
    """Return the number and the unit (a key of SECONDS, or None without a unit) of a positive duration such as "6h" or
    "24". Return None if the text is invalid."""
    if (seconds := _combined(text.strip())) is not None:
        return (seconds, "s") if 0 < seconds < math.inf else None
    found = _WRITTEN.fullmatch(text.strip())
    number = float(f"{found[1]}{found[2] or ''}") if found else 0.0
    if found is None or not 0 < number < math.inf:
        return None
    return number, WORDS[found[4]] if found[4] else found[3]
