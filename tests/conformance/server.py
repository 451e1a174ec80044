"""A server with the settings that the recorded requests need."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx

KEYS: Final = {"open": "conformance-open-0123456789", "small": "conformance-small-0123456789"}
QUOTAS: Final = {"open": "streams=2", "small": "tokens=2"}
SETTINGS: Final = {"RFA_PROCESSES": "1", "RFA_SERIES_THREADS": "1", "RFA_SESSIONS": "memory", "RFA_DRIFT_EVERY": "0"}


@contextmanager
def serving(code: Path) -> Iterator[str]:
    """The address of a server of a checkout, stopped at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys")
        keys.write_text("".join(f"{key} {QUOTAS[name]}\n" for name, key in KEYS.items()))
        environment = {**os.environ, **SETTINGS, "RFA_API_KEYS_FILE": str(keys), "PYTHONPATH": str(code.absolute())}
        command = [sys.executable, "-m", "rfa", "serve", "--port", str(port)]
        with subprocess.Popen(command, cwd=code, env=environment, stderr=subprocess.DEVNULL) as process:
            url, is_ready = f"http://127.0.0.1:{port}", False
            while not is_ready and process.poll() is None:  # kernels may have to be compiled
                time.sleep(0.5)
                with suppress(httpx.TransportError):
                    is_ready = httpx.get(f"{url}/ready").is_success
            try:
                yield url
            finally:
                process.terminate()
