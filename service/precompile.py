"""CPU kernels compiled before the server processes start, by processes that end afterwards.

A compiler needs about 400 MB, which a process keeps until it ends; so server processes only load compiled kernels. What
was compiled is remembered by a marker in the kernel cache: the next start begins at once.

`python -m rfa.service.precompile` reads settings as JSON from standard input and writes a line per compiled kernel.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Final

import rfa.runtime
from rfa.runtime.bundle.manifest import MANIFEST_FILE
from rfa.service.bundle_version import bundle_version
from rfa.service.child_environment import child_environment, end_with_parent
from rfa.service.compilation import log_compilation
from rfa.service.process.settings_json import read_settings, write_settings
from rfa.service.settings import Settings

logger = logging.getLogger("rfa.server")
PROGRAM: Final = (sys.executable, "-P", "-m", "rfa.service.precompile")
# One compiles the longest kernel, the other all others.
PROCESSES: Final = 2
PROGRESS_SECONDS: Final = 10.0


def compile_ahead(settings: Settings) -> float:
    """Load the models as a server would, which compiles their kernels, and mark them as compiled.

    Returns:
        the seconds that it took.

    Raises:
        BundleError: a bundle is refused.
    """
    begun = time.monotonic()
    count = min(PROCESSES, settings.processes)
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        for _ in pool.map(_load, [settings] * count):
            pass
    if (marker := _marker(settings.bundles)) is not None:
        marker.touch()
    return time.monotonic() - begun


async def ensure_compiled(settings: Settings) -> None:
    """Compile the kernels of bundles that were checked, unless an earlier start has.

    A failure is left to the server processes, which report it when they load the same bundles.
    """
    marker = _marker(settings.bundles)
    if settings.is_on_gpu or (marker is not None and marker.exists()):
        return
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=child_environment(os.environ),
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(write_settings(settings)).encode())
        process.stdin.close()
        await _report(process)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _report(process: asyncio.subprocess.Process) -> None:
    """Log how many kernels are compiled, every ten seconds."""
    assert process.stdout is not None
    begun = logged = time.monotonic()
    count = 0
    while await process.stdout.readline():
        log_compilation()
        count += 1
        if (now := time.monotonic()) - logged >= PROGRESS_SECONDS:
            logged = now
            logger.info("%d kernels compiled in %.0f s", count, now - begun)
    if count:
        logger.info("all %d kernels compiled in %.0f s", count, time.monotonic() - begun)


def _marker(bundles: Sequence[Path]) -> Path | None:
    """The file that says that all kernels of these sources and bundles are in the cache; None: no cache is writable."""
    package = Path(str(rfa.runtime.__file__)).parent
    version = bundle_version(hashlib.sha256((bundle / MANIFEST_FILE).read_bytes()).hexdigest() for bundle in bundles)
    target = (sys.implementation.cache_tag, metadata.version("numba"), os.environ.get("NUMBA_CPU_NAME"))
    digest = hashlib.sha256(repr((version, *target)).encode())
    for source in sorted(package.rglob("*.py")):
        digest.update(source.read_bytes())
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or package / "__pycache__")
    return folder / f"compiled-{digest.hexdigest()[:16]}" if os.access(folder, os.W_OK) else None


def _load(settings: Settings) -> None:
    from rfa.runtime.compiling import compilations
    from rfa.service.engine.models import load_models

    with compilations(lambda: None, lambda: os.write(1, b"\n")):
        load_models(settings)


def main() -> None:
    """Compile for the settings on standard input."""
    end_with_parent()
    compile_ahead(read_settings(json.load(sys.stdin)))


if __name__ == "__main__":
    main()
