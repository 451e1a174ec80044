"""The server's private directory: copies of its bundles, and the sockets between its processes.

A supervisor that is killed cannot clear up. So each locks its directory for as long as it lives, and the next one
removes those that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("rfa.supervisor")
PREFIX = "rfa-"
LOCK = "lock"
# Where the usual places for temporary files are read-only, this is often not.
SHARED_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only this user can enter, removed at the end.

    Raises:
        OSError: there is no place for one, with what to do about it.
    """
    directory = _make()
    try:
        with _locked(directory):
            _remove_forgotten(directory.parent)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX))
    except OSError:
        if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
            tempfile.tempdir = str(SHARED_MEMORY)  # for all that this process makes
            return Path(tempfile.mkdtemp(prefix=PREFIX))
        raise OSError(
            "the server needs a writable folder for copies of its bundles: give it one as /tmp (a tmpfs will do), "
            "or name one in TMPDIR"
        ) from None


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock; it has its name only once it is held, or the next server could take this one for dead."""
    with (directory / f"{LOCK}.new").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Path(lock.name).rename(directory / LOCK)
        yield


def _remove_forgotten(home: Path) -> None:
    for directory in home.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = directory.lstat()
            # Others may put anything into /tmp, such as a pipe that keeps waiting who opens it.
            if status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode):
                _remove_if_free(directory)


def _remove_if_free(directory: Path) -> None:
    lock = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of a server that lives it fails
        shutil.rmtree(directory, ignore_errors=True)
        logger.info("removed what a server that was killed had left behind")
    finally:
        os.close(lock)
