"""A folder whose manifest.json has the hash of every file and of itself: the bytes in it, once all of them fit.

`rfa.export.bundle` reads the same folders, and much more of them, for programs that have no torch and none of this
room; this room imports nothing of ours. A test holds the two to each other, file by file.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

MANIFEST_FILE = "manifest.json"
# Signs the manifest, so the manifest cannot list it.
SIGNATURE_FILE = "manifest.json.minisig"


def read_sealed(directory: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest without its own hash, and the content of each file that it lists.

    Raises:
        ValueError: a file is damaged, missing, not listed or no regular file; it is named.
    """
    document = _manifest(_read(directory / MANIFEST_FILE))
    listed = document["files"]
    found = {entry.name for entry in os.scandir(directory)} - {MANIFEST_FILE, SIGNATURE_FILE}
    for name in sorted(found ^ set(listed)):
        raise ValueError(f"{name}: {'not listed in ' + MANIFEST_FILE if name in found else 'missing'}")
    contents = {name: _read(directory / name) for name in listed}
    for name, data in contents.items():
        if hashlib.sha256(data).hexdigest() != listed[name]["sha256"]:
            raise ValueError(f"{name}: sha256 does not match {MANIFEST_FILE} (damaged or changed)")
    return document, contents


def _manifest(data: bytes) -> dict[str, Any]:
    """In the one form of its content, and as its own hash says."""
    document = json.loads(data)
    if not isinstance(document, dict) or _canonical(document) != data:
        raise ValueError(f"{MANIFEST_FILE}: not in canonical form (damaged or edited)")
    stated = document.pop("content_sha256", None)
    if stated != hashlib.sha256(_canonical(document)).hexdigest():
        raise ValueError(f"{MANIFEST_FILE}: content_sha256 does not match the content (damaged or edited)")
    return document


def _canonical(document: Any) -> bytes:
    text = json.dumps(document, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False)
    return (text + "\n").encode("ascii")


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(f"{path.name}: cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path.name}: not a regular file")
        return handle.read()
