"""How long an answer would have waited for the event loop on a machine that nobody else uses.

A turn is what a process worked between two beats of its event loop (`clocked_child`): processor time, and not more than
passed on the wall. Whoever comes in a turn waits for the rest of it and for the turn in which he is answered.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.soak.attacks.clocked_child import BEAT_SECONDS, RECORD
from tests.soak.attacks.machine import Span

# Of a turn, at which somebody comes.
MOMENTS = (np.arange(10) + 0.5) / 10


def turns(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """When the turns of a process began on the monotonic clock, and their seconds of work: [turns] each."""
    content = file.read_bytes() if file.is_file() else b""
    whole = content[: len(content) // RECORD.size * RECORD.size]
    beats = np.frombuffer(whole, dtype=np.float64).reshape(-1, 2)
    return beats[:-1, 0], np.diff(beats, axis=0).min(axis=1)


def wait_p99_ms(files: list[Path], window: Span) -> float | None:
    """99th percentile of the waiting in the process where it was longest, milliseconds; None without turns."""
    found = []
    for file in files:
        at, worked = turns(file)
        inside = np.nonzero((at >= window.begin) & (at < window.end))[0]
        if len(inside) > 1:
            found.append(1000 * _p99(worked[inside[0] : inside[-1] + 1]))
    return round(max(found), 2) if found else None


def _p99(worked: np.ndarray) -> float:
    this, following = worked[:-1], worked[1:]
    waits = this[:, None] * (1 - MOMENTS) + following[:, None]
    # An idle turn lasts as long as the pause between two beats, and as many come in it.
    weights = np.repeat(np.maximum(this, BEAT_SECONDS), len(MOMENTS))
    order = np.argsort(waits, axis=None)
    shares = np.cumsum(weights[order]) / weights.sum()
    return float(waits.ravel()[order][np.searchsorted(shares, 0.99)])
