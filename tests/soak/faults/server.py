"""A supervisor as a process of its own, that can be killed and started again on its port."""

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
# Below the ports that the system gives to outgoing connections: a client must not sit on the port of a dead server.
PORTS = range(20_000, 32_000)
_SAMPLE = re.compile(r"^rfa_(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)


class FaultError(RuntimeError):
    """The server did not do what every test needs of it, such as to become ready."""


class Server:
    """`rfa serve` on a port of its own.

    Args:
        folder: for its log and its temporary files.
        program: what starts a server process; tests give one with a planted fault.
        environment: added to that of its processes.
        log: where its standard error goes; None is a file `log` in `folder`.
        key: the one API key of the server; None serves anyone.
        settings: of service.settings, by name.
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
            "TMPDIR": str(folder),  # a killed supervisor cannot clear up
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until every process serves.

        Raises:
            FaultError: it does not.
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
        """Of the supervisor."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has written, if that went to a file of its own."""
        return self._log.read_text()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def children(self) -> list[int]:
        """Process ids of the server processes that live now."""
        alive = living_children(self.pid)
        self.seen.update(alive)
        return alive

    def is_whole(self) -> bool:
        """Whether every process is there, is ready, and answers for its metrics."""
        if len(self.children()) < self._processes:
            return False
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=PATIENCE):
                return len(self.gauge("open_connections")) == self._processes
        except OSError:
            return False

    def gauge(self, name: str) -> dict[str, float]:
        """A metric that is always there, by process; those that did not answer are missing.

        Raises:
            OSError: nobody answers.
            FaultError: there is no such metric, so that what is looked for could not be found.
        """
        values = self.labelled(name, "engine")
        if not values:
            raise FaultError(f"the server has no metric {name}")
        return values

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """A metric by one of its labels, summed over the others.

        Raises:
            OSError: nobody answers.
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
        """SIGKILL for one of its processes; None is the supervisor, which takes the others with it."""
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
        """Send the supervisor a signal."""
        assert self._process is not None
        self.children()
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code.

        Raises:
            FaultError: it does not end.
        """
        assert self._process is not None
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise FaultError(f"the server did not end in {PATIENCE:g} s") from None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the supervisor; the exit code."""
        self.send(number)
        return self.wait()

    def orphans(self) -> list[int]:
        """Processes that it ever had and that still live, once it has ended."""
        return [pid for pid in self.seen if is_alive(pid)]

    def wait_until(self, claim: Callable[[], bool], complaint: str, *, is_gone: bool = False) -> None:
        """Wait for a claim about the server.

        Raises:
            FaultError: it does not come true, or the server ends first.
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
    """Whether a process runs, and is not only waiting to be buried."""
    try:
        status: Any = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def living_children(pid: int) -> list[int]:
    """Process ids of the children of a process that run; none where it is gone."""
    try:
        found = psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in found if is_alive(child.pid)]


def free_port() -> int:
    """A port that nobody listens on now."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise FaultError("no port is free")
