"""Base64url without padding, where bytes have one spelling: keys in a handshake, state tokens."""

from __future__ import annotations

import base64


def encode(data: bytes) -> str:
    """The one spelling."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """The inverse of `encode`. ValueError for padding, other alphabets, whitespace and stray last bits."""
    # Lenient here, since no strict reader of the library minds stray last bits; encoding again decides all of it.
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode(data) != text:
        raise ValueError("not the canonical base64url")
    return data
