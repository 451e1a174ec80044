"""Takes a share of the processor and does nothing with it: `python -m tests.soak.attacks.burner SHARE SECONDS`."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

PERIOD_SECONDS = 0.01


def burn(share: float, seconds: float) -> None:
    """Spin for a share of every hundredth of a second."""
    end = time.monotonic() + seconds
    while (begun := time.monotonic()) < end:
        while time.monotonic() < begun + share * PERIOD_SECONDS:
            pass
        time.sleep(max(0.0, begun + PERIOD_SECONDS - time.monotonic()))


@contextmanager
def burning(share: float, seconds: float) -> Iterator[None]:
    """Processes that take a share of a core together, or of several; they end with the block."""
    count = max(1, math.ceil(share))
    command = [sys.executable, __file__, str(share / count), str(seconds)]
    running = [subprocess.Popen(command) for _ in range(count)] if share > 0 else []
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    burn(float(sys.argv[1]), float(sys.argv[2]))
