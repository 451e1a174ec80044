"""Compile the CPU kernels in subprocesses, before the server processes start.

The compiler needs about 400 MB, which are not freed until the process exits. Therefore, server processes only load
compiled kernels. A marker file in the kernel cache lists the compiled kernels, so that the next start skips the
compilation.

`python -m rfa.service.precompile` reads the settings as JSON from standard input, and writes an empty line for each
compiled kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
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
PROCESSES: Final = 2
PROGRESS_SECONDS: Final = 10.0


def compile_ahead(settings: Settings) -> float:
    """Compile the kernels by loading the models in subprocesses, and write the marker file.

    Returns:
        Elapsed time in seconds.

    Raises:
        BundleError: If a bundle is rejected.
    """
    begun = time.monotonic()
    count = min(PROCESSES, settings.models.processes)
    folder = kernel_folder()
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        for _ in pool.map(_load, [settings] * count):
            pass
    if folder is not None:
        names = sorted(str(file.relative_to(_root(folder))) for file in _root(folder).rglob("*.nb[ci]"))
        _marker(folder, settings.models.bundles).write_text("\n".join(names))
    return time.monotonic() - begun


def is_compiled(settings: Settings) -> bool:
    """Return whether the kernels for the given bundles are already compiled. On a GPU, they are not needed, and the
    result is True."""
    folder = kernel_folder()
    if folder is None or settings.models.is_on_gpu:
        return settings.models.is_on_gpu
    with contextlib.suppress(OSError):  # not a bundle, or no marker
        names = _marker(folder, settings.models.bundles).read_text().splitlines()
        return bool(names) and all((_root(folder) / name).exists() for name in names)
    return False


async def ensure_compiled(settings: Settings) -> None:
    """Compile the kernels for checked bundles, unless they are already compiled.

    Errors are not reported here. The server processes report them when they load the same bundles.
    """
    if is_compiled(settings):
        return
    if kernel_folder() is None:
        logger.warning(
            "there is no writable directory for compiled kernels, so every process compiles them again; set "
            "NUMBA_CACHE_DIR to a writable directory"
        )
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
    """Log the number of compiled kernels about every ten seconds, and at the end."""
    assert process.stdout is not None
    begun = logged = time.monotonic()
    count = 0
    while await process.stdout.readline():
        log_compilation()
        count += 1
        if (now := time.monotonic()) - logged >= PROGRESS_SECONDS:
            logged = now
            logger.info("compiled %d kernels in %.0f s", count, now - begun)
    if count:
        logger.info("compiled all %d kernels in %.0f s", count, time.monotonic() - begun)


def kernel_folder() -> Path | None:
    """Return the directory in which numba stores compiled kernels. Return None if no directory is writable.

    If the directory of the package is read-only, a directory in the user's cache is used, and NUMBA_CACHE_DIR is set to
    it, so that all processes use it.
    """
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return _writable(Path(given))
    if beside := _writable(Path(str(rfa.runtime.__file__)).parent / "__pycache__"):
        return beside
    home = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME', '/nonexistent')}/.cache"
    if private := _writable(Path(home, "rfa-server")):
        os.environ["NUMBA_CACHE_DIR"] = str(private)
    return private


def _writable(folder: Path) -> Path | None:
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else None


def _root(folder: Path) -> Path:
    """Return the directory that contains all compiled kernels, given the result of `kernel_folder`. numba stores
    kernels in a subdirectory for each module, or next to each module."""
    return folder.parent if folder.name == "__pycache__" else folder


def _marker(folder: Path, bundles: Sequence[Path]) -> Path:
    """Return the path in `folder` of the marker file for the current sources and the given bundles."""
    package = Path(str(rfa.runtime.__file__)).parent
    version = bundle_version(hashlib.sha256((bundle / MANIFEST_FILE).read_bytes()).hexdigest() for bundle in bundles)
    target = (sys.implementation.cache_tag, metadata.version("numba"), os.environ.get("NUMBA_CPU_NAME"))
    digest = hashlib.sha256(repr((version, *target)).encode())
    for source in sorted(package.rglob("*.py")):
        digest.update(source.read_bytes())
    return folder / f"compiled-{digest.hexdigest()[:16]}"


def _load(settings: Settings) -> None:
    from rfa.runtime.compiling import compile_events
    from rfa.service.engine.models import load_models

    with compile_events(lambda: None, lambda: os.write(1, b"\n")):
        load_models(settings)


def main() -> None:
    """Compile the kernels for the settings that are read from standard input."""
    end_with_parent()
    compile_ahead(read_settings(json.load(sys.stdin)))


if __name__ == "__main__":
    main()
