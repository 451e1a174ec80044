"""Check bundles in a subprocess before a server process opens them.

The operating system limits the processor time, memory and open files of the subprocess, and does not let it write
files. The parent limits its elapsed time. If a bundle hangs, exhausts the memory or crashes the runtime, only the
subprocess (`child.py`) is affected.

The supervisor imports this module, so it must not import NumPy or the runtime.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rfa.runtime.bundle.documents import BundleError
from rfa.service import machine
from rfa.service.child_environment import child_environment

# -P keeps modules in the working directory from being imported.
PROGRAM = (sys.executable, "-P", "-m", "rfa.service.bundle_checks.child")
START_SECONDS = 60.0  # for imports, before the first bundle is read
SECONDS = 60.0  # per bundle; the four default bundles take 2 s in total
# Memory of the interpreter and its libraries, and number of copies of each byte of a bundle: the file, its arrays, and
# copies in the runtimes.
BASE_BYTES = 1 << 30
COPIES = 16
MAX_LINE_BYTES = 4096
MAX_REASON = 300
# API keys, proxies and other settings of the operator are excluded.
INHERITED_VARIABLES = (
    "HOME", "LANG", "LD_LIBRARY_PATH", "NUMBA_CACHE_DIR", "NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "PATH",
    "XDG_CACHE_HOME",
)  # fmt: skip


@dataclass(frozen=True)
class CheckedBundle:
    """A bundle that passed the check.

    Attributes:
        name: Name of the bundle.
        kind: Kind of the bundle.
        digest: SHA-256 of the manifest. It depends on every byte of the bundle, because the manifest contains the hash
            of each file.
        golden_values: Number of golden outputs that its graphs reproduced.
    """

    name: str
    kind: Literal["lm", "filter", "series"]
    digest: str
    golden_values: int


async def check_bundles(
    paths: Sequence[Path],
    *,
    seconds: float = SECONDS,
    memory_bytes: int | None = None,
    trusted_keys: Sequence[str] = (),
) -> tuple[CheckedBundle, ...]:
    """Open bundles in a subprocess with limits, and reproduce the golden outputs of their graphs.

    Cancelling this coroutine ends the subprocess.

    Args:
        paths: Bundle directories.
        seconds: Limit on the elapsed time and on the processor time of each bundle, in seconds.
        memory_bytes: Memory limit of the subprocess. The default is 1 GiB plus 16 bytes per byte of the bundles, and at
            most three quarters of the machine's memory.
        trusted_keys: Minisign public keys. Each bundle must be signed with one of them. If there are none, signatures
            are not checked.

    Returns:
        The checked bundles in the order of `paths`.

    Raises:
        BundleError: If a bundle is rejected. The message contains the directory name of the first rejected bundle, and
            the reason in at most 300 characters.
    """
    if not paths:
        return ()
    paths = [path.resolve() for path in paths]
    request = {
        "bundles": [str(path) for path in paths],
        "seconds": seconds,
        "memory_bytes": memory_bytes or _memory_for(paths),
        "trusted_keys": list(trusted_keys),
    }
    with tempfile.TemporaryDirectory(prefix="rfa-check-") as directory:
        process = await _start({**request, "directory": directory}, directory)
        try:
            answer = await _read_answer(process, START_SECONDS)
            if answer is None:
                raise BundleError(f"the bundles cannot be checked: the subprocess {await _describe_exit(process)}")
            return tuple([await _read_result(process, path, seconds) for path in paths])
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _start(request: Mapping[str, Any], directory: str) -> asyncio.subprocess.Process:
    inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return await asyncio.create_subprocess_exec(
        *PROGRAM,
        json.dumps(request),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=MAX_LINE_BYTES,
        cwd=directory,
        env=child_environment({**inherited, "TOKENIZERS_PARALLELISM": "false"}),
        start_new_session=True,
    )


async def _read_result(process: asyncio.subprocess.Process, path: Path, seconds: float) -> CheckedBundle:
    try:
        answer = await _read_answer(process, seconds)
    except TimeoutError:
        raise BundleError(f"{path.name}: the check did not finish within {seconds:g} s") from None
    if answer is None:
        raise BundleError(f"{path.name}: the subprocess that checks the bundle {await _describe_exit(process)}")
    match answer:
        case {"refused": str(reason)}:
            raise BundleError(f"{path.name}: {_plain(reason)}")
        case {
            "name": str(name),
            "kind": "lm" | "filter" | "series" as kind,
            "digest": str(digest),
            "golden_values": int(count),
        }:
            return CheckedBundle(name, kind, digest, count)
    raise BundleError(f"{path.name}: the subprocess that checks the bundle sent an unexpected result")


async def _read_answer(process: asyncio.subprocess.Process, seconds: float) -> Mapping[str, Any] | None:
    """Return the next result of the subprocess. Return None if there is none, or if it is malformed, for example
    because of a malicious bundle."""
    assert process.stdout is not None
    async with asyncio.timeout(seconds):
        try:
            answer = json.loads(await process.stdout.readline())
        except ValueError:  # too long, not text, not JSON, or the end
            return None
    return answer if isinstance(answer, dict) else None


async def _describe_exit(process: asyncio.subprocess.Process) -> str:
    try:
        code = await asyncio.wait_for(process.wait(), 1.0)
    except TimeoutError:
        return "sent no result"
    if code == -signal.SIGXCPU:
        return "exceeded its limit of processor time"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _plain(reason: str) -> str:
    """Return the reason for a rejection as one short line of printable characters."""
    return "".join(character if character.isprintable() else "?" for character in reason[:MAX_REASON])


def _memory_for(paths: Sequence[Path]) -> int:
    # The limit is necessary because the size of a sparse file can be arbitrarily large.
    return min(BASE_BYTES + COPIES * sum(map(_size, paths)), machine.memory_bytes() * 3 // 4)


def _size(directory: Path) -> int:
    """Return the total size of the files in bytes. If the directory cannot be read, return 0; the subprocess reports
    the error."""
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0
