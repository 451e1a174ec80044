"""Location of the default bundles."""

from __future__ import annotations

from pathlib import Path

BUNDLE_ROOT = Path(__file__).resolve().parents[2] / "bundles"


def default_bundles() -> tuple[Path, ...]:
    """Return bundle directories in ./bundles, sorted by name, or those of this package if there are none."""
    roots = (Path.cwd() / "bundles", BUNDLE_ROOT)
    found = (sorted(manifest.parent for manifest in root.glob("*/manifest.json")) for root in roots)
    return tuple(next(filter(None, found), ()))
