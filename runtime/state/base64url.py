"""Encode and decode canonical base64url without padding."""

from __future__ import annotations

import base64


def encode(data: bytes) -> str:
    """Encode bytes as canonical base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """Decode canonical base64url without padding, and return the bytes.

    Raises:
        ValueError: If the text has padding, other characters, white space or nonzero unused bits.
    """
    # The decoders of the standard library ignore unused bits, so the encoding is compared.
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode(data) != text:
        raise ValueError("the text is not canonical base64url")
    return data
