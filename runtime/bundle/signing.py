"""Detached signatures of bundles, in the format of minisign (https://jedisct1.github.io/minisign).

The signature in `manifest.json.minisig` covers every byte of a bundle, because the manifest does.
`minisign -Vm manifest.json -P KEY` verifies signatures from `rfa sign`, and vice versa.

    public key    "Ed" | key id (8) | Ed25519 key (32)
    signature     "ED" | key id (8) | Ed25519 signature of the file's BLAKE2b-512 (64)
    comment       Ed25519 signature of the signature and the trusted comment (64)

Signatures without the hash ("Ed") are rejected. Secret keys are not encrypted, as with `minisign -G -W`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rfa.runtime.bundle.documents import BundleError
from rfa.runtime.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE

MAX_SIGNATURE_BYTES = 4_096
UNTRUSTED, TRUSTED = "untrusted comment: ", "trusted comment: "
_KEY, _HASHED = b"Ed", b"ED"
_PUBLIC_BYTES, _SIGNATURE_BYTES, _COMMENT_BYTES, _SECRET_BYTES = 42, 74, 64, 158
# Part of a secret key without encryption. minisign stores the salt and the cost in these fields.
_NOT_ENCRYPTED = b"\0\0B2" + bytes(48)


class KeyFormatError(ValueError):
    """Raised if a key is invalid. The message does not contain the key."""


@dataclass(frozen=True)
class PublicKey:
    """A public key that verifies signatures."""

    key_id: bytes
    key: bytes

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Parse a public key in the format that minisign prints, `RW…`.

        Raises:
            KeyFormatError: If the text is not a public key.
        """
        data = _decode_base64(text, _PUBLIC_BYTES)
        if data is None or data[:2] != _KEY:
            raise KeyFormatError('not a minisign public key; expected "RW" followed by 54 characters')
        return cls(data[2:10], data[10:])

    def __str__(self) -> str:
        return base64.b64encode(_KEY + self.key_id + self.key).decode()


@dataclass(frozen=True)
class SecretKey:
    """A secret key that creates signatures."""

    key_id: bytes
    seed: bytes

    @classmethod
    def generate(cls) -> SecretKey:
        """Return a new random key."""
        return cls(os.urandom(8), os.urandom(32))

    @classmethod
    def parse(cls, text: str) -> SecretKey:
        """Parse the content of a secret key file of minisign.

        Raises:
            KeyFormatError: If the key is invalid or protected by a password.
        """
        lines = text.splitlines()
        data = _decode_base64(lines[1], _SECRET_BYTES) if len(lines) == 2 and lines[0].startswith(UNTRUSTED) else None
        if data is None or data[:2] != _KEY:
            raise KeyFormatError("this is not a minisign secret key")
        if data[2:4] != _NOT_ENCRYPTED[:2]:
            raise KeyFormatError(
                "the key is protected by a password; create one without a password with rfa keygen or minisign -G -W"
            )
        found = cls(data[54:62], data[62:94])
        if data[94:126] != found.public.key:
            raise KeyFormatError("this is not a minisign secret key, because its two halves do not match")
        return found

    @property
    def public(self) -> PublicKey:
        """Public key that verifies the signatures of this key."""
        return PublicKey(self.key_id, self._private.public_key().public_bytes_raw())

    @property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)

    def text(self) -> str:
        """Content of the file that stores the key."""
        data = _KEY + _NOT_ENCRYPTED + self.key_id + self.seed + self.public.key + bytes(32)
        return f"{UNTRUSTED}minisign secret key without a password\n{base64.b64encode(data).decode()}\n"

    def sign(self, message: bytes, comment: str) -> bytes:
        """Sign a message, and return the content of the signature file.

        Args:
            message: Bytes to sign.
            comment: One line of text, which is also signed.
        """
        signature = self._private.sign(_hash(message))
        over_comment = self._private.sign(signature + comment.encode())
        lines = (
            f"{UNTRUSTED}signature of a bundle",
            base64.b64encode(_HASHED + self.key_id + signature).decode(),
            f"{TRUSTED}{comment}",
            base64.b64encode(over_comment).decode(),
        )
        return ("\n".join(lines) + "\n").encode()


class Keys(NamedTuple):
    """Paths of the two files of a key pair."""

    key: Path
    pub: Path


def parse_public_keys(text: str) -> tuple[PublicKey, ...]:
    """Parse public keys, one per line or separated by commas. Comments of minisign are ignored, as is text after `#`.

    Raises:
        KeyFormatError: If a key is invalid, or the text contains no key.
    """
    lines = [line.split("#")[0] for line in text.splitlines() if not line.startswith(UNTRUSTED)]
    found = tuple(PublicKey.parse(part.strip()) for line in lines for part in line.split(",") if part.strip())
    if not found:
        raise KeyFormatError("the text contains no public key")
    return found


def verify_signature(message: bytes, signature: bytes, trusted: Sequence[PublicKey]) -> str:
    """Verify a signature with the trusted keys, and return its trusted comment.

    Args:
        message: Bytes that were signed.
        signature: Content of the signature file.
        trusted: Public keys, one of which must have made the signature.

    Raises:
        BundleError: If the signature is malformed, was made with an unknown key, or does not match the message.
    """
    try:
        name, signed, comment, over_comment = signature.decode().removesuffix("\n").split("\n")
    except ValueError:
        raise BundleError(f"{SIGNATURE_FILE}: the file is not a minisign signature") from None
    data, last = _decode_base64(signed, _SIGNATURE_BYTES), _decode_base64(over_comment, _COMMENT_BYTES)
    is_whole = name.startswith(UNTRUSTED) and comment.startswith(TRUSTED)
    if data is None or last is None or not is_whole:
        raise BundleError(f"{SIGNATURE_FILE}: the file is not a minisign signature")
    if data[:2] != _HASHED:
        raise BundleError(
            f"{SIGNATURE_FILE}: the file is not an ED signature; use minisign 0.11 or later without the option -l"
        )
    key = next((key for key in trusted if key.key_id == data[2:10]), None)
    if key is None:
        raise BundleError(f"{SIGNATURE_FILE}: the bundle was signed with a key that is not trusted")
    verifier = Ed25519PublicKey.from_public_bytes(key.key)
    try:
        verifier.verify(data[10:], _hash(message))
        verifier.verify(last, data[10:] + comment.removeprefix(TRUSTED).encode())
    except InvalidSignature:
        raise BundleError(f"{SIGNATURE_FILE}: the signature does not match the manifest and the comment") from None
    return comment.removeprefix(TRUSTED)


def write_keys(prefix: Path) -> Keys:
    """Create a key pair. `PREFIX.key` is not encrypted and is readable only by its owner. `PREFIX.pub` is the public
    key.

    Raises:
        FileExistsError: If one of the files already exists.
    """
    key = SecretKey.generate()
    paths = Keys(prefix.with_name(f"{prefix.name}.key"), prefix.with_name(f"{prefix.name}.pub"))
    public = f"{UNTRUSTED}minisign public key {key.key_id[::-1].hex().upper()}\n{key.public}\n"
    _create(paths.pub, public.encode(), 0o644)
    _create(paths.key, key.text().encode(), 0o600)
    return paths


def sign_bundle(directory: Path, digest: str, key: SecretKey) -> Path:
    """Sign the manifest of a bundle. An existing signature is replaced.

    Args:
        directory: Directory of the bundle.
        digest: Digest of the opened bundle.
        key: Secret key.

    Returns:
        The path of the signature file.

    Raises:
        BundleError: If the manifest has changed since the bundle was opened.
    """
    manifest = (directory / MANIFEST_FILE).read_bytes()
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise BundleError(f"{MANIFEST_FILE}: the file changed while it was being signed")
    target = directory / SIGNATURE_FILE
    temporary = directory.parent / f".{directory.name}.{SIGNATURE_FILE}.{os.getpid()}"
    _create(temporary, key.sign(manifest, f"timestamp:{int(time.time())}\tfile:{MANIFEST_FILE}\thashed"), 0o644)
    temporary.replace(target)
    return target


def _create(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(descriptor)


def _hash(message: bytes) -> bytes:
    return hashlib.blake2b(message, digest_size=64).digest()


def _decode_base64(text: str, size: int) -> bytes | None:
    """Decode canonical base64 of exactly `size` bytes, or return None if the text is anything else."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return data if len(data) == size and base64.b64encode(data).decode() == text else None
