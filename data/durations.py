"""How long something is, as people write it."""

from __future__ import annotations

import math
import re
from typing import Final

SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
WORDS: Final = {"sec": "s", "second": "s", "minute": "min", "hr": "h", "hour": "h", "day": "d", "week": "w"}
_WRITTEN: Final = re.compile(rf"(\d+\.?\d*|\.\d+)(e-?\d+)? *(?:({'|'.join(SECONDS)})|({'|'.join(WORDS)})s?)?")


def duration(text: str) -> tuple[float, str | None] | None:
    """A number above 0 and its unit, one of SECONDS or None: "6h", "2 days", "24"; None: it is none."""
    found = _WRITTEN.fullmatch(text.strip())
    number = float(f"{found[1]}{found[2] or ''}") if found else 0.0
    if found is None or not 0 < number < math.inf:
        return None
    return number, WORDS[found[4]] if found[4] else found[3]
