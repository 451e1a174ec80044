"""Load and store the states of requests. `app.state.keeper` is the `StateKeeper` of the server."""

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
    """Opens the `state` in a request, and stores the state for its reply.

    Args:
        tokens: object that seals and opens state tokens.
        sessions: storage for named sessions. None rejects requests with sessions.
    """

    def __init__(self, tokens: Tokens, sessions: SessionStore | None = None) -> None:
        self._tokens = tokens
        self._sessions = sessions

    async def load(self, reference: str, scope: StateScope, max_bytes: int) -> Opened:
        """Return the state to which the `state` field of a request refers.

        Args:
            reference: a sealed token, `session:NAME` or `session:NAME@STEP`. It may be any text from the client.
            scope: tenant and bundle.
            max_bytes: maximum size of the state of this bundle in bytes.

        Raises:
            InvalidRequest: If the token is invalid or expired (`state_invalid`, always with the same message), the
                session name is malformed (`session_name`), or sessions are off (`sessions_off`).
            NotFound: If the session does not exist or has expired (`session_not_found`).
            Conflict: If the session is at another step (`session_moved`), or its record cannot be opened
                (`session_unreadable`).
            NotReady: If the session store does not respond.
        """
        if not SessionReference.is_one(reference):
            return self._tokens.open(reference, scope, max_bytes)
        session = SessionReference.parse(reference)
        opened = await self._store("state").read(SessionAddress(scope, session.name), max_bytes)
        if session.step is not None and session.step != opened.step:
            raise moved(session.step, opened.step)
        return opened

    async def check_new(self, session: SessionName, scope: StateScope) -> None:
        """Raise an error early if a request cannot create `session`. `save` checks this again.

        Raises:
            InvalidRequest, Conflict, Overloaded, NotReady: Under the same conditions as `save`.
        """
        await self._store("return_state").check_new(SessionAddress(scope, session))

    async def save(
        self, scope: StateScope, payload: bytes, step: int, *, session: SessionName | None, expected: int | None
    ) -> str:
        """Store a state, and return the reference to it that is sent as `state` in the reply.

        Args:
            session: name of the session in which the state is stored. None returns a state token.
            expected: step at which the session was loaded. None creates a new session.

        Raises:
            Conflict: If another request changed the session first (`session_moved`), or it already exists
                (`session_exists`).
            NotFound: If the session expired in the meantime (`session_not_found`).
            InvalidRequest: If sessions are off (`sessions_off`).
            Overloaded: If the session store is full (`sessions_full`).
            NotReady: If the session store does not respond.
        """
        state = Opened(payload, step)
        if session is None:
            if expected is not None:
                raise ValueError("an expected step requires a session")
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
                f"{param}: named sessions are disabled on this server; RFA_SESSIONS=memory (for one process) or "
                "RFA_SESSIONS=redis://HOST enables them. State tokens work without this setting.",
                param=param,
                code="sessions_off",
            )
        return self._sessions


def make_keeper(settings: Settings) -> StateKeeper:
    """Create the keeper for these settings.

    If no keys are configured, the process uses a random key, and its state tokens become invalid when it exits.

    Raises:
        ValueError: If a key is weak, repeated or of the wrong size, or if processes would not share sessions.
    """
    keys = configured_keys(settings)
    if not keys:
        logger.info(
            "no state keys are set, so state tokens become invalid when this process exits; set RFA_STATE_KEYS to "
            "keep them valid"
        )
    sealer = Sealer(StateKeys(keys or [secrets.token_bytes(KEY_BYTES)]), settings.state.state_audience)
    return StateKeeper(Tokens(sealer, settings.state.state_seconds), _open_store(settings, sealer))


def _open_store(settings: Settings, sealer: Sealer) -> SessionStore | None:
    state = settings.state
    if state.sessions == "off":
        return None
    if state.sessions == "memory":
        if settings.models.processes > 1:
            raise ValueError(
                "sessions=memory cannot be shared between processes; set processes to 1, or sessions to the URL of a "
                "Redis server"
            )
        return MemorySessions(state.session_seconds, state.max_sessions, state.max_session_bytes)
    try:
        from rfa.service.state.redis_sessions import RedisSessions
    except ModuleNotFoundError:
        raise ValueError(
            "storing sessions in Redis needs a package; install it with pip install 'rfa-server[redis]'"
        ) from None
    password = _read_password(state.sessions_password_file)
    return RedisSessions(state.sessions, sealer, state.state_audience, state.session_seconds, password=password)


def _read_password(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        password = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"the file {str(path)!r} in sessions_password_file cannot be read: {reason}") from None
    if not password:
        raise ValueError(f"the file {str(path)!r} in sessions_password_file contains no password")
    return password
