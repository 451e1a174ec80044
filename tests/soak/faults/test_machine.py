"""Servers on a machine without disk space for the log, or with few open files."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.soak.faults.cast import BUNDLES, ROOT
from tests.soak.faults.server import Server
from tests.soak.faults.sockets import live_stream

FEW_FILES = 200


@contextmanager
def few_files() -> Iterator[None]:
    """A soft limit of few open files for new processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_takes_as_many_connections_as_the_system_lets_it(tmp_path: Path) -> None:
    """Login shells and service managers begin with a soft limit of 1,024 open files."""
    with ExitStack() as running:
        with few_files():
            server = running.enter_context(Server(tmp_path, bundles=BUNDLES[0], processes=1))
        streams = [live_stream(server.port) for _ in range(FEW_FILES + 50)]
        assert sum(server.gauge("num_streams").values()) == len(streams)
        for stream in streams:
            stream.close()
        assert server.end() == 0


def test_a_hard_limit_is_logged() -> None:
    code = (
        "import logging, resource, sys; logging.basicConfig()\n"
        "from rfa.service.process.open_files import allow_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))\n"
        "allow_open_files(1_000)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "(200, 200)\n"
    assert "may open only 200 files, but with RFA_MAX_CONNECTIONS=1000 it needs 1256" in done.stderr
