"""Search for the default bundles."""

from __future__ import annotations

from pathlib import Path

BUNDLE_ROOT = Path(__file__).resolve().parents[2] / "bundles"


def default_bundles() -> tuple[Path, ...]:
    """Return the bundle directories in ./bundles, sorted by name. If there are none, return the directories of the
    bundles in this package."""
    roots = (Path.cwd() / "bundles", BUNDLE_ROOT)
    found = (sorted(manifest.parent for manifest in root.glob("*/manifest.json")) for root in roots)
    return tuple(next(filter(None, found), ()))
