"""Scopes of states, and references to states in requests.

state = "v1.…"                 a sealed token, stored by the client
state = "session:NAME"         a named session, stored by the server
state = "session:NAME@STEP"    the session NAME, only if it is at that step
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from rfa.runtime.errors import InvalidInput

SESSION_PREFIX = "session:"
_TENANT_DIGITS = 16
# The step is a 64-bit count without leading zeros, so that each reference has only one valid form.
_REFERENCE = re.compile(r"session:(?P<name>[A-Za-z0-9_-]{1,64})(?:@(?P<step>0|[1-9][0-9]{0,18}))?")


@dataclass(frozen=True)
class StateScope:
    """Scope of a state. The state can be opened only within an equal scope.

    Attributes:
        model: SHA-256 digest of the bundle's manifest (`Bundle.digest`).
        kind: "lm" or "filter".
        tenant: Stable id of the API key, or "" without a key.
    """

    model: str
    kind: str
    tenant: str


def tenant_of_key(api_key: str) -> str:
    """Return a stable id of an API key for `StateScope.tenant`. The id does not reveal the key."""
    return f"key-{sha256(api_key.encode()).hexdigest()[:_TENANT_DIGITS]}"


class Opened(NamedTuple):
    """An opened state: its packed bytes, and its number of steps."""

    payload: bytes
    step: int


@dataclass(frozen=True)
class SessionName:
    """The NAME in `session:NAME`, which consists of 1 to 64 letters, digits, `_` and `-`."""

    value: str

    @classmethod
    def parse(cls, text: str, *, param: str) -> SessionName:
        """Parse `session:NAME`, the value of `return_state` that creates a session.

        Args:
            text: Text to parse.
            param: Name of the field, for the message.

        Raises:
            InvalidInput: If the text has another format.
        """
        reference = SessionReference.parse(text, param=param)
        if reference.step is not None:
            raise InvalidInput(
                f"{param}: a new session must not contain a step; use session:NAME.", param=param, code="session_name"
            )
        return reference.name


@dataclass(frozen=True)
class SessionReference:
    """A session from which a request continues, and its expected step. If the step is None, any step is accepted."""

    name: SessionName
    step: int | None

    @staticmethod
    def is_one(reference: str) -> bool:
        """Return whether the `state` of a request is a session reference rather than a token."""
        return reference.startswith(SESSION_PREFIX)

    @classmethod
    def parse(cls, text: str, *, param: str = "state") -> SessionReference:
        """Parse `session:NAME` or `session:NAME@STEP`.

        Raises:
            InvalidInput: If the text has another format.
        """
        match = _REFERENCE.fullmatch(text)
        if match is None:
            raise InvalidInput(
                f"{param}: write session:NAME or session:NAME@STEP, where NAME has 1 to 64 letters, digits, _ and -.",
                param=param,
                code="session_name",
            )
        step = match["step"]
        return cls(SessionName(match["name"]), None if step is None else int(step))

    def __str__(self) -> str:
        return f"{SESSION_PREFIX}{self.name.value}" + ("" if self.step is None else f"@{self.step}")
