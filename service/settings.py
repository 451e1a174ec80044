"""All settings of the server, and checks of the environment variables that set them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from rfa.runtime.state.keys import read_keys
from rfa.service.setting_groups import (
    PREFIX,
    LimitSettings,
    ModelSettings,
    SecuritySettings,
    ServerSettings,
    SettingsGroup,
    StateSettings,
)

# Variables that all commands of `rfa` read.
OTHER_VARIABLES: Final = frozenset({"RFA_DEBUG"})
# Settings that are no longer supported, and the settings that replace them.
RETIRED: Final = {
    "RFA_MAX_SERIES_BYTES": "RFA_MAX_BODY_BYTES",
    "RFA_MAX_SERIES_OBSERVATIONS": "RFA_MAX_OBSERVATIONS",
    "RFA_MAX_ARROW_BYTES": "RFA_MAX_BODY_BYTES",
    "RFA_MAX_ARROW_OBSERVATIONS": "RFA_MAX_OBSERVATIONS",
}
QuotaName = Literal["requests", "concurrent", "streams", "tokens", "observations"]


class ConfigurationError(ValueError):
    """Raised if the server cannot start with the given settings. The message says what to change."""


class Settings(BaseModel):
    """All settings. The names of the arguments do not contain the group, as in `Settings(port=0, max_running=8)`.

    Raises:
        ValidationError: If a value is invalid or a name is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: ServerSettings
    limits: LimitSettings
    security: SecuritySettings
    state: StateSettings
    models: ModelSettings

    def __init__(self, **values: Any) -> None:
        groups: dict[str, Any] = {
            name: {field: values.pop(field) for field in group.model_fields if field in values}
            for name, group in GROUPS.items()
        }
        super().__init__(**groups, **values)

    def flat(self) -> dict[str, Any]:
        """Return a mapping from names to all settings, without groups."""
        return {
            name: getattr(getattr(self, group), name) for group, kind in GROUPS.items() for name in kind.model_fields
        }

    def replace(self, **values: Any) -> Self:
        """Return a copy of these settings with some values replaced.

        Raises:
            ValidationError: If a value is invalid or a name is unknown.
        """
        return type(self)(**{**self.flat(), **values})


GROUPS: Final[dict[str, type[SettingsGroup]]] = {
    "server": ServerSettings,
    "limits": LimitSettings,
    "security": SecuritySettings,
    "state": StateSettings,
    "models": ModelSettings,
}
# Mapping from names to all settings, without groups.
FIELDS: Final[dict[str, FieldInfo]] = {
    name: field for group in GROUPS.values() for name, field in group.model_fields.items()
}


def check_names(environment: Mapping[str, str]) -> None:
    """Check that all environment variables that begin with `RFA_` are settings. A misspelt setting would have no
    effect.

    Raises:
        ConfigurationError: If a variable is unknown. The message suggests similar names and does not contain the value.
    """
    valid = {PREFIX + name.upper() for name in FIELDS} | OTHER_VARIABLES
    for name in sorted(environment):
        if name.upper() in RETIRED:
            raise ConfigurationError(
                f"{name} is no longer supported; its value is derived from {RETIRED[name.upper()]}, so set this instead"
            )
        if name.upper().startswith(PREFIX) and name.upper() not in valid:
            meant = difflib.get_close_matches(name.upper(), sorted(valid), n=1)
            nearest = difflib.get_close_matches(name.upper(), sorted(valid), n=3, cutoff=0)
            hint = f"did you mean {meant[0]}?" if meant else f"the most similar names are {', '.join(nearest)}"
            raise ConfigurationError(f"environment variable {name} is not a setting of this server; {hint}")


def configured_keys(settings: Settings) -> tuple[bytes, ...]:
    """Return the keys for state tokens in the settings. New tokens are encrypted with the first key. The result is
    empty if there are no keys."""
    listed = settings.state.state_keys
    return read_keys(None if listed is None else listed.get_secret_value(), settings.state.state_keys_file)
