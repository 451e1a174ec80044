"""The bundles that a command serves or measures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def served_bundles(given: list[Path] | None = None, *, own: frozenset[str] = frozenset()) -> tuple[Path, ...]:
    """The bundles given, else those of RFA_BUNDLES, else those of ./bundles, else those that come with this package.

    Args:
        own: variables that the command reads itself and are no settings.

    Raises:
        FileNotFoundError: there are none.
        ConfigurationError: a variable is called like a setting and is none.
    """
    from rfa.service.settings import Settings, check_names

    check_names({name: value for name, value in os.environ.items() if name not in own})
    found = tuple(given or ()) or Settings().bundles
    if not found:
        raise FileNotFoundError("no bundles: name one with --bundle, or set RFA_BUNDLES to their folders")
    return found


def find_bundle(name: str, others: Sequence[str] = ()) -> Path:
    """As `rfa.library.locate.find_bundle`, among the served bundles.

    Raises:
        FileNotFoundError, ConfigurationError: also as `served_bundles`.
    """
    from rfa.library import locate

    return locate.find_bundle(name, others, bundles=served_bundles)
