"""Canonical base64url without padding."""

from __future__ import annotations

import base64


def encode(data: bytes) -> str:
    """Encode to canonical base64url."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """Invert `encode`. Raises ValueError for padding, other alphabets, whitespace and stray last bits."""
    # No decoder of the standard library rejects stray last bits, so the encoding is compared.
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode(data) != text:
        raise ValueError("not canonical base64url")
    return data
