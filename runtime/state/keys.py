"""Keys that seal states.

A key is the base64 encoding of 32 random bytes (`openssl rand -base64 32`). The first key seals states, and all keys
open them. To rotate keys without losing states, deploy each of these lists to every replica before the next:

    old
    old,new          every replica can open states of the new key
    new,old          the new key seals
    new              after `state_seconds` (and `session_seconds`) no live state needs the old key

Remove an exposed key at once. Its states become invalid.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

KEY_BYTES = 32
KEY_ID_BYTES = 8
# 32 random bytes have 30 distinct values on average; one key in 10^13 has fewer than 18.
_FEWEST_DISTINCT = 18
_ID_LABEL = b"rfa state key id v1"
_ADVICE = "generate one with: openssl rand -base64 32"


def ephemeral_key() -> str:
    """Return a random key in the format of `state_keys`. Its states are lost when the servers that use this key
    stop."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def read_keys(listed: str | None, file: Path | None) -> tuple[bytes, ...]:
    """Return the configured keys. The first one seals new states.

    Args:
        listed: Keys separated by commas.
        file: File with one key per line. Only one of `listed` and `file` may be set.

    Raises:
        ValueError: If a key is invalid, weak or repeated, or both arguments are set. The message does not contain a
            key.
        OSError: If the key file cannot be read.
    """
    if listed is not None and file is not None:
        raise ValueError(
            "state keys: set either state_keys or state_keys_file, not both, because the first key encrypts new states"
        )
    if file is not None:
        lines = file.read_bytes().decode("utf-8", "replace").splitlines()
        texts = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        source = "state_keys_file"
    elif listed is not None:
        texts = [text.strip() for text in listed.split(",")]
        source = "state_keys"
    else:
        return ()
    if not texts:
        raise ValueError(f"{source} contains no key; {_ADVICE}")
    return tuple(decode_key(text, f"{source}: key {number}") for number, text in enumerate(texts, 1))


def decode_key(text: str, name: str) -> bytes:
    """Decode a key. `name` identifies it in messages, which do not contain the key.

    Raises:
        ValueError: If the text is not the base64 encoding of 32 bytes, or the key is weak.
    """
    try:
        # Both alphabets of base64 are accepted.
        key = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{name} is not valid base64; {_ADVICE}") from None
    if len(key) != KEY_BYTES:
        raise ValueError(f"{name} has {len(key)} bytes, but must have {KEY_BYTES}; {_ADVICE}")
    if _is_weak(key):
        raise ValueError(f"{name} is a pattern or a text instead of random bytes; {_ADVICE}")
    return key


def _is_weak(key: bytes) -> bool:
    """Return whether the 32 bytes are a constant, a sequence, a short pattern or text."""
    steps = {(after - before) % 256 for before, after in pairwise(key)}
    return len(set(key)) < _FEWEST_DISTINCT or len(steps) < _FEWEST_DISTINCT or all(32 <= byte < 127 for byte in key)


class StateKeys:
    """Master keys by their ids. The id of a key is derived from it, so all servers use the same id."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise ValueError("at least one key is required")
        self._keys: dict[bytes, bytes] = {}
        for number, key in enumerate(keys, 1):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise ValueError(f"state key {number} does not have {KEY_BYTES} bytes")
            key_id = hashlib.sha256(_ID_LABEL + key).digest()[:KEY_ID_BYTES]
            if key_id in self._keys:
                raise ValueError(f"state key {number} is equal to an earlier one")
            self._keys[key_id] = key
        self.sealing_id, self.sealing_key = next(iter(self._keys.items()))

    def get(self, key_id: bytes) -> bytes | None:
        """Return the key with the given id, or None if there is none."""
        return self._keys.get(key_id)
