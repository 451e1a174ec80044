"""A whole server, supervisor and all, as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.soak.faults.server import is_alive, living_children
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
FAKE_CHILD = Path(__file__).with_name("fake_child.py")
SERVE = """
import sys
from rfa.service.server import serve
from rfa.service.settings import Settings

async def check(paths):
    pass

serve(Settings(), (sys.executable, *sys.argv[1:]), check)
"""
# Of the hand-made models that FAKE_CHILD has; it takes their digests from here.
FAKE_BUNDLES = ("recite", "mean")


class Server:
    """A running supervisor and what it wrote."""

    def __init__(self, process: subprocess.Popen[str], log: Path, processes: int) -> None:
        self.process = process
        self._log = log
        self._processes = processes

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def folder(self) -> Path:
        """Its bundles, and the notes of its processes."""
        return self._log.parent

    @property
    def url(self) -> str:
        """Where it serves, once it does."""
        wait_until(lambda: "http://" in self.log or self.process.poll() is not None)
        found = re.search(r"http://127\.0\.0\.1:\d+", self.log)
        assert found is not None, self.log
        return found[0]

    def put(self, content: str) -> None:
        """Put other bundles where these are; the texts of the model are this letter."""
        for name in FAKE_BUNDLES:
            (self.folder / "bundles" / name / "manifest.json").write_text(content)

    def reload(self) -> None:
        """Have the bundles loaded anew, and wait until that is decided."""
        before = self.decided()
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.decided() > before)

    def decided(self) -> int:
        """How many reloads have ended, one way or another."""
        return len(re.findall(r" reload (?:finished:|of .+ (?:refused|aborted):)", self.log))

    def children(self) -> list[int]:
        """Process ids of the server processes that live now."""
        return living_children(self.process.pid)

    def metrics(self) -> str:
        """What all of its processes tell: an answer leaves out those that had no core for half a second."""
        texts: list[str] = []

        def is_whole() -> bool:
            texts.append(httpx.get(f"{self.url}/metrics", timeout=PATIENCE).text)
            return len(engines_of(texts[-1])) == self._processes

        wait_until(is_whole)
        return texts[-1]

    def engines(self) -> set[str]:
        """Numbers of the processes that the metrics tell of now; none while nobody listens."""
        try:
            return engines_of(httpx.get(f"{self.url}/metrics", timeout=PATIENCE).text)
        except httpx.TransportError:
            return set()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def started(
    folder: Path, program: Sequence[str | Path] = (FAKE_CHILD,), *, serve: str = SERVE, **settings: object
) -> Iterator[Server]:
    """A server that was just started; what is left of it at the end is killed."""
    bundles = [folder / "bundles" / name for name in FAKE_BUNDLES]
    for bundle in bundles:
        bundle.mkdir(parents=True, exist_ok=True)
        (bundle / "manifest.json").write_text("a")
    given = {
        "port": 0,
        "bundles": ":".join(map(str, bundles)),
        "processes": 2,
        "shutdown_grace_seconds": 60,
        **settings,
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RFA_")} | {
        **{f"RFA_{name.upper()}": str(value) for name, value in given.items()},
        "PYTHONPATH": str(ROOT),
        "FAKE_CHILD_NOTES": str(folder),
        "TMPDIR": str(folder),  # a killed supervisor cannot clear up
    }
    log = folder / "log"
    with (
        log.open("w") as sink,
        subprocess.Popen(
            [sys.executable, "-c", serve, *map(str, program)], env=environment, stderr=sink, cwd=folder, text=True
        ) as process,
    ):
        server = Server(process, log, int(str(given["processes"])))
        children: list[int] = []
        try:
            yield server
        finally:
            children = server.children()
            process.kill()
            process.wait()
            wait_until(lambda: not any(map(is_alive, children)))


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Server]:
    """A server all of whose processes serve."""
    with started(folder, **settings) as server:
        assert server.url
        yield server


def engines_of(metrics: str) -> set[str]:
    """Numbers of the processes that a text of metrics tells of."""
    return set(re.findall(r'rfa_open_connections\{engine="(\d+)"\}', metrics))
