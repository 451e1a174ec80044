"""Named sessions: states that the server keeps, moved on by compare-and-set on their step.

A store never drops a live session for a new one, never answers for a lost one with a fresh state, and of any number
of writers that continue from one step lets exactly one through.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from rfa.runtime.state.names import Opened, SessionName, StateScope
from rfa.service.errors import Conflict, NotFound, NotReady, Overloaded


@dataclass(frozen=True)
class SessionAddress:
    """Which session: the same name under another tenant, bundle or kind is another session."""

    scope: StateScope
    name: SessionName

    def digest(self, audience: str) -> bytes:
        """32 bytes that only this address under this audience has."""
        texts = (audience, self.scope.tenant, self.scope.model, self.scope.kind, self.name.value)
        fields = [text.encode() for text in texts]
        return hashlib.sha256(b"".join(len(field).to_bytes(4, "little") + field for field in fields)).digest()


class SessionStore(Protocol):
    """Where named sessions live. Every method may raise `NotReady` while the place does not answer."""

    async def read(self, address: SessionAddress, max_bytes: int) -> Opened:
        """The session's state. Raises `NotFound`; `Conflict` where what is stored cannot be opened."""
        ...

    async def check_new(self, address: SessionAddress) -> None:
        """Raise what `create` would raise now."""
        ...

    async def create(self, address: SessionAddress, state: Opened) -> None:
        """Store a new session. Raises `Conflict` where it exists, `Overloaded` where there is no room."""
        ...

    async def replace(self, address: SessionAddress, state: Opened, expected: int) -> None:
        """Overwrite the session if it is at step `expected`. Raises `NotFound`, `Conflict`, `Overloaded`."""
        ...

    async def aclose(self) -> None:
        """Give back what the store holds open."""
        ...


def not_found() -> NotFound:
    """The same for a session that never was, has expired, or is another tenant's."""
    return NotFound("state: there is no such session, or it has expired.", param="state", code="session_not_found")


def exists() -> Conflict:
    """A request that would create the session came second."""
    return Conflict(
        "return_state: this session exists already; continue it with state, or choose another name.",
        param="return_state",
        code="session_exists",
    )


def moved(expected: int, found: int) -> Conflict:
    """The session is not where the request continues from."""
    return Conflict(
        f"state: this request continues from step {expected}, the session is at step {found}.",
        param="state",
        code="session_moved",
    )


def unreadable() -> Conflict:
    """Sealed by a key that this server no longer has, or altered."""
    return Conflict(
        "state: the stored session cannot be opened; its key was retired or its record altered.",
        param="state",
        code="session_unreadable",
    )


def store_full(retry_after_seconds: int) -> Overloaded:
    """No room for what the request would store; what is stored stays."""
    return Overloaded(
        "The server has no room for another session.", retry_after_seconds=retry_after_seconds, code="sessions_full"
    )


def unavailable() -> NotReady:
    """The place where sessions live does not answer; whether a write got there is then unknown."""
    return NotReady("The session store does not answer.", code="sessions_unavailable")
