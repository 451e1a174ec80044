"""How long something is, as people write it."""

from __future__ import annotations

import math
import re
from typing import Final

SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_WRITTEN: Final = re.compile(r"(\d+\.?\d*|\.\d+)(e-?\d+)? *(s|min|h|d|w)?")


def duration(text: str) -> tuple[float, str | None] | None:
    """A number above 0 and its unit, one of SECONDS or None; None: it is none."""
    found = _WRITTEN.fullmatch(text.strip())
    number = float(f"{found[1]}{found[2] or ''}") if found else 0.0
    return (number, found[3]) if found and 0 < number < math.inf else None
