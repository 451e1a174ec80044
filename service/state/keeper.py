"""Load and save the states of requests. `app.state.keeper` is the `StateKeeper` of the server."""

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
    """Loads the state to which a request refers, and saves the new state.

    Args:
        tokens: Object that seals and opens state tokens.
        sessions: Storage for named sessions. If None, requests with sessions are rejected.
    """

    def __init__(self, tokens: Tokens, sessions: SessionStore | None = None) -> None:
        self._tokens = tokens
        self._sessions = sessions

    async def load(self, reference: str, scope: StateScope, max_bytes: int) -> Opened:
        """Return the state to which the `state` field of a request refers.

        Args:
            reference: Text from the client: a state token, `session:NAME` or `session:NAME@STEP`.
            scope: Tenant and model to which the state must belong.
            max_bytes: Maximum size of a state of this model in bytes.

        Raises:
            InvalidRequest: If the token is invalid or expired (`state_invalid`, always with the same message), the
                session name is invalid (`session_name`), or sessions are disabled (`sessions_off`).
            NotFound: If the session does not exist or has expired (`session_not_found`).
            Conflict: If the session is at another step (`session_moved`), or its record cannot be decrypted
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
        """Check that a session can be created, before the request is processed. `save` checks this again.

        Raises:
            InvalidRequest, Conflict, Overloaded, NotReady: If `save` would raise the error.
        """
        await self._store("return_state").check_new(SessionAddress(scope, session))

    async def save(
        self, scope: StateScope, payload: bytes, step: int, *, session: SessionName | None, expected: int | None
    ) -> str:
        """Save a state, and return the value of `state` in the reply.

        Args:
            scope: Tenant and model to which the state belongs.
            payload: Packed state.
            step: Number of steps of the state.
            session: Name of the session in which the state is stored. If None, a state token is returned.
            expected: Step at which the session was loaded. If None, a new session is created.

        Raises:
            Conflict: If another request has changed the session (`session_moved`), or the session already exists
                (`session_exists`).
            NotFound: If the session has expired in the meantime (`session_not_found`).
            InvalidRequest: If sessions are disabled (`sessions_off`).
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
        """Close the connections to the session store."""
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
    """Create the `StateKeeper` for the settings.

    If the settings contain no keys, a random key is used, and state tokens become invalid when the process exits.

    Raises:
        ValueError: If a key is weak, is repeated or has a wrong size, or if sessions cannot be stored as configured.
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
                "RFA_SESSIONS=memory cannot be shared between processes; set RFA_PROCESSES to 1, or RFA_SESSIONS to "
                "the URL of a Redis server"
            )
        return MemorySessions(state.session_seconds, state.max_sessions, state.max_session_bytes)
    try:
        from rfa.service.state.redis_sessions import RedisSessions
    except ModuleNotFoundError:
        raise ValueError(
            "storing sessions in Redis requires an optional package; install it with pip install 'rfa-server[redis]'"
        ) from None
    password = _read_password(state.sessions_password_file)
    return RedisSessions(state.sessions, sealer, state.state_audience, state.session_seconds, password=password)


def _read_password(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        password = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"sessions_password_file: the file {str(path)!r} cannot be read: {reason}") from None
    if not password:
        raise ValueError(f"sessions_password_file: the file {str(path)!r} contains no password")
    return password
