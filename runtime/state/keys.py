"""The keys that seal states: where they come from, which are refused, and how they are told apart.

A key is the base64 of 32 random bytes (`openssl rand -base64 32`). The first seals, all of them open. To
replace a key without refusing anybody's state, roll each phase out to every replica before the next begins:

    old              as it was
    old,new          every replica can open what the new key will seal
    new,old          new states are sealed with the new key
    new              after `state_seconds` (and `session_seconds`) no live state needs the old one

An exposed key is removed at once instead: the states it sealed are then refused.
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
# 32 random bytes have 30 distinct values on average; fewer than 18 comes up once in 10^13 keys.
_FEWEST_DISTINCT = 18
_ID_LABEL = b"rfa state key id v1"
_ADVICE = "make one with: openssl rand -base64 32"


def ephemeral_key() -> str:
    """A fresh random key, in the form of `state_keys`. What it seals ends with the servers that know it."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def read_keys(listed: str | None, file: Path | None) -> tuple[bytes, ...]:
    """The keys that are configured, the sealing one first; empty where there are none.

    Args:
        listed: keys separated by commas.
        file: in its place, a file with a key a line.

    Raises:
        ValueError: a key is not base64 of 32 bytes, weak or repeated, or two places hold keys. No message shows a key.
        OSError: the key file cannot be read.
    """
    if listed is not None and file is not None:
        raise ValueError("state keys: give state_keys or state_keys_file, not both: only one key can be the first")
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
        raise ValueError(f"{source} holds no key; {_ADVICE}")
    return tuple(decode_key(text, f"{source}: key {number}") for number, text in enumerate(texts, 1))


def decode_key(text: str, name: str) -> bytes:
    """The bytes of a key; `name` is what messages call it.

    Raises:
        ValueError: it is not base64 of 32 bytes, or weak. No message shows it.
    """
    try:
        # Both alphabets are in use for keys; unlike a token, a key has no need of one spelling only.
        key = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{name} is not base64; {_ADVICE}") from None
    if len(key) != KEY_BYTES:
        raise ValueError(f"{name} is {len(key)} bytes long, not {KEY_BYTES}; {_ADVICE}")
    if _is_weak(key):
        raise ValueError(f"{name} is not random (a pattern, or text); {_ADVICE}")
    return key


def _is_weak(key: bytes) -> bool:
    """Whether 32 bytes are a constant, a sequence, a short pattern or text: none comes out of a random generator."""
    steps = {(after - before) % 256 for before, after in pairwise(key)}
    return len(set(key)) < _FEWEST_DISTINCT or len(steps) < _FEWEST_DISTINCT or all(32 <= byte < 127 for byte in key)


class StateKeys:
    """Master keys by key id. The id is derived from the key, so replicas agree on it without being told."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise ValueError("there must be a key")
        self._keys: dict[bytes, bytes] = {}
        for number, key in enumerate(keys, 1):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise ValueError(f"state key {number} is not {KEY_BYTES} bytes")
            key_id = hashlib.sha256(_ID_LABEL + key).digest()[:KEY_ID_BYTES]
            if key_id in self._keys:
                raise ValueError(f"state key {number} repeats an earlier one")
            self._keys[key_id] = key
        self.sealing_id, self.sealing_key = next(iter(self._keys.items()))

    def get(self, key_id: bytes) -> bytes | None:
        """The key of this id; one that is not known is never tried on another key."""
        return self._keys.get(key_id)
