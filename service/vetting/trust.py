"""Whose bundles are served: the public keys of `RFA_TRUSTED_KEYS` and its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rfa.service.settings import ConfigurationError, Settings

if TYPE_CHECKING:
    from rfa.runtime.bundle.signing import PublicKey


def trusted_keys(settings: Settings) -> tuple[PublicKey, ...]:
    """The keys of both settings together; none where neither is set, and every bundle is trusted.

    Raises:
        ConfigurationError: a setting is there and holds no key, or something else: whoever sets it wants a guard.
    """
    given: dict[str, str] = {}
    if settings.trusted_keys is not None:
        given["RFA_TRUSTED_KEYS"] = settings.trusted_keys
    if settings.trusted_keys_file is not None:
        try:
            given["RFA_TRUSTED_KEYS_FILE"] = settings.trusted_keys_file.read_text()
        except (OSError, ValueError):
            raise ConfigurationError("RFA_TRUSTED_KEYS_FILE: cannot be read as text") from None
    if not given:
        return ()
    from rfa.runtime.bundle.signing import KeyFormatError, parse_public_keys

    found: list[PublicKey] = []
    for name, text in given.items():
        try:
            found += parse_public_keys(text)
        except KeyFormatError as error:
            raise ConfigurationError(f"{name}: {error}") from None
    return tuple(found)


def with_trusted_keys(settings: Settings) -> Settings:
    """Settings with the keys in the place of a file, which the processes would read at different times."""
    keys = ",".join(map(str, trusted_keys(settings)))
    return settings.model_copy(update={"trusted_keys": keys or None, "trusted_keys_file": None})
