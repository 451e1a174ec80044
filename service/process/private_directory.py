"""Create the private directory of a server. It contains copies of the bundles and sockets for metrics.

A supervisor that is killed cannot remove its directory. Therefore, each supervisor locks its directory while it runs,
and removes directories that are not locked when it starts. Services that clean /tmp by age skip locked directories as
well.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("rfa.supervisor")
PREFIX = "rfa-"
# Name of a file that marks directories that are or were locked. It is created after the directory is locked.
MARK = "server"
# This directory is often writable if the usual temporary directories are not.
SHARED_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """Context manager that creates a directory to which only the current user has access, and removes it at the end.

    Raises:
        OSError: If no temporary directory is writable.
    """
    directory = _make()
    try:
        with _locked(directory):
            _remove_abandoned(directory.parent)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX))
    except OSError:
        if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
            tempfile.tempdir = str(SHARED_MEMORY)  # for all temporary files of this process
            return Path(tempfile.mkdtemp(prefix=PREFIX))
        raise OSError(
            "the server needs a writable directory for copies of its bundles; make /tmp writable (a tmpfs is "
            "sufficient), or set TMPDIR to a writable directory"
        ) from None


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with _opened(directory) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (directory / MARK).touch()
        yield


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_abandoned(home: Path) -> None:
    for directory in home.glob(f"{PREFIX}*"):
        # Other users may have created such directories, and a locked directory belongs to a running server.
        with contextlib.suppress(OSError), _opened(directory) as lock:
            if os.fstat(lock).st_uid != os.getuid() or not (directory / MARK).exists():
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
            logger.info("removed the temporary directory of a server that was killed")
