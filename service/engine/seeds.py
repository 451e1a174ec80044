"""Draw random seeds for requests without a seed."""

from __future__ import annotations

import secrets

SEED_BITS = 53  # JSON readers may store numbers as doubles, whose integers are exact up to 53 bits


def draw_seed() -> int:
    """Return a random seed."""
    return secrets.randbits(SEED_BITS)
