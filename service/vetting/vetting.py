"""Bundles are tried in a process of their own before any process that serves opens them.

What a bundle asks for is bounded there by the kernel: processor time, memory, open files, the size of written files
(none), and by the clock. So a bundle that never ends, asks for all memory or crashes the runtime costs this process and
nothing else. The other side is `child.py`.

This module is light (no numpy, no runtime): the supervisor imports it.
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

# -P: the folder that this happens to be started in must not provide modules.
PROGRAM = (sys.executable, "-P", "-m", "rfa.service.vetting.child")
# Imports: nothing of a bundle is read meanwhile.
START_SECONDS = 60.0
# For one bundle; the four default ones take 2 s together.
SECONDS = 60.0
# What the interpreter and the libraries take, and what each byte of a bundle may become: the file, its arrays, and the
# copies that three sessions and the compiled runtime lay out anew.
BASE_BYTES = 1 << 30
COPIES = 16
MAX_LINE_BYTES = 4096
MAX_REASON = 300
# The environment is for others: keys, proxies and what else an operator sets are nothing to a bundle.
KEPT_VARIABLES = (
    "HOME", "LANG", "LD_LIBRARY_PATH", "NUMBA_CACHE_DIR", "NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "PATH",
    "XDG_CACHE_HOME",
)  # fmt: skip


@dataclass(frozen=True)
class Vetted:
    """A bundle that was found good.

    Attributes:
        digest: of the manifest, which covers every byte of the bundle: with another one it is not what was vetted.
        golden_values: recorded values that its graphs reproduced.
    """

    name: str
    kind: Literal["lm", "filter", "series"]
    digest: str
    golden_values: int


async def vet(
    paths: Sequence[Path],
    *,
    seconds: float = SECONDS,
    memory_bytes: int | None = None,
    trusted_keys: Sequence[str] = (),
) -> tuple[Vetted, ...]:
    """Open bundles, make their sessions and run their golden outputs, in one fresh process with limits; cancelling
    ends it.

    Args:
        paths: of the bundles, in the order of the result.
        seconds: that each bundle may take, by the clock and of the processor.
        memory_bytes: of that process; by default 1 GiB and 16 bytes for each byte of the bundles, and never more than
            three quarters of the container's.
        trusted_keys: public keys of minisign, of which one must have signed each bundle; any bundle without.

    Raises:
        BundleError: names the folder of the first bundle that is refused, and the reason in at most 300 characters.
    """
    if not paths:
        return ()
    paths = [path.resolve() for path in paths]
    with tempfile.TemporaryDirectory(prefix="rfa-vet-") as empty:
        request = {
            "bundles": [str(path) for path in paths],
            "directory": empty,
            "seconds": seconds,
            "memory_bytes": memory_bytes or _memory_for(paths),
            "trusted_keys": list(trusted_keys),
        }
        process = await asyncio.create_subprocess_exec(
            *PROGRAM,
            json.dumps(request),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_LINE_BYTES,
            cwd=empty,
            env=_environment(),
            start_new_session=True,
        )
        try:
            answer = await _answer(process, START_SECONDS)
            if answer is None:
                raise BundleError(f"no bundle can be vetted: the process for it {await _end(process)}")
            return tuple([await _vetted(process, path, seconds) for path in paths])
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _vetted(process: asyncio.subprocess.Process, path: Path, seconds: float) -> Vetted:
    try:
        answer = await _answer(process, seconds)
    except TimeoutError:
        raise BundleError(f"{path.name}: did not finish within {seconds:g} s") from None
    if answer is None:
        raise BundleError(f"{path.name}: the process that tried it {await _end(process)}")
    match answer:
        case {"refused": str(reason)}:
            raise BundleError(f"{path.name}: {_plain(reason)}")
        case {
            "name": str(name),
            "kind": "lm" | "filter" | "series" as kind,
            "digest": str(digest),
            "golden_values": int(count),
        }:
            return Vetted(name, kind, digest, count)
    raise BundleError(f"{path.name}: the process that tried it gave no answer")


async def _answer(process: asyncio.subprocess.Process, seconds: float) -> Mapping[str, Any] | None:
    """The next line; None if there is none that can be read: what tries a bundle is not trusted either.

    Raises:
        TimeoutError: none came in time.
    """
    assert process.stdout is not None
    async with asyncio.timeout(seconds):
        try:
            answer = json.loads(await process.stdout.readline())
        except ValueError:  # too long, no text, no JSON, or the end
            return None
    return answer if isinstance(answer, dict) else None


async def _end(process: asyncio.subprocess.Process) -> str:
    """How a process ended that said nothing more."""
    try:
        code = await asyncio.wait_for(process.wait(), 1.0)
    except TimeoutError:
        return "gave no answer"
    if code == -signal.SIGXCPU:
        return "used up its processor time"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _plain(reason: str) -> str:
    """One short line."""
    return "".join(character if character.isprintable() else "?" for character in reason[:MAX_REASON])


def _memory_for(paths: Sequence[Path]) -> int:
    """A file may say that it is larger than any memory: nothing here depends on that alone."""
    return min(BASE_BYTES + COPIES * sum(map(_size, paths)), machine.memory_bytes() * 3 // 4)


def _size(path: Path) -> int:
    """Bytes of the files in a folder; 0 if there is none, which the child will say."""
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return child_environment({**kept, "TOKENIZERS_PARALLELISM": "false"})
