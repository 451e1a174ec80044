"""Convert settings with secrets to JSON and back, for the private channel from the supervisor to its processes."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr
from pydantic_core import to_jsonable_python

from rfa.runtime.state.keys import ephemeral_key
from rfa.service.settings import Settings, configured_keys


def write_settings(settings: Settings) -> dict[str, Any]:
    """Convert all settings to JSON types. Secrets are included as plain text."""
    values = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in settings.flat().items()
    }
    document: dict[str, Any] = to_jsonable_python(values)
    return document


def read_settings(document: dict[str, Any]) -> Settings:
    """Create settings from the result of `write_settings`, without reading environment variables."""
    return Settings(**document)


def with_state_key(settings: Settings) -> Settings:
    """Return settings that contain keys for state tokens. If there are none, add a random key, so that all processes
    use the same one."""
    if configured_keys(settings):
        return settings
    return settings.replace(state_keys=SecretStr(ephemeral_key()))
