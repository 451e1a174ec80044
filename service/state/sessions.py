"""Named sessions: states stored on the server, updated by compare-and-set on their step.

A store never drops a live session for a new one, never replaces a lost one with a fresh state, and accepts exactly one
of several writers that continue from the same step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from rfa.runtime.state.names import Opened, SessionName, StateScope
from rfa.service.errors import Conflict, NotFound, NotReady, Overloaded


@dataclass(frozen=True)
class SessionAddress:
    """Identifies a session by tenant, bundle, kind and name."""

    scope: StateScope
    name: SessionName

    def digest(self, audience: str) -> bytes:
        """Return 32 bytes, unique to this address and audience."""
        texts = (audience, self.scope.tenant, self.scope.model, self.scope.kind, self.name.value)
        fields = [text.encode() for text in texts]
        return hashlib.sha256(b"".join(len(field).to_bytes(4, "little") + field for field in fields)).digest()


class SessionStore(Protocol):
    """Storage of named sessions. Every method may raise `NotReady` if it does not answer."""

    async def read(self, address: SessionAddress, max_bytes: int) -> Opened:
        """Return the session's state. Raises `NotFound`, or `Conflict` if its record cannot be opened."""
        ...

    async def check_new(self, address: SessionAddress) -> None:
        """Raise the errors of `create`."""
        ...

    async def create(self, address: SessionAddress, state: Opened) -> None:
        """Store a new session. Raises `Conflict` if it exists, `Overloaded` if the store is full."""
        ...

    async def replace(self, address: SessionAddress, state: Opened, expected: int) -> None:
        """Overwrite the session if it is at step `expected`. Raises `NotFound`, `Conflict`, `Overloaded`."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


def not_found() -> NotFound:
    """Error for a session that never existed, has expired, or belongs to another tenant."""
    return NotFound("state: there is no such session, or it has expired.", param="state", code="session_not_found")


def exists() -> Conflict:
    """Error for a session that exists already."""
    return Conflict(
        "return_state: this session exists already; continue it with state, or choose another name.",
        param="return_state",
        code="session_exists",
    )


def moved(expected: int, found: int) -> Conflict:
    """Error for a session at another step."""
    return Conflict(
        f"state: this request continues from step {expected}, the session is at step {found}.",
        param="state",
        code="session_moved",
    )


def unreadable() -> Conflict:
    """Error for a session sealed with a retired key, or altered."""
    return Conflict(
        "state: the stored session cannot be opened; its key was retired or its record altered.",
        param="state",
        code="session_unreadable",
    )


def store_full(retry_after_seconds: int) -> Overloaded:
    """Error for a full store."""
    return Overloaded("The session store is full.", retry_after_seconds=retry_after_seconds, code="sessions_full")


def unavailable() -> NotReady:
    """Error for a store that does not answer. It is unknown whether a write succeeded."""
    return NotReady("The session store does not answer.", code="sessions_unavailable")
