"""Find the bundles that a command serves or measures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def served_bundles(bundles: list[Path] | None = None, *, ignore: frozenset[str] = frozenset()) -> tuple[Path, ...]:
    """Return the bundles to serve: `bundles` if there are any, and otherwise the bundles of the settings.

    Args:
        ignore: Environment variables that look like settings but are options of the command.

    Raises:
        FileNotFoundError: If there are no bundles.
        ConfigurationError: If an environment variable looks like a setting but is not one.
    """
    from rfa.service.settings import Settings, check_names

    check_names({name: value for name, value in os.environ.items() if name not in ignore})
    found = tuple(bundles or ()) or Settings().models.bundles
    if not found:
        raise FileNotFoundError("no bundles found; specify one with --bundle, or set RFA_BUNDLES to bundle directories")
    return found


def find_bundle(name: str, others: Sequence[str] = ()) -> Path:
    """Find a bundle by its directory, or by its name among the served bundles.

    Args:
        others: Other names that the command accepts. The error message lists them.

    Raises:
        FileNotFoundError: If there is no such bundle.
        ConfigurationError: If an environment variable looks like a setting but is not one.
    """
    from rfa.library import locate

    return locate.find_bundle(name, others, bundles=served_bundles)
