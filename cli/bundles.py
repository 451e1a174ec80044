"""The bundles that a command serves or measures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def served_bundles(bundles: list[Path] | None = None, *, ignore: frozenset[str] = frozenset()) -> tuple[Path, ...]:
    """The given bundles, else those of RFA_BUNDLES, else of ./bundles, else of this package.

    Args:
        ignore: environment variables that look like settings but belong to the command.

    Raises:
        FileNotFoundError: there are none.
        ConfigurationError: an environment variable looks like a setting but is none.
    """
    from rfa.service.settings import Settings, check_names

    check_names({name: value for name, value in os.environ.items() if name not in ignore})
    found = tuple(bundles or ()) or Settings().models.bundles
    if not found:
        raise FileNotFoundError("no bundles: name one with --bundle, or set RFA_BUNDLES to their folders")
    return found


def find_bundle(name: str, others: Sequence[str] = ()) -> Path:
    """`rfa.library.locate.find_bundle` among the served bundles.

    Raises:
        FileNotFoundError, ConfigurationError: see also `served_bundles`.
    """
    from rfa.library import locate

    return locate.find_bundle(name, others, bundles=served_bundles)
