"""The tested server: a real `rfa serve` with its log, gauges and memory."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.soak.faults.server import Server
from tests.soak.wire.application import BUNDLE, KEY
from tests.soak.wire.verdict import ANY_NONCE
from tests.waiting import TooLate, wait_until

SETTINGS = {
    "processes": 2,
    "header_timeout_seconds": 10,
    "body_timeout_seconds": 10,
    "log_format": "json",
}
GAUGES = ("open_connections", "num_streams", "num_requests_running", "num_requests_waiting", "state_slots_used")
LOG_PIECE = 1 << 20


class LogWatch:
    """Reads the log while it is written and keeps suspicious lines.

    Attributes:
        baits: Case numbers whose bait has a line in the log: a request within a body was served.
        levels: Number of lines of each level.
    """

    def __init__(self, pipe: Path) -> None:
        self.baits: Counter[int] = Counter()
        self.levels: Counter[str] = Counter()
        self.examples: list[str] = []
        self._pipe = pipe
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        rest, end = b"", os.open(self._pipe, os.O_RDONLY)
        while piece := os.read(end, LOG_PIECE):
            text, _, rest = (rest + piece).rpartition(b"\n")
            for level in (b"WARNING", b"ERROR", b"CRITICAL"):
                found = text.count(b'"' + level + b'"')
                self.levels[level.decode()] += found
                if found and len(self.examples) < 20:
                    self.examples += [line.decode(errors="replace") for line in text.split(b"\n") if level in line][:2]
            if b"-b-" in text:
                for match in ANY_NONCE.finditer(text):
                    if match[1] == b"b":
                        self.baits[int(match[2], 16)] += 1


class Served(Server):
    """A server of the bundle `linear` with a watched log.

    Attributes:
        pids: Process ids at the start.
    """

    def __init__(self, folder: Path) -> None:
        pipe = folder / "log"
        os.mkfifo(pipe)
        settings: dict[str, Any] = {**SETTINGS, "bundles": BUNDLE}
        super().__init__(folder, environment={"OMP_NUM_THREADS": "1"}, log=pipe, key=KEY, **settings)
        self.watch = LogWatch(pipe)
        self.pids: list[int] = []

    def start(self) -> None:
        """Start, and wait until every process serves; see `Server`."""
        super().start()
        self.pids = sorted(self.children())

    def resident(self) -> list[int]:
        """Return the resident bytes of each server process."""
        sizes = []
        for pid in self.children():
            with suppress(psutil.NoSuchProcess):
                sizes.append(psutil.Process(pid).memory_info().rss)
        return sizes

    def gauges(self) -> dict[str, float]:
        """Return the held resources, summed over the processes, without the connection of the request."""
        totals = {f"rfa_{name}": sum(self.gauge(name).values()) for name in GAUGES}
        totals["rfa_open_connections"] -= 1
        return totals

    def settled(self) -> dict[str, float]:
        """Return the gauges once all are 0, or after a timeout."""
        with suppress(TooLate):
            wait_until(lambda: not any(self.gauges().values()))
        return self.gauges()


@contextmanager
def serving() -> Iterator[Served]:
    """Run a server until the block ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Served(Path(folder)) as served:
        yield served
        served.end()
