"""Read, check and compare API keys.

A key may be followed by quotas for this key, which override the settings. `off` means no limit:

    0123456789abcdef requests=5 concurrent=2 streams=10 tokens=200 observations=off
"""

from __future__ import annotations

import hmac
import ipaddress
import math
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import get_args

from rfa.runtime.state.names import tenant_of_key
from rfa.service.settings import ConfigurationError, QuotaName, Settings

SHORTEST_KEY = 16


class ApiKeys:
    """API keys of a server, stored as digests.

    Args:
        keys: Keys. Each may be followed by quotas, separated by spaces.

    Attributes:
        quotas: Quotas configured for each key, by tenant. A value of None means no limit.

    Raises:
        ConfigurationError: If a key is too short, is repeated or cannot be sent in a header, or if a quota is invalid.
            The message does not contain the key.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._tenants: dict[bytes, str] = {}
        self.quotas: dict[str, dict[QuotaName, float | None]] = {}
        for number, line in enumerate(keys, start=1):
            key, *written = line.split()
            quotas = _read_quotas(written, number)
            _check(key, number)
            digest = sha256(key.encode()).digest()
            if digest in self._tenants:
                raise ConfigurationError(f"API key {number} is a duplicate; each client must have its own key")
            tenant = tenant_of_key(key)
            self._tenants[digest] = tenant
            self.quotas[tenant] = quotas

    def __len__(self) -> int:
        return len(self._tenants)

    def tenant_of(self, presented: bytes) -> str | None:
        """Return the stable id of an API key, or None if the key is unknown. The comparison takes constant time."""
        digest = sha256(presented).digest()
        found = None
        for valid_name, tenant in self._tenants.items():
            if hmac.compare_digest(valid_name, digest):
                found = tenant
        return found


def load_keys(settings: Settings) -> ApiKeys:
    """Return the API keys in the settings `api_keys` and `api_keys_file`.

    Raises:
        ConfigurationError: If a key or quota is invalid, or a setting is set but contains no key. See `ApiKeys`.
    """
    keys: list[str] = []
    if settings.security.api_keys is not None:
        keys += _non_empty(settings.security.api_keys.get_secret_value().split(","), "api_keys")
    if settings.security.api_keys_file is not None:
        keys += _non_empty(_lines(settings.security.api_keys_file), "api_keys_file")
    return ApiKeys(keys)


def check_exposure(settings: Settings) -> None:
    """Check that other machines cannot use the server without an API key.

    Raises:
        ConfigurationError: If other machines can reach the server and there is no key, or if a key is invalid.
    """
    if len(load_keys(settings)) or settings.security.insecure or is_loopback(settings.server.host):
        return
    raise ConfigurationError(
        f"other machines can reach host {settings.server.host!r}, but there is no API key; set RFA_API_KEYS or "
        "RFA_API_KEYS_FILE (`openssl rand -hex 32` generates a key), listen on 127.0.0.1, or set RFA_INSECURE=true to "
        "serve every client"
    )


def is_loopback(host: str) -> bool:
    """Return whether `host` can only be reached from this machine. This is False for names other than localhost,
    because they may resolve to any address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(key: str, number: int) -> None:
    if not all("!" <= character <= "~" for character in key):
        raise ConfigurationError(
            f"API key {number} must be printable ASCII without spaces, because it is sent in an HTTP header"
        )
    if len(key) < SHORTEST_KEY:
        raise ConfigurationError(
            f"API key {number} has {len(key)} characters, but it must have at least {SHORTEST_KEY}; generate one with "
            "`openssl rand -hex 32`"
        )


def _read_quotas(written: Iterable[str], number: int) -> dict[QuotaName, float | None]:
    quotas: dict[QuotaName, float | None] = {}
    for part in written:
        name, equals, value = part.partition("=")
        valid_name = next((quota for quota in get_args(QuotaName) if quota == name), None)
        if valid_name is None or not equals:
            raise ConfigurationError(
                f"API key {number} must be printable ASCII without spaces. It may only be followed by quotas such as "
                "requests=5; the names of quotas are " + ", ".join(get_args(QuotaName))
            )
        if valid_name in quotas:
            raise ConfigurationError(f"API key {number}: {valid_name} is set twice; remove one of them")
        quotas[valid_name] = None if value == "off" else _limit(value, f"API key {number}: {valid_name}")
    return quotas


def _limit(text: str, subject: str) -> float:
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise ConfigurationError(f"{subject} must be a positive number or off, got {text!r}")
    return limit


def _non_empty(parts: Iterable[str], setting: str) -> list[str]:
    keys = [key for part in parts if (key := part.strip())]
    if not keys:
        raise ConfigurationError(
            f"{setting} is set but contains no key; add a key, or unset the setting to serve without keys"
        )
    return keys


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"api_keys_file: the file {str(path)!r} cannot be read: {reason}") from None
    return [line for line in lines if not line.lstrip().startswith("#")]
