"""Interface of storages for named sessions, and their errors. A session is a state that the server stores.

A session is updated with a compare-and-set operation on its step: if several requests continue from the same step,
exactly one of them succeeds. A storage does not remove a session before it expires, and does not replace a lost session
with an initial state.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from rfa.runtime.state.names import Opened, SessionName, StateScope
from rfa.service.errors import Conflict, NotFound, NotReady, Overloaded


@dataclass(frozen=True)
class SessionAddress:
    """Address of a session. It consists of the tenant, the bundle, the kind of the model and the name."""

    scope: StateScope
    name: SessionName

    def digest(self, audience: str) -> bytes:
        """Return a digest of 32 bytes, which is unique for each address and audience."""
        texts = (audience, self.scope.tenant, self.scope.model, self.scope.kind, self.name.value)
        fields = [text.encode() for text in texts]
        return hashlib.sha256(b"".join(len(field).to_bytes(4, "little") + field for field in fields)).digest()


class SessionStore(Protocol):
    """Interface of a storage for named sessions. All methods raise `NotReady` if the storage does not respond."""

    async def read(self, address: SessionAddress, max_bytes: int) -> Opened:
        """Return the state of a session.

        Args:
            max_bytes: Maximum size of the state in bytes.

        Raises:
            NotFound: If there is no such session.
            Conflict: If the record of the session is too large or cannot be decrypted.
        """
        ...

    async def check_new(self, address: SessionAddress) -> None:
        """Check that a session can be created. See `create` for the errors."""
        ...

    async def create(self, address: SessionAddress, state: Opened) -> None:
        """Create a session.

        Raises:
            Conflict: If the session already exists.
            Overloaded: If the storage is full.
        """
        ...

    async def replace(self, address: SessionAddress, state: Opened, expected: int) -> None:
        """Replace the state of a session that is at the step `expected`.

        Raises:
            NotFound: If there is no such session.
            Conflict: If the session is at another step, or its record cannot be decrypted.
            Overloaded: If the storage is full.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections of the storage."""
        ...


def not_found() -> NotFound:
    """Return the error for a session that does not exist, has expired, or belongs to another tenant."""
    return NotFound("state: this session does not exist or has expired.", param="state", code="session_not_found")


def exists() -> Conflict:
    """Return the error for a session that already exists."""
    return Conflict(
        "return_state: a session with this name already exists; continue it with state, or choose another name.",
        param="return_state",
        code="session_exists",
    )


def moved(expected: int, found: int) -> Conflict:
    """Return the error for a session that is not at the expected step."""
    return Conflict(
        f"state: this request expects the session to be at step {expected}, but it is at step {found}.",
        param="state",
        code="session_moved",
    )


def unreadable() -> Conflict:
    """Return the error for a session that cannot be decrypted."""
    return Conflict(
        "state: the stored session cannot be decrypted, because its key was removed or the record was altered.",
        param="state",
        code="session_unreadable",
    )


def store_full(retry_after_seconds: int) -> Overloaded:
    """Return the error for a storage that is full."""
    return Overloaded(
        "The session store is full; try again later, or use state tokens.",
        retry_after_seconds=retry_after_seconds,
        code="sessions_full",
    )


def unavailable() -> NotReady:
    """Return the error for a storage that does not respond. In this case, it is unknown whether a write succeeded."""
    return NotReady("The session store does not respond; try again later.", code="sessions_unavailable")
