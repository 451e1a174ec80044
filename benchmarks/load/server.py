"""Start the server under load, or use a running one, and sample its processor time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

# The first start may compile kernels.
START_SECONDS = 400.0
STOP_SECONDS = 30.0
ANSWER_SECONDS = 10.0
SAMPLE_SECONDS = 0.5
POLL_SECONDS = 0.1
LOG_TAIL = 2000


class ServerError(RuntimeError):
    """The server does not start, is not ready, or serves other models."""


@dataclass(frozen=True)
class Target:
    """The address of the server, and its process if known."""

    url: str
    pid: int | None = None


@contextmanager
def started(
    bundles: Sequence[Path], settings: Mapping[str, str | int | float], cores: Sequence[int] | None = None
) -> Iterator[Target]:
    """Run `rfa serve` on a free port, with the given settings (a mapping from names to values) and on the given
    `cores`, until the block ends."""
    port = _free_port()
    command = [sys.executable, "-m", "rfa", "serve", "--port", str(port)]
    command += [part for bundle in bundles for part in ("--bundle", str(bundle))]
    environment = {**os.environ, **{f"RFA_{name.upper()}": str(value) for name, value in settings.items()}}
    # The client reads its key from the environment. The server checks that key, under another name.
    if key := environment.pop("RFA_API_KEY", None):
        environment.setdefault("RFA_API_KEYS", key)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            if cores is not None:
                os.sched_setaffinity(process.pid, cores)
            target = Target(f"http://127.0.0.1:{port}", process.pid)
            _wait_until_ready(target.url, process, log)
            yield target
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Any) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # not listening yet, or another status than 200
            _get(f"{url}/ready", {})
            return
        time.sleep(POLL_SECONDS)
    log.seek(0)
    tail = log.read().decode(errors="replace")[-LOG_TAIL:].strip()
    state = "is not ready" if process.poll() is None else f"ended with {process.returncode}"
    raise ServerError(f"the server {state}; its log ends: {tail or '(empty)'}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def check_models(url: str, headers: Mapping[str, str], digests: Mapping[str, str]) -> None:
    """Check that the server serves the bundles from which the expected results are computed."""
    try:
        information = json.loads(_get(f"{url}/info", headers))
    except urllib.error.HTTPError as error:
        hint = "; set RFA_API_KEY to a key of it" if error.code == HTTPStatus.UNAUTHORIZED else ""
        raise ServerError(f"{url}/info answers {error.code}{hint}") from None
    except (OSError, ValueError) as error:
        raise ServerError(f"no server at {url}: {getattr(error, 'reason', error)}") from None
    served = {model["name"]: model["digest"] for model in information["models"]}
    for name, digest in digests.items():
        if served.get(name) != digest:
            raise ServerError(
                f"{url} serves another {name!r} than this project's bundle, or none: answers would differ"
            )


def _get(url: str, headers: Mapping[str, str]) -> bytes:
    request = urllib.request.Request(url, headers=dict(headers))
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
        content: bytes = reply.read()
        return content


class Usage:
    """Processor time and resident memory of a process and its descendants, sampled twice per second."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._samples: list[tuple[float, float, int]] = []

    async def watch(self) -> None:
        """Sample until cancelled."""
        while self._pid is not None:
            self._samples.append(_sample(self._pid))
            await asyncio.sleep(SAMPLE_SECONDS)

    def between(self, start: float, end: float) -> dict[str, float | int] | None:
        """Return the cores and memory used between two monotonic times, or None without samples."""
        inside = [sample for sample in self._samples if start <= sample[0] <= end]
        if len(inside) < 2:
            return None
        (first_at, first_cpu, first_rss), (last_at, last_cpu, last_rss) = inside[0], inside[-1]
        return {
            "cpu_cores": round((last_cpu - first_cpu) / (last_at - first_at), 3),
            "rss_start": first_rss,
            "rss_end": last_rss,
            "rss_max": max(rss for _, _, rss in inside),
            "rss_growth": round(last_rss / first_rss - 1, 4),
        }


def _sample(pid: int) -> tuple[float, float, int]:
    cpu, rss = 0.0, 0
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            with member.oneshot():
                times = member.cpu_times()
                cpu += times.user + times.system
                rss += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return time.monotonic(), cpu, rss
