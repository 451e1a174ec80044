"""Clocks that move when told, and a second writer of the token format that shares no code with the service."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rfa.runtime.state.keys import StateKeys
from rfa.runtime.state.names import StateScope
from rfa.runtime.state.sealer import Sealer
from rfa.runtime.state.tokens import Tokens

NOW = 1_800_000_000
LIFETIME = 3_600
SCOPE = StateScope(model="ab" * 32, kind="filter", tenant="tenant-a")
KEY, OTHER_KEY, THIRD_KEY = (hashlib.sha256(name).digest() for name in (b"first", b"second", b"third"))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def make_tokens(*keys: bytes, audience: str = "rfa", seconds: int = LIFETIME, clock: Clock | None = None) -> Tokens:
    return Tokens(Sealer(StateKeys(keys or (KEY,)), audience), seconds, clock or Clock())


def key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"rfa state key id v1" + key).digest()[:8]


def _subkey_and_nonce(key: bytes, salt: bytes) -> tuple[bytes, bytes]:
    """HKDF-SHA256 as RFC 5869 writes it."""
    secret = hmac.digest(salt, key, "sha256")
    first = hmac.digest(secret, b"rfa state v1" + b"\x01", "sha256")
    second = hmac.digest(secret, first + b"rfa state v1" + b"\x02", "sha256")
    return first, second[:12]


def _binding(key: bytes, scope: StateScope, audience: str, purpose: str) -> bytes:
    fields = [b"rfa state v1", key_id(key)]
    fields += [text.encode() for text in (audience, scope.tenant, scope.model, scope.kind, purpose)]
    return b"".join(struct.pack("<I", len(field)) + field for field in fields)


def plaintext(payload: bytes, step: int = 3, issued: int = NOW, expires: int = NOW + LIFETIME, **header: int) -> bytes:
    return struct.pack("<QQQI", issued, expires, step, header.get("length", len(payload))) + payload


def write_token(
    content: bytes, key: bytes = KEY, scope: StateScope = SCOPE, audience: str = "rfa", purpose: str = "token"
) -> str:
    """A token with a valid seal around any content, from the documented format."""
    salt = os.urandom(16)
    subkey, nonce = _subkey_and_nonce(key, salt)
    sealed = AESGCM(subkey).encrypt(nonce, content, _binding(key, scope, audience, purpose))
    return "v1." + base64.urlsafe_b64encode(key_id(key) + salt + sealed).decode().rstrip("=")


def read_token(token: str, key: bytes = KEY, scope: StateScope = SCOPE, audience: str = "rfa") -> bytes:
    """What is inside a token, from the documented format."""
    body = token.removeprefix("v1.")
    sealed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    subkey, nonce = _subkey_and_nonce(key, sealed[8:24])
    return AESGCM(subkey).decrypt(nonce, sealed[24:], _binding(key, scope, audience, "token"))
