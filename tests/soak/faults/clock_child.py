"""A server process whose wall clock is ahead by as many seconds as the file CLOCK_OFFSET says now."""

from __future__ import annotations

import os
import time
from pathlib import Path

OFFSET = Path(os.environ["CLOCK_OFFSET"])
real_time = time.time


def shifted() -> float:
    return real_time() + float(OFFSET.read_text())


if __name__ == "__main__":
    # Before anything that keeps a reference to it is imported.
    time.time = shifted
    from rfa.service.process import child

    child.main()
