"""Find the bundle of a name: in a folder, or among the default bundles."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rfa.runtime.bundle.locate import default_bundles
from rfa.runtime.bundle.manifest import MANIFEST_FILE


def listed_bundles() -> tuple[Path, ...]:
    """The bundles of RFA_BUNDLES, else of ./bundles, else of this package.

    Raises:
        FileNotFoundError: there are none.
    """
    listed = filter(None, os.environ.get("RFA_BUNDLES", "").split(os.pathsep))
    found = tuple(map(Path, listed)) or default_bundles()
    if not found:
        raise FileNotFoundError("no bundles: name one by its folder, or set RFA_BUNDLES to their folders")
    return found


def find_bundle(
    name: str, others: Sequence[str] = (), *, bundles: Callable[[], Sequence[Path]] = listed_bundles
) -> Path:
    """The bundle in the folder `name`, else the one of that name in `bundles`, else the folder, whatever is in it.

    Args:
        others: further names that the caller accepts, for the message.
        bundles: called unless `name` is the folder of a bundle.

    Raises:
        FileNotFoundError: there is none of these; lists the available names.
    """
    path = Path(name)
    is_path = name != ""  # Path("") is the working folder
    if is_path and (path / MANIFEST_FILE).is_file():
        return path
    by_name = {bundle.name: bundle for bundle in bundles()}
    if name not in by_name:
        if is_path and path.is_dir():
            return path
        names = sorted({*by_name, *others})
        meant = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {meant[0]}?" if meant else ""
        raise FileNotFoundError(f"no bundle {name!r}: give a folder, or one of {', '.join(names)}{hint}")
    return by_name[name]
