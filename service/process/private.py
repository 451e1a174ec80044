"""The server's private directory: copies of its bundles, and the sockets between its processes.

A supervisor that is killed cannot clear up. So each holds a lock on its directory for as long as it lives, and the next
one removes those that nobody holds. (Services that tidy up /tmp by age leave a locked directory alone, too.)
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
# In a directory whose lock is, or was, held: one that is just being made has none.
MARK = "server"
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


def _remove_forgotten(home: Path) -> None:
    for directory in home.glob(f"{PREFIX}*"):
        # Others may put anything into /tmp, and what is locked belongs to a server that lives.
        with contextlib.suppress(OSError), _opened(directory) as lock:
            if os.fstat(lock).st_uid != os.getuid() or not (directory / MARK).exists():
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
            logger.info("removed what a server that was killed had left behind")
