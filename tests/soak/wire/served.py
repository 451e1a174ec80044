"""The server under test: a real `rfa serve`, its log watched as it is written, its gauges and its memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from tests.soak.faults.server import free_port
from tests.soak.wire.application import BUNDLE, KEY
from tests.soak.wire.judge import ANY_NONCE
from tests.waiting import PATIENCE, TooLate, wait_until

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {
    "processes": 2,
    "header_timeout_seconds": 10,
    "body_timeout_seconds": 10,
    "log_format": "json",
}
GAUGES = ("rfa_open_connections", "rfa_num_streams", "rfa_num_requests_running", "rfa_num_requests_waiting",
          "rfa_state_slots_used")  # fmt: skip
_SAMPLE = re.compile(r"^(rfa_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
LOG_PIECE = 1 << 20
LOG_TAIL = 4_000


class ServedError(RuntimeError):
    """The server does not start or does not answer."""


class LogWatch:
    """Reads the log as it is written, keeps what is suspicious, and forgets the rest.

    Attributes:
        baits: case numbers whose bait has a line in the log: a request that lay in a body was served.
        levels: how many lines of each level.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.baits: Counter[int] = Counter()
        self.levels: Counter[str] = Counter()
        self.examples: list[str] = []
        self.tail = b""
        self._stream = stream
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        rest = b""
        while piece := os.read(self._stream.fileno(), LOG_PIECE):
            text, newline, rest = (rest + piece).rpartition(b"\n")
            self.tail = (self.tail + text + newline)[-LOG_TAIL:]
            for level in (b"WARNING", b"ERROR", b"CRITICAL"):
                found = text.count(b'"' + level + b'"')
                self.levels[level.decode()] += found
                if found and len(self.examples) < 20:
                    self.examples += [line.decode(errors="replace") for line in text.split(b"\n") if level in line][:2]
            if b"-b-" in text:
                for match in ANY_NONCE.finditer(text):
                    if match[1] == b"b":
                        self.baits[int(match[2], 16)] += 1


class Served:
    """A running server.

    Attributes:
        pids: of its processes at the beginning.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: LogWatch) -> None:
        self._process = process
        self.port = port
        self.log = log
        self.pids = self.children()

    def children(self) -> list[int]:
        """Process ids of the server processes."""
        return sorted(child.pid for child in psutil.Process(self._process.pid).children() if child.is_running())

    def resident(self) -> list[int]:
        """Bytes of each server process in memory."""
        sizes = []
        for pid in self.children():
            try:
                sizes.append(psutil.Process(pid).memory_info().rss)
            except psutil.NoSuchProcess:
                continue
        return sizes

    def gauges(self) -> dict[str, float]:
        """What is held now, summed over the processes; the connection that asks is not counted."""
        text = _get(f"http://127.0.0.1:{self.port}/metrics")
        totals = dict.fromkeys(GAUGES, 0.0)
        seen = set()
        for name, value in _SAMPLE.findall(text):
            if name in totals:
                totals[name] += float(value)
                seen.add(name)
        if seen != set(GAUGES):
            raise ServedError(f"the server has no metric {', '.join(sorted(set(GAUGES) - seen))}")
        totals["rfa_open_connections"] -= 1
        return totals

    def settled(self) -> dict[str, float]:
        """The gauges once all are 0, or when that is not to be expected any more."""
        with suppress(TooLate):
            wait_until(lambda: not any(self.gauges().values()))
        return self.gauges()


@contextmanager
def serving() -> Iterator[Served]:
    """`rfa serve` of this checkout with the bundle `linear`, until the block ends.

    Raises:
        ServedError: it does not become ready; with the end of its log.
    """
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RFA_")}
    environment |= {f"RFA_{name.upper()}": str(value) for name, value in SETTINGS.items()}
    environment |= {"RFA_API_KEYS": KEY, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rfa", "serve", "--port", str(port), "--bundle", str(BUNDLE)]
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        bufsize=0,
    )  # fmt: skip
    assert process.stdout is not None
    log = LogWatch(process.stdout)
    try:
        _wait_until_ready(port, process, log)
        yield Served(process, port, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(port: int, process: subprocess.Popen[bytes], log: LogWatch) -> None:
    wait_until(lambda: process.poll() is not None or _is_ready(port))
    if process.poll() is not None:
        raise ServedError(f"the server does not become ready; its log ends: {log.tail.decode(errors='replace')}")


def _is_ready(port: int) -> bool:
    try:
        return bool(_get(f"http://127.0.0.1:{port}/ready"))
    except OSError:  # an HTTPError is one
        return False


def _get(url: str) -> str:
    request = urllib.request.Request(url, headers={"X-API-Key": KEY})
    with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
        text: str = reply.read().decode()
        return text
