"""Durations as text: 30min, 6h, 2 days."""

from __future__ import annotations

import math
import re
from typing import Final

SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
WORDS: Final = {"sec": "s", "second": "s", "minute": "min", "hr": "h", "hour": "h", "day": "d", "week": "w"}
_WRITTEN: Final = re.compile(rf"(\d+\.?\d*|\.\d+)(e-?\d+)? *(?:({'|'.join(SECONDS)})|({'|'.join(WORDS)})s?)?")


def duration(text: str) -> tuple[float, str | None] | None:
    """A positive number and its unit (a key of SECONDS, or None), from text such as "6h" or "24"; None: invalid."""
    found = _WRITTEN.fullmatch(text.strip())
    number = float(f"{found[1]}{found[2] or ''}") if found else 0.0
    if found is None or not 0 < number < math.inf:
        return None
    return number, WORDS[found[4]] if found[4] else found[3]
