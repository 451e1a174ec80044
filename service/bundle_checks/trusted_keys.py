"""Read the public keys with which bundles must be signed, from `RFA_TRUSTED_KEYS` and `RFA_TRUSTED_KEYS_FILE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rfa.service.settings import ConfigurationError, SecuritySettings, Settings

if TYPE_CHECKING:
    from rfa.runtime.bundle.signing import PublicKey


def trusted_keys(settings: SecuritySettings) -> tuple[PublicKey, ...]:
    """Return the keys in both settings. If neither is set, there are no keys and signatures are not checked.

    Raises:
        ConfigurationError: If a setting is malformed or contains no key.
    """
    texts: dict[str, str] = {}
    if settings.trusted_keys is not None:
        texts["RFA_TRUSTED_KEYS"] = settings.trusted_keys
    if settings.trusted_keys_file is not None:
        try:
            texts["RFA_TRUSTED_KEYS_FILE"] = settings.trusted_keys_file.read_text()
        except (OSError, ValueError):
            raise ConfigurationError(
                "RFA_TRUSTED_KEYS_FILE: the file cannot be read as text; check its path and permissions"
            ) from None
    if not texts:
        return ()
    from rfa.runtime.bundle.signing import KeyFormatError, parse_public_keys

    keys: list[PublicKey] = []
    for name, text in texts.items():
        try:
            keys += parse_public_keys(text)
        except KeyFormatError as error:
            raise ConfigurationError(f"{name}: {error}") from None
    return tuple(keys)


def with_trusted_keys(settings: Settings) -> Settings:
    """Return a copy of the settings that contains the keys instead of the path of the file. All processes then use the
    same keys, even if the file changes."""
    keys = ",".join(map(str, trusted_keys(settings.security)))
    return settings.replace(trusted_keys=keys or None, trusted_keys_file=None)
