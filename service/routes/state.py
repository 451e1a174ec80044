"""The state from which a request continues, and where the new state is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from starlette.requests import HTTPConnection

from rfa.runtime.errors import InvalidInput
from rfa.runtime.state.names import Opened, SessionName, SessionReference, StateScope
from rfa.service.engine.choices import StateKind
from rfa.service.engine.seeds import draw_seed
from rfa.service.errors import Conflict, InvalidRequest, NotFound
from rfa.service.state.keeper import StateKeeper

NO_OTHERS: Final[Mapping[str, str]] = MappingProxyType({})


@contextmanager
def errors_name(field: str) -> Iterator[None]:
    """Context manager in which errors about a state name this field instead of `state`."""
    try:
        yield
    except (InvalidInput, InvalidRequest, NotFound, Conflict) as error:
        if error.param != "state":
            raise
        raise type(error)(error.message.replace("state", field, 1), param=field, code=error.code) from None


class StateExchange:
    """The `state` and `return_state` of one request. Create it with `open_exchange`.

    Attributes:
        opened: the state from which the request continues. None if there is none.
        others: other states that the request reads, by field.
    """

    def __init__(
        self, keeper: StateKeeper, scope: StateScope, opened: Opened | None, session: SessionName | None, *, token: bool
    ) -> None:
        self.opened = opened
        self.others: dict[str, Opened] = {}
        self._keeper = keeper
        self._scope = scope
        self._session = session
        self._returns_token = token
        # Step of the session when it is written, or None to create it.
        self._expected: int | None = None

    @property
    def tenant(self) -> str:
        """The tenant that owns these states."""
        return self._scope.tenant

    @property
    def is_requested(self) -> bool:
        """Whether the new state is requested."""
        return self._returns_token or self.is_durable

    @property
    def is_durable(self) -> bool:
        """Whether the server stores the new state in a named session."""
        return self._session is not None

    async def save(self, payload: bytes, step: int) -> str:
        """Save the state after `step` steps. This may be called repeatedly.

        Returns:
            The `state` of the reply.

        Raises:
            Conflict, NotFound, Overloaded, NotReady: See `StateKeeper.save`. The session has not changed.
        """
        reference = await self._keeper.save(self._scope, payload, step, session=self._session, expected=self._expected)
        if self.is_durable:
            self._expected = step
        return reference

    async def read(self, name: str, reference: str, max_bytes: int) -> None:
        """Read another state. Errors name its field."""
        with errors_name(name):
            self.others[name] = await self._keeper.load(reference, self._scope, max_bytes)

    async def open(self, reference: str, max_bytes: int) -> None:
        """Continue from `reference`. If it is a session, `save` updates it."""
        self.opened = await self._keeper.load(reference, self._scope, max_bytes)
        if SessionReference.is_one(reference):
            self._session = SessionReference.parse(reference).name
            self._expected = self.opened.step


async def open_exchange(
    connection: HTTPConnection,
    kind: Callable[[], StateKind],
    *,
    state: str | None,
    return_state: bool | str,
    others: Mapping[str, str] = NO_OTHERS,
) -> StateExchange:
    """Read the states that a request names.

    If bundles are replaced in the meantime, the states are read again for the new bundles.

    Args:
        kind: function that returns the kind of state of the current bundle.
        state: a sealed token, `session:NAME` or `session:NAME@STEP`.
        return_state: True for a token, `session:NAME` for a new session.
        others: further states that are only read, by field.

    Raises:
        InvalidRequest, NotFound, Conflict, Overloaded, NotReady: See `StateKeeper`, or raised by `kind`.
    """
    while True:
        found = kind()
        exchange = await _open(connection, found, state, return_state)
        for name, reference in others.items():
            await exchange.read(name, reference, found.max_bytes)
        if kind() == found:
            return exchange


def choose_seed(requested: int | None, resumed: Any) -> int:
    """Return the requested seed, or the seed of the state, or a random one."""
    if requested is not None:
        return requested
    return draw_seed() if resumed is None else resumed.seed


async def _open(
    connection: HTTPConnection, kind: StateKind, state: str | None, return_state: bool | str
) -> StateExchange:
    keeper: StateKeeper = connection.app.state.keeper
    scope = StateScope(kind.digest, kind.kind, getattr(connection.state, "tenant", ""))
    session = SessionName.parse(return_state, param="return_state") if isinstance(return_state, str) else None
    exchange = StateExchange(keeper, scope, None, session, token=return_state is True)
    if state is not None:
        if session is not None and SessionReference.is_one(state):
            raise InvalidRequest(
                "return_state cannot be set for a session, which is updated under its own name; leave this field out.",
                param="return_state",
                code="session_name",
            )
        await exchange.open(state, kind.max_bytes)
    if session is not None:
        await keeper.check_new(session, scope)
    return exchange
