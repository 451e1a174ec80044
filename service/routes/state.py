"""Open the state from which a request continues, and save the new state."""

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
    """Context manager that replaces the field name `state` in errors by the name of another field."""
    try:
        yield
    except (InvalidInput, InvalidRequest, NotFound, Conflict) as error:
        if error.param != "state":
            raise
        raise type(error)(error.message.replace("state", field, 1), param=field, code=error.code) from None


class StateExchange:
    """Opens and saves the states of one request, according to its fields `state` and `return_state`. Use
    `open_exchange` to create it.

    Attributes:
        opened: State from which the request continues. None if there is none.
        others: Other states that the request reads, by field.
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
        # Step of the session before it is written. None means that the session is created.
        self._expected: int | None = None

    @property
    def tenant(self) -> str:
        """Tenant to which the states belong."""
        return self._scope.tenant

    @property
    def is_requested(self) -> bool:
        """Whether the new state must be returned or stored."""
        return self._returns_token or self.is_durable

    @property
    def is_durable(self) -> bool:
        """Whether the server stores the new state in a named session."""
        return self._session is not None

    async def save(self, payload: bytes, step: int) -> str:
        """Save the state after `step` steps. This may be called repeatedly.

        Returns:
            Value of `state` in the reply: a state token, or a reference to the session.

        Raises:
            Conflict, NotFound, Overloaded, NotReady: If the session cannot be written (see `StateKeeper.save`). It is
                then unchanged.
        """
        reference = await self._keeper.save(self._scope, payload, step, session=self._session, expected=self._expected)
        if self.is_durable:
            self._expected = step
        return reference

    async def read(self, name: str, reference: str, max_bytes: int) -> None:
        """Read a state that the request does not continue.

        Args:
            name: Field of the request that contains the reference, for errors.
            reference: State token or reference to a session.
        """
        with errors_name(name):
            self.others[name] = await self._keeper.load(reference, self._scope, max_bytes)

    async def open(self, reference: str, max_bytes: int) -> None:
        """Open the state from which the request continues. If `reference` names a session, `save` updates it."""
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
    """Open the states of a request. If the bundles are replaced in the meantime, the states are opened again for the
    new bundles.

    Args:
        kind: Function that returns the kind of states of the current model.
        state: State from which the request continues: a state token, `session:NAME` or `session:NAME@STEP`.
        return_state: True to return a state token, or `session:NAME` to create a session.
        others: Further states that are only read, by field.

    Raises:
        InvalidRequest, NotFound, Conflict: If a state cannot be used, or `kind` raises the error.
        Overloaded, NotReady: If a session cannot be read at the moment.
    """
    while True:
        found = kind()
        exchange = await _open(connection, found, state, return_state)
        for name, reference in others.items():
            await exchange.read(name, reference, found.max_bytes)
        if kind() == found:
            return exchange


def choose_seed(requested: int | None, resumed: Any) -> int:
    """Return the requested seed. If there is none, return the seed of the state, or a random seed without a state."""
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
                "return_state must not name a session if state names one, because the request updates that session; "
                "leave out return_state.",
                param="return_state",
                code="session_name",
            )
        await exchange.open(state, kind.max_bytes)
    if session is not None:
        await keeper.check_new(session, scope)
    return exchange
