"""Read the files of a bundle, and check their names, sizes and hashes, and the signature of the manifest.

Bytes are checked before they are parsed. Each file is read once, so the hashed bytes are the ones that are used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rfa.runtime.bundle.documents import BundleError, sha256
from rfa.runtime.bundle.families.check import CALIBRATION_FILE, CONSTANTS_FILE, WEIGHTS_FILE
from rfa.runtime.bundle.golden import GOLDEN_FILE
from rfa.runtime.bundle.graph_check import MAX_GRAPH_BYTES
from rfa.runtime.bundle.manifest import (
    MANIFEST_FILE,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    SIGNATURE_FILE,
    FileSpec,
    Kind,
    Manifest,
    decode_manifest,
)
from rfa.runtime.bundle.stored_kernels import KERNELS_FILE, MAX_ALL_CODE_BYTES, is_kernel_file, largest_kernel_file
from rfa.runtime.bundle.tokenizer_document import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE

if TYPE_CHECKING:
    from rfa.runtime.bundle.signing import PublicKey

REQUIRED_FILES = {
    "lm": (WEIGHTS_FILE, CALIBRATION_FILE, GOLDEN_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE),
    "filter": (WEIGHTS_FILE, CALIBRATION_FILE, GOLDEN_FILE),
    "series": (WEIGHTS_FILE, CALIBRATION_FILE, GOLDEN_FILE),
}
MAX_BYTES = {
    WEIGHTS_FILE: 64 << 30,
    CONSTANTS_FILE: 256 << 20,
    CALIBRATION_FILE: 16 << 20,
    GOLDEN_FILE: 64 << 20,
    TOKENIZER_FILE: 128 << 20,
    TOKENIZER_CONFIG_FILE: 1 << 16,
}
REQUIRED_GRAPHS: dict[Kind, tuple[str, ...]] = {"lm": ("attention",), "filter": (), "series": ()}


def read_files(directory: Path, trusted_keys: Sequence[PublicKey]) -> tuple[Manifest, str, dict[str, bytes]]:
    """Read the files of a bundle and check them against the manifest.

    Returns:
        The manifest, its SHA-256, and the bytes of all other files.

    Raises:
        BundleError: If a check fails. The message names the file and the reason.
    """
    found = _scan(directory)
    if MANIFEST_FILE not in found:
        raise BundleError(f"{directory.name!r} is not a bundle, because it does not contain {MANIFEST_FILE}")
    data = _read(directory, MANIFEST_FILE, MAX_MANIFEST_BYTES)
    if trusted_keys:
        _check_signature(directory, found, data, trusted_keys)
    manifest = decode_manifest(data)
    expected = {MANIFEST_FILE, *manifest.files}
    found -= {SIGNATURE_FILE}
    for name in sorted(expected - found):
        raise BundleError(f"{name}: the file is missing")
    for name in sorted(found - expected):
        raise BundleError(f"{name}: the file is not listed in {MANIFEST_FILE}")
    _check_required(manifest)
    contents = {name: _read_checked(directory, name, spec) for name, spec in manifest.files.items()}
    return manifest, sha256(data), contents


def _scan(directory: Path) -> set[str]:
    """Return the names of the files of a bundle. Raise BundleError if there are links, directories or devices."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise BundleError(f"{directory.name}: the directory cannot be read: {error.strerror}") from None
    if len(entries) > MAX_FILES:
        raise BundleError(
            f"{directory.name}: the directory contains {len(entries)} files, but at most {MAX_FILES} are allowed"
        )
    for entry in entries:
        if not entry.is_file(follow_symlinks=False):
            raise BundleError(f"{entry.name} is not a regular file; a bundle must not contain links or directories")
    return {entry.name for entry in entries}


def _read(directory: Path, name: str, limit: int) -> bytes:
    """Return the bytes of a file. O_NOFOLLOW rejects a file that was replaced by a link after the scan."""
    try:
        descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as handle:
            size = os.fstat(descriptor)
            if not stat.S_ISREG(size.st_mode):
                raise BundleError(f"{name} is not a regular file")
            if size.st_size > limit:
                raise BundleError(f"{name}: the size is {size.st_size} bytes, but at most {limit} are allowed")
            return handle.read(limit + 1)
    except OSError as error:
        raise BundleError(f"{name}: the file cannot be read: {error.strerror}") from None


def _read_checked(directory: Path, name: str, spec: FileSpec) -> bytes:
    data = _read(directory, name, spec.size)
    if len(data) != spec.size:
        raise BundleError(
            f"{name}: the size is {len(data)} bytes, but the manifest states {spec.size}; it was truncated or changed"
        )
    if sha256(data) != spec.sha256:
        raise BundleError(f"{name}: the sha256 does not match the manifest; the file was damaged or changed")
    return data


def _check_signature(directory: Path, found: set[str], manifest: bytes, trusted_keys: Sequence[PublicKey]) -> None:
    from rfa.runtime.bundle.signing import MAX_SIGNATURE_BYTES, verify_signature

    if SIGNATURE_FILE not in found:
        raise BundleError(f"{SIGNATURE_FILE}: the file is missing, but only signed bundles are trusted")
    verify_signature(manifest, _read(directory, SIGNATURE_FILE, MAX_SIGNATURE_BYTES), trusted_keys)


def _check_required(manifest: Manifest) -> None:
    """Check that the bundle contains exactly the files that its kind and its graphs require, and that no file exceeds
    its size limit."""
    for name in REQUIRED_FILES[manifest.kind]:
        if name not in manifest.files:
            raise BundleError(f"{name}: the file is missing, but a bundle of kind {manifest.kind!r} requires it")
    for name in REQUIRED_GRAPHS[manifest.kind]:
        if name not in manifest.graphs:
            raise BundleError(f"{MANIFEST_FILE}: a bundle of kind {manifest.kind!r} requires the graph {name!r}")
    for name, graph in manifest.graphs.items():
        if graph.file != f"{name}.onnx" or graph.file not in manifest.files:
            raise BundleError(f"{MANIFEST_FILE}: graph {name!r} must be stored in the listed file {name!r}.onnx")
    graphs = {graph.file for graph in manifest.graphs.values()}
    for name, spec in manifest.files.items():
        is_kernel = manifest.kind == "lm" and is_kernel_file(name)
        if name not in {*REQUIRED_FILES[manifest.kind], CONSTANTS_FILE, *graphs} and not is_kernel:
            raise BundleError(f"{name}: a bundle of kind {manifest.kind!r} must not contain this file")
        limit = MAX_GRAPH_BYTES if name in graphs else largest_kernel_file(name) if is_kernel else MAX_BYTES[name]
        if spec.size > limit:
            raise BundleError(f"{name}: the size is {spec.size} bytes, but at most {limit} are allowed")
    total = sum(spec.size for name, spec in manifest.files.items() if is_kernel_file(name))
    if total > MAX_ALL_CODE_BYTES:
        raise BundleError(
            f"{KERNELS_FILE}: the size of the kernels is {total} bytes, but at most {MAX_ALL_CODE_BYTES} are allowed"
        )
