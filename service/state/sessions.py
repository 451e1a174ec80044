"""Named sessions: states that the server stores, and updates by compare-and-set on their step.

A store never deletes a session that has not expired to make space for a new one, and never replaces a lost one with an
initial state. If several writers continue from the same step, it accepts exactly one of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from rfa.runtime.state.names import Opened, SessionName, StateScope
from rfa.service.errors import Conflict, NotFound, NotReady, Overloaded


@dataclass(frozen=True)
class SessionAddress:
    """Address of a session: tenant, bundle, kind and name."""

    scope: StateScope
    name: SessionName

    def digest(self, audience: str) -> bytes:
        """Return a digest of 32 bytes that is unique to this address and audience."""
        texts = (audience, self.scope.tenant, self.scope.model, self.scope.kind, self.name.value)
        fields = [text.encode() for text in texts]
        return hashlib.sha256(b"".join(len(field).to_bytes(4, "little") + field for field in fields)).digest()


class SessionStore(Protocol):
    """Interface of a storage for named sessions. Every method may raise `NotReady` if the storage does not respond."""

    async def read(self, address: SessionAddress, max_bytes: int) -> Opened:
        """Return the state of the session.

        Raises:
            NotFound: If there is no such session.
            Conflict: If its record cannot be decrypted.
        """
        ...

    async def check_new(self, address: SessionAddress) -> None:
        """Raise the errors that `create` would raise."""
        ...

    async def create(self, address: SessionAddress, state: Opened) -> None:
        """Store a new session.

        Raises:
            Conflict: If the session already exists.
            Overloaded: If the store is full.
        """
        ...

    async def replace(self, address: SessionAddress, state: Opened, expected: int) -> None:
        """Replace the state of a session if it is at step `expected`.

        Raises:
            NotFound, Conflict, Overloaded
        """
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


def not_found() -> NotFound:
    """Return the error for a session that never existed, has expired, or belongs to another tenant."""
    return NotFound("state: this session does not exist or has expired.", param="state", code="session_not_found")


def exists() -> Conflict:
    """Return the error for a session that already exists."""
    return Conflict(
        "return_state: a session with this name already exists; continue it with state, or choose another name.",
        param="return_state",
        code="session_exists",
    )


def moved(expected: int, found: int) -> Conflict:
    """Return the error for a session at another step."""
    return Conflict(
        f"state: this request expects the session to be at step {expected}, but it is at step {found}.",
        param="state",
        code="session_moved",
    )


def unreadable() -> Conflict:
    """Return the error for a session that was altered, or sealed with a key that was removed."""
    return Conflict(
        "state: the stored session cannot be decrypted, because its key was removed or the record was altered.",
        param="state",
        code="session_unreadable",
    )


def store_full(retry_after_seconds: int) -> Overloaded:
    """Return the error for a store that is full."""
    return Overloaded(
        "The session store is full; try again later, or use state tokens.",
        retry_after_seconds=retry_after_seconds,
        code="sessions_full",
    )


def unavailable() -> NotReady:
    """Return the error for a store that does not respond. It is then unknown whether a write succeeded."""
    return NotReady("The session store does not respond; try again later.", code="sessions_unavailable")
