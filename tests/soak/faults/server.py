"""A server with its supervisor as a separate process, which can be killed and restarted on its port."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from rfa.service.process.supervisor import PROGRAM
from tests.waiting import PATIENCE, TooLate, wait_until

ROOT = Path(__file__).resolve().parents[3]
SERVE = (
    "import sys; from rfa.service.server import serve; from rfa.service.settings import Settings; "
    "serve(Settings(), sys.argv[1:])"
)
# Below the ports of outgoing connections, so that no client takes the port of a dead server.
PORTS = range(20_000, 32_000)
_SAMPLE = re.compile(r"^rfa_(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)


class FaultError(RuntimeError):
    """The server failed to do what every test needs, such as to become ready."""


class Server:
    """`rfa serve` on a free port.

    Args:
        folder: Folder of its log and temporary files.
        program: Program that starts a server process; tests pass one with a planted fault.
        environment: Additional environment variables of its processes.
        log: Destination of its standard error. None: the file `log` in `folder`.
        key: The API key of the server. None: no key is required.
        settings: Settings of service.settings by name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        key: str | None = None,
        **settings: object,
    ) -> None:
        self.port = free_port()
        self.seen: set[int] = set()
        self._folder = folder
        self._program = program
        self._log = log or folder / "log"
        self._headers = {} if key is None else {"X-API-Key": key}
        self._processes = int(str(settings.get("processes", 2)))
        given = {"processes": self._processes, **settings, "port": self.port}
        if key is not None:
            given["api_keys"] = key
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RFA_")},
            **{f"RFA_{name.upper()}": str(value) for name, value in given.items()},
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),  # a killed supervisor cannot clean up
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until every process serves.

        Raises:
            FaultError: It does not.
        """
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE, *self._program],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        self.wait_until(self.is_whole, "does not come to serve")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the process id of the supervisor."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """Return its log, if it is a file."""
        return self._log.read_text()

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, or None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def children(self) -> list[int]:
        """Return the process ids of the live server processes."""
        alive = living_children(self.pid)
        self.seen.update(alive)
        return alive

    def is_whole(self) -> bool:
        """Return whether every process exists, is ready, and reports its metrics."""
        if len(self.children()) < self._processes:
            return False
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=PATIENCE):
                return len(self.gauge("open_connections")) == self._processes
        except OSError:
            return False

    def gauge(self, name: str) -> dict[str, float]:
        """Return an always present metric by process, without processes that did not answer.

        Raises:
            OSError: The server does not answer.
            FaultError: The metric does not exist.
        """
        values = self.labelled(name, "engine")
        if not values:
            raise FaultError(f"the server has no metric {name}")
        return values

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """Return a metric by one of its labels, summed over the others.

        Raises:
            OSError: The server does not answer.
        """
        request = urllib.request.Request(f"{self.url}/metrics", headers=self._headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            text = reply.read().decode()
        values: dict[str, float] = defaultdict(float)
        for sample in _SAMPLE.finditer(text):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
            if sample["name"] == name:
                values[labels.get(label, "")] += float(sample["value"])
        return dict(values)

    def kill(self, pid: int | None = None) -> None:
        """Kill one of its processes with SIGKILL. None is the supervisor, which takes the others with it."""
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        assert self._process is not None
        children = self.children()
        self._process.kill()
        self._process.wait()
        self.wait_until(lambda: not any(map(is_alive, children)), "leaves processes behind", is_gone=True)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor."""
        assert self._process is not None
        self.children()
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end and return the exit code.

        Raises:
            FaultError: It does not end.
        """
        assert self._process is not None
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise FaultError(f"the server did not end in {PATIENCE:g} s") from None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the supervisor and return the exit code."""
        self.send(number)
        return self.wait()

    def orphans(self) -> list[int]:
        """Return processes of the server that are still alive after its end."""
        return [pid for pid in self.seen if is_alive(pid)]

    def wait_until(self, claim: Callable[[], bool], complaint: str, *, is_gone: bool = False) -> None:
        """Wait for a condition of the server.

        Raises:
            FaultError: The condition does not become true, or the server ends first.
        """
        is_held = False

        def is_decided() -> bool:
            nonlocal is_held
            is_held = claim()
            return is_held or (self.exit_code is not None and not is_gone)

        with suppress(TooLate):
            wait_until(is_decided)
        if not is_held:
            tail = self.log[-2_000:] if self._log.is_file() else ""
            raise FaultError(f"the server {complaint}: {tail or '(no log)'}")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_code is None:
            self.kill()


def is_alive(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        status: Any = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def living_children(pid: int) -> list[int]:
    """Return the process ids of the running children of a process."""
    try:
        found = psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in found if is_alive(child.pid)]


def free_port() -> int:
    """Return a port on which nothing listens."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise FaultError("no port is free")
