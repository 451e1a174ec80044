"""Loads and stores the states of requests: `app.state.keeper`."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from rfa.runtime.state.keys import KEY_BYTES, StateKeys
from rfa.runtime.state.names import Opened, SessionName, SessionReference, StateScope
from rfa.runtime.state.sealer import Sealer
from rfa.runtime.state.tokens import Tokens
from rfa.service.errors import InvalidRequest
from rfa.service.settings import Settings, configured_keys
from rfa.service.state.memory_sessions import MemorySessions
from rfa.service.state.sessions import SessionAddress, SessionStore, moved

logger = logging.getLogger("rfa.state")


class StateKeeper:
    """Opens the `state` of a request, and stores the state of its reply.

    Args:
        tokens: Seals and opens state tokens.
        sessions: Stores named sessions. None rejects them.
    """

    def __init__(self, tokens: Tokens, sessions: SessionStore | None = None) -> None:
        self._tokens = tokens
        self._sessions = sessions

    async def load(self, reference: str, scope: StateScope, max_bytes: int) -> Opened:
        """Return the state behind a request's `state`: a sealed token, `session:NAME` or `session:NAME@STEP`.

        Args:
            reference: Any text of the client.
            scope: Tenant and bundle.
            max_bytes: Largest payload of a state of this bundle.

        Raises:
            InvalidRequest: Invalid or expired token (`state_invalid`, always with the same message); malformed session
                name (`session_name`); sessions are off (`sessions_off`).
            NotFound: There is no such session, or it has expired (`session_not_found`).
            Conflict: The session is at another step (`session_moved`), or its record cannot be opened
                (`session_unreadable`).
            NotReady: The session store does not answer.
        """
        if not SessionReference.is_one(reference):
            return self._tokens.open(reference, scope, max_bytes)
        session = SessionReference.parse(reference)
        opened = await self._store("state").read(SessionAddress(scope, session.name), max_bytes)
        if session.step is not None and session.step != opened.step:
            raise moved(session.step, opened.step)
        return opened

    async def check_new(self, session: SessionName, scope: StateScope) -> None:
        """Fail early if a request cannot create `session`. `save` checks again.

        Raises:
            InvalidRequest, Conflict, Overloaded, NotReady: As `save` would.
        """
        await self._store("return_state").check_new(SessionAddress(scope, session))

    async def save(
        self, scope: StateScope, payload: bytes, step: int, *, session: SessionName | None, expected: int | None
    ) -> str:
        """Store a state and return its reference, the `state` of the reply.

        Args:
            session: Where to store it. None returns a token.
            expected: Step at which the session was loaded. None creates the session.

        Raises:
            Conflict: Another request changed it first (`session_moved`), or it exists (`session_exists`).
            NotFound: The session expired in the meantime (`session_not_found`).
            InvalidRequest: Sessions are off (`sessions_off`).
            Overloaded: The session store is full (`sessions_full`).
            NotReady: The session store does not answer.
        """
        state = Opened(payload, step)
        if session is None:
            if expected is not None:
                raise ValueError("only a session has an expected step")
            return self._tokens.seal(state, scope)
        address = SessionAddress(scope, session)
        if expected is None:
            await self._store("return_state").create(address, state)
        else:
            await self._store("state").replace(address, state, expected)
        return str(SessionReference(session, step))

    async def aclose(self) -> None:
        """Close connections."""
        if self._sessions is not None:
            await self._sessions.aclose()

    def _store(self, param: str) -> SessionStore:
        if self._sessions is None:
            raise InvalidRequest(
                f"{param}: named sessions are off on this server; RFA_SESSIONS=memory (one process) or"
                " RFA_SESSIONS=redis://HOST switches them on. A state token works without.",
                param=param,
                code="sessions_off",
            )
        return self._sessions


def make_keeper(settings: Settings) -> StateKeeper:
    """Return the keeper for these settings.

    Without configured keys the process uses a random one, and its tokens end with it.

    Raises:
        ValueError: A key has a wrong size, is weak or repeated, or processes would not share sessions.
    """
    keys = configured_keys(settings)
    if not keys:
        logger.info("no state keys are set: state tokens end with this process")
    sealer = Sealer(StateKeys(keys or [secrets.token_bytes(KEY_BYTES)]), settings.state.state_audience)
    return StateKeeper(Tokens(sealer, settings.state.state_seconds), _open_store(settings, sealer))


def _open_store(settings: Settings, sealer: Sealer) -> SessionStore | None:
    state = settings.state
    if state.sessions == "off":
        return None
    if state.sessions == "memory":
        if settings.models.processes > 1:
            raise ValueError("sessions=memory is one process's memory: set processes to 1, or sessions to a Redis URL")
        return MemorySessions(state.session_seconds, state.max_sessions, state.max_session_bytes)
    try:
        from rfa.service.state.redis_sessions import RedisSessions
    except ModuleNotFoundError:
        raise ValueError("sessions in Redis need its client: pip install 'rfa-server[redis]'") from None
    password = _read_password(state.sessions_password_file)
    return RedisSessions(state.sessions, sealer, state.state_audience, state.session_seconds, password=password)


def _read_password(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        password = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"sessions_password_file {str(path)!r} cannot be read: {reason}") from None
    if not password:
        raise ValueError(f"sessions_password_file {str(path)!r} has no password")
    return password
