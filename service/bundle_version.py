"""A short name of a set of bundles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

LENGTH = 12


def bundle_version(digests: Iterable[str]) -> str:
    """The version of a set of bundles; their order counts, since the first of a kind is the default."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:LENGTH]
