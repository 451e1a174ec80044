"""Create private copies of the bundles, which all processes of a server load.

The directories of the operator may change at any time, even while they are read. Therefore, they are copied to the
private directory of the server, at the start and at each reload. Processes read only the copies, even if they are
restarted later. Bundles that are too large or contain links or devices are rejected.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rfa.runtime.bundle.documents import BundleError
from rfa.runtime.bundle.manifest import MANIFEST_FILE, MAX_FILES
from rfa.service.bundle_version import bundle_version

PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Snapshot:
    """Copies of the bundles at one point in time.

    Attributes:
        generation: Number of this snapshot, counted from 1.
        directory: Directory that contains the copies.
        bundles: Directories of the copies, in the order of the settings.
        version: Version of the bundles (see `bundle_version`).
        size: Total size of all files in bytes.
    """

    generation: int
    directory: Path
    bundles: tuple[Path, ...]
    version: str
    size: int

    def discard(self) -> None:
        """Remove the copies. Processes that have loaded them do not read them again."""
        shutil.rmtree(self.directory, ignore_errors=True)


def take_snapshot(bundles: Sequence[Path], home: Path, generation: int, max_bytes: int) -> Snapshot:
    """Copy bundles to a new directory in `home`, and return the snapshot. This blocks until the files are written.

    Args:
        bundles: Bundle directories.
        home: Directory in which the copies are stored.
        generation: Number of the snapshot.
        max_bytes: Maximum size of all bundles together, in bytes.

    Raises:
        BundleError: If a bundle is too large, or is not a directory of regular files with a manifest.
        OSError: If there is not enough disk space for the copies.
    """
    directory = home / f"bundles-{generation}"
    directory.mkdir()
    copies, digests, total = [], [], 0
    try:
        for index, bundle in enumerate(bundles):
            # The copy keeps the name of the directory, which occurs in messages. Two directories may have the same
            # name.
            copy = directory / str(index) / (bundle.name or "bundle")
            copy.mkdir(parents=True)
            total += _copy(bundle, copy, max_bytes - total)
            copies.append(copy)
            digests.append(hashlib.sha256((copy / MANIFEST_FILE).read_bytes()).hexdigest())
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return Snapshot(generation, directory, tuple(copies), bundle_version(digests), total)


def _copy(bundle: Path, copy: Path, max_bytes: int) -> int:
    """Copy the files of one bundle, and return their total size in bytes."""
    with _opened(bundle) as folder:
        sizes = _sizes(folder, bundle.name)
        if MANIFEST_FILE not in sizes:
            raise BundleError(f"{bundle.name!r} is not a bundle, because it does not contain {MANIFEST_FILE}")
        total = sum(sizes.values())
        if total > max_bytes:
            raise BundleError(
                f"{bundle.name}: the total size of all bundles exceeds RFA_MAX_BUNDLE_BYTES; increase this setting, or "
                "serve fewer bundles"
            )
        free = shutil.disk_usage(copy).free
        if total > free:
            raise OSError(
                f"not enough disk space to copy bundle {bundle.name!r}: its size is {total} bytes, but only "
                f"{free} bytes are free; set TMPDIR to a directory with more space"
            )
        for name, size in sizes.items():
            _copy_file(folder, name, size, copy / name)
    return total


@contextmanager
def _opened(bundle: Path) -> Iterator[int]:
    """Context manager that opens a directory, and yields its file descriptor. If another directory replaces it
    meanwhile, the other one is not read."""
    try:
        folder = os.open(bundle, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BundleError(f"{bundle.name}: the directory cannot be read: {error.strerror}") from None
    try:
        yield folder
    finally:
        os.close(folder)


def _sizes(folder: int, name: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(sizes) == MAX_FILES:
                raise BundleError(f"{name}: a bundle must not contain more than {MAX_FILES} files")
            if not entry.is_file(follow_symlinks=False):
                raise BundleError(f"{entry.name} is not a regular file; a bundle must not contain links or directories")
            sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return dict(sorted(sizes.items()))


def _copy_file(folder: int, name: str, size: int, target: Path) -> None:
    try:
        # Without O_NONBLOCK, opening a pipe would block.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        raise BundleError(f"{name}: the file cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as source, target.open("xb") as sink:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BundleError(f"{name} is not a regular file")
        left = size
        while piece := source.read(min(PIECE_BYTES, left + 1)):
            left -= len(piece)
            if left < 0:
                raise BundleError(f"{name}: the file grew while it was being copied; try again when it is complete")
            sink.write(piece)
