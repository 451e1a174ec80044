"""Find a bundle by its directory, or by its name among the default bundles."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rfa.runtime.bundle.locate import default_bundles
from rfa.runtime.bundle.manifest import MANIFEST_FILE


def listed_bundles() -> tuple[Path, ...]:
    """Return the bundles in RFA_BUNDLES if it is set, otherwise those in ./bundles or those of this package.

    Raises:
        FileNotFoundError: If no bundles are found.
    """
    listed = filter(None, os.environ.get("RFA_BUNDLES", "").split(os.pathsep))
    found = tuple(map(Path, listed)) or default_bundles()
    if not found:
        raise FileNotFoundError(
            "no bundles found; pass the path of a bundle directory, or set RFA_BUNDLES to bundle directories"
        )
    return found


def find_bundle(
    name: str, others: Sequence[str] = (), *, bundles: Callable[[], Sequence[Path]] = listed_bundles
) -> Path:
    """Find a bundle. The name is tried as a bundle directory first, then as a name among `bundles`, then as any
    directory.

    Args:
        others: Other names that the caller accepts, which are listed in the error message.
        bundles: Function that returns the available bundles. It is called only if `name` is not a bundle directory.

    Raises:
        FileNotFoundError: If none of these exists. The message lists the available names.
    """
    path = Path(name)
    is_path = name != ""  # Path("") is the working directory
    if is_path and (path / MANIFEST_FILE).is_file():
        return path
    by_name = {bundle.name: bundle for bundle in bundles()}
    if name not in by_name:
        if is_path and path.is_dir():
            return path
        names = sorted({*by_name, *others})
        meant = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {meant[0]}?" if meant else ""
        raise FileNotFoundError(f"no bundle is called {name!r}; pass a directory, or one of {', '.join(names)}{hint}")
    return by_name[name]
