"""Settings on their way from a supervisor to its processes: as JSON, secrets included, through a private channel."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from rfa.runtime.state.keys import ephemeral_key, read_keys
from rfa.service.settings import Settings


def write_settings(settings: Settings) -> dict[str, Any]:
    """Every setting in plain JSON types; the secrets are readable."""
    document = settings.model_dump(mode="json")
    for name in document:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            document[name] = value.get_secret_value()
    return document


def read_settings(document: dict[str, Any]) -> Settings:
    """The settings that were written; the environment has no say."""
    return Settings(**document)


def with_state_key(settings: Settings) -> Settings:
    """Settings with a key for states: one for all processes, drawn now if the operator gave none."""
    if read_keys(settings):
        return settings
    return settings.model_copy(update={"state_keys": SecretStr(ephemeral_key())})
