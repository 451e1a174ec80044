"""Provide the files of the web page. They are read once, and kept in memory plain and compressed."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Asset:
    """A file of the web page.

    Attributes:
        media_type: Value of the Content-Type header.
        plain: Bytes of the file.
        packed: Bytes compressed with gzip.
        tag: ETag of the file.
    """

    media_type: str
    plain: bytes
    packed: bytes
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """Return the assets by their path in `pages`, such as `series.js`. Files without a media type, such as licences,
    are left out."""
    root = files("rfa.service").joinpath("pages")
    return {
        name: _asset(name, file) for name, file in sorted(_files(root)) if PurePosixPath(name).suffix in MEDIA_TYPES
    }


def _files(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{above}{entry.name}/")
        else:
            yield f"{above}{entry.name}", entry


def _asset(name: str, file: Traversable) -> Asset:
    plain = file.read_bytes()
    tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
    return Asset(MEDIA_TYPES[PurePosixPath(name).suffix], plain, gzip.compress(plain, mtime=0), tag)
