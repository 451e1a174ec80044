"""Where routes take states from and give them to: one keeper for an application (`app.state.keeper`)."""

from __future__ import annotations

from service.settings import Settings
from service.state.names import Opened, SessionName, StateScope


class StateKeeper:
    """Opens what a request's `state` refers to and stores what it asks to have returned."""

    async def load(self, reference: str, scope: StateScope, max_bytes: int) -> Opened:
        """The state behind a request's `state`: a sealed token, `session:NAME` or `session:NAME@STEP`.

        Args:
            reference: as the client sent it, of any length and content.
            scope: who asks, with which bundle.
            max_bytes: the largest payload that a state of this bundle can have.

        Raises:
            InvalidRequest: no token of this server for this scope, or an expired one (`state_invalid`, always
                the same words); a malformed session name (`session_name`); sessions are off (`sessions_off`).
            NotFound: no such session, or it has expired (`session_not_found`).
            Conflict: the session is at another step (`session_moved`), or its record cannot be opened
                (`session_unreadable`).
            NotReady: the session store does not answer.
        """
        raise NotImplementedError

    async def check_new(self, session: SessionName, scope: StateScope) -> None:
        """Before work for a request that will create `session`: fail now if it cannot. `save` still decides.

        Raises:
            InvalidRequest, Conflict, Overloaded, NotReady: as `save` would.
        """
        raise NotImplementedError

    async def save(
        self, scope: StateScope, payload: bytes, step: int, *, session: SessionName | None, expected: int | None
    ) -> str:
        """Store a state; returns the reference to it, for the reply's `state`.

        Args:
            session: None seals a token; else the state is written to this session.
            expected: the step that the session was loaded at; None creates the session. Must be None without a session.

        Raises:
            Conflict: another request moved it first (`session_moved`), or it exists already (`session_exists`);
                nothing is overwritten.
            NotFound: the session expired in the meantime (`session_not_found`).
            InvalidRequest: sessions are off (`sessions_off`).
            Overloaded: the session store is full (`sessions_full`); live sessions are never dropped for new ones.
            NotReady: the session store does not answer.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """Give back connections; sessions in Redis stay."""


def make_keeper(settings: Settings) -> StateKeeper:
    """The keeper that the settings ask for.

    Raises:
        ValueError: a key is badly sized, weak or repeated, or several processes would not share keys or sessions.
    """
    raise NotImplementedError
