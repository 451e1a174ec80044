"""One short name for what a server answers with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

LENGTH = 12


def bundle_version(digests: Iterable[str]) -> str:
    """The version of a set of bundles, given their digests in the order in which they are served.

    The order counts: the first of a kind answers requests that name none.
    """
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:LENGTH]
