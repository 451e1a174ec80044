"""Copies of the bundles that nobody else writes to: what every process of a server loads, whenever it loads.

The folders that an operator names may change at any time, also half. So they are read once, at the start and at each
reload, into the server's private directory, and processes read the copies alone: those of now, and those that take the
place of a dead one tomorrow. Copying judges only what a copy would hide (links, devices) and what it would cost.
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
    """Bundles as they were at one moment.

    Attributes:
        generation: number of this snapshot among those of the server, from 1.
        bundles: the copies, in the order in which they are served.
        version: of the bundles, by what their manifests say.
        size: bytes of all files.
    """

    generation: int
    directory: Path
    bundles: tuple[Path, ...]
    version: str
    size: int

    def discard(self) -> None:
        """Remove the copies; a process that has loaded them has no further need of them."""
        shutil.rmtree(self.directory, ignore_errors=True)


def take_snapshot(bundles: Sequence[Path], home: Path, generation: int, max_bytes: int) -> Snapshot:
    """Copy bundles into `home`; blocks as long as their disk does.

    Args:
        max_bytes: that all of them may have together.

    Raises:
        BundleError: what is there is no folder of regular files with a manifest, or too large.
        OSError: there is no room for the copies.
    """
    directory = home / f"bundles-{generation}"
    directory.mkdir()
    copies, digests, total = [], [], 0
    try:
        for index, bundle in enumerate(bundles):
            # Messages name the folder, and two folders may have one name.
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
    """Copy the files of one bundle; their bytes."""
    with _opened(bundle) as folder:
        sizes = _sizes(folder, bundle.name)
        if MANIFEST_FILE not in sizes:
            raise BundleError(f"{MANIFEST_FILE}: missing in {bundle.name!r}, so this is no bundle")
        total = sum(sizes.values())
        if total > max_bytes:
            raise BundleError(f"{bundle.name}: the bundles together are larger than max_bundle_bytes allows")
        free = shutil.disk_usage(copy).free
        if total > free:
            raise OSError(f"no room for a copy of bundle {bundle.name!r}: {total} bytes, {free} are free (see TMPDIR)")
        for name, size in sizes.items():
            _copy_file(folder, name, size, copy / name)
    return total


@contextmanager
def _opened(bundle: Path) -> Iterator[int]:
    """The folder itself: another one that is put into its place meanwhile is not mixed in."""
    try:
        folder = os.open(bundle, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BundleError(f"{bundle.name}: cannot be read as a folder: {error.strerror}") from None
    try:
        yield folder
    finally:
        os.close(folder)


def _sizes(folder: int, name: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(sizes) == MAX_FILES:
                raise BundleError(f"{name}: more than {MAX_FILES} files, which a bundle must not have")
            if not entry.is_file(follow_symlinks=False):
                raise BundleError(f"{entry.name}: not a regular file (links and folders have no place in a bundle)")
            sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return dict(sorted(sizes.items()))


def _copy_file(folder: int, name: str, size: int, target: Path) -> None:
    try:
        # A pipe would keep whoever opens it waiting.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        raise BundleError(f"{name}: cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as source, target.open("xb") as sink:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BundleError(f"{name}: not a regular file")
        left = size
        while piece := source.read(min(PIECE_BYTES, left + 1)):
            left -= len(piece)
            if left < 0:
                raise BundleError(f"{name}: grew while it was read")
            sink.write(piece)
