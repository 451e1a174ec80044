"""Authenticated encryption of states, bound to their scope.

    sealed = key id | salt | AES-256-GCM(subkey, nonce, plaintext, binding) with its tag
    subkey | nonce = HKDF-SHA256(master key, salt)

A random 16-byte salt gives every seal its own key, so the limit of 2^32 messages under one GCM key with random nonces
(NIST SP 800-38D) does not apply. Among 2^48 seals, two salts are equal with probability 2^-33. The binding is not
stored, so reader and writer must specify the same scope.
"""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from rfa.runtime.state.keys import KEY_BYTES, KEY_ID_BYTES, StateKeys
from rfa.runtime.state.names import StateScope

SALT_BYTES = 16
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = KEY_ID_BYTES + SALT_BYTES + TAG_BYTES
_FORMAT = b"rfa state v1"


class SealBroken(Exception):
    """Raised if bytes cannot be decrypted and authenticated with these keys and this binding (associated data).

    Log the message, but do not send it to clients."""


class Sealer:
    """Seals (encrypts and authenticates) and opens bytes for one audience.

    Args:
        ring: Keys.
        audience: Text that is part of every binding. Only sealers with the same audience can open the bytes.
    """

    def __init__(self, ring: StateKeys, audience: str) -> None:
        self._ring = ring
        self._audience = audience

    def seal(self, plaintext: bytes, scope: StateScope, purpose: str) -> bytes:
        """Encrypt and authenticate a plaintext, and return the sealed bytes. They are `OVERHEAD_BYTES` longer than the
        plaintext.

        Args:
            plaintext: Bytes to seal.
            scope: Scope of the state.
            purpose: Kind of data, so that one kind cannot be opened as another kind.
        """
        key_id, salt = self._ring.sealing_id, secrets.token_bytes(SALT_BYTES)
        subkey, nonce = _derive(self._ring.sealing_key, salt)
        return key_id + salt + AESGCM(subkey).encrypt(nonce, plaintext, self._binding(key_id, scope, purpose))

    def open(self, sealed: bytes, scope: StateScope, purpose: str) -> bytes:
        """Return the plaintext of sealed bytes. `scope` and `purpose` must be those with which they were sealed.

        Raises:
            SealBroken: If the bytes were altered, or were sealed with other keys, for another scope or for another
                purpose.
        """
        if len(sealed) < OVERHEAD_BYTES:
            raise SealBroken("it is shorter than the overhead of sealing")
        key_id, salt = sealed[:KEY_ID_BYTES], sealed[KEY_ID_BYTES : KEY_ID_BYTES + SALT_BYTES]
        master = self._ring.get(key_id)
        if master is None:
            raise SealBroken("it was sealed with an unknown key")
        subkey, nonce = _derive(master, salt)
        ciphertext = sealed[KEY_ID_BYTES + SALT_BYTES :]
        return self._decrypt(subkey, nonce, ciphertext, self._binding(key_id, scope, purpose))

    def _decrypt(self, subkey: bytes, nonce: bytes, ciphertext: bytes, binding: bytes) -> bytes:
        try:
            return AESGCM(subkey).decrypt(nonce, ciphertext, binding)
        except InvalidTag:
            raise SealBroken("it was altered, or sealed for another scope") from None

    def _binding(self, key_id: bytes, scope: StateScope, purpose: str) -> bytes:
        """Return the fields of the binding, each preceded by its length, so that the bindings of different scopes
        differ."""
        texts = (self._audience, scope.tenant, scope.model, scope.kind, purpose)
        fields = (_FORMAT, key_id, *(text.encode() for text in texts))
        return b"".join(len(field).to_bytes(4, "little") + field for field in fields)


def _derive(master: bytes, salt: bytes) -> tuple[bytes, bytes]:
    """Return the subkey and the nonce of a seal, which are derived from the master key and the salt."""
    hkdf = HKDF(algorithm=SHA256(), length=KEY_BYTES + NONCE_BYTES, salt=salt, info=_FORMAT)
    material = hkdf.derive(master)
    return material[:KEY_BYTES], material[KEY_BYTES:]
