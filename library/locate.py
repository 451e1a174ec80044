"""Which bundle a command means: a path, or the name of a bundle that the server would serve by default."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from rfa.runtime.bundle.manifest import MANIFEST_FILE
from rfa.service.settings import Settings, check_names


def served_bundles(given: list[Path] | None = None, *, own: frozenset[str] = frozenset()) -> tuple[Path, ...]:
    """The bundles given, else those of RFA_BUNDLES, else those of ./bundles, else those that come with this package.

    Args:
        own: variables that the command reads itself and are no settings.

    Raises:
        FileNotFoundError: there are none.
        ConfigurationError: a variable is called like a setting and is none.
    """
    check_names({name: value for name, value in os.environ.items() if name not in own})
    found = tuple(given or ()) or Settings().bundles
    if not found:
        raise FileNotFoundError("no bundles: name one with --bundle, or set RFA_BUNDLES to their folders")
    return found


def find_bundle(name: str, others: Sequence[str] = ()) -> Path:
    """The bundle in the folder `name`, else the default bundle of that name, else the folder, whatever is in it.

    Args:
        others: names that are of no bundle, and that the caller takes as well.

    Raises:
        FileNotFoundError: there is none of these; lists the names that there are.
    """
    path = Path(name)
    is_path = name != ""  # which Path takes for the working folder
    if is_path and (path / MANIFEST_FILE).is_file():
        return path
    known = {bundle.name: bundle for bundle in served_bundles()}
    if name not in known:
        if is_path and path.is_dir():
            return path
        names = sorted({*known, *others})
        meant = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {meant[0]}?" if meant else ""
        raise FileNotFoundError(f"no bundle {name!r}: give a folder, or one of {', '.join(names)}{hint}")
    return known[name]
