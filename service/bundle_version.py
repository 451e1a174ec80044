"""Compute the version of a set of bundles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

LENGTH = 12


def bundle_version(digests: Iterable[str]) -> str:
    """Return the version of a set of bundles, given their digests. It depends on the order of the bundles, because the
    first bundle of a kind is the default."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:LENGTH]
