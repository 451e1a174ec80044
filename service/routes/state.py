"""The state that a request continues from, and where the state after it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from starlette.requests import HTTPConnection

from rfa.runtime.errors import InvalidInput
from rfa.runtime.state.names import Opened, SessionName, SessionReference, StateScope
from rfa.service.engine.engine import StateKind, draw_seed
from rfa.service.errors import Conflict, InvalidRequest, NotFound
from rfa.service.state.keeper import StateKeeper

NO_OTHERS: Final[Mapping[str, str]] = MappingProxyType({})


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Failures of a state speak of this field, and not of `state`."""
    try:
        yield
    except (InvalidInput, InvalidRequest, NotFound, Conflict) as error:
        if error.param != "state":
            raise
        raise type(error)(error.message.replace("state", field, 1), param=field, code=error.code) from None


class StateExchange:
    """What the `state` and `return_state` of one request ask for; `open_exchange` makes one.

    Attributes:
        opened: what the request continues from; None begins anew.
        others: further states that the request reads, by the fields that named them.
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
        # The step that the session must be at when it is written; None creates it.
        self._expected: int | None = None

    @property
    def is_requested(self) -> bool:
        """Whether the state after the request is to be kept."""
        return self._returns_token or self.is_durable

    @property
    def is_durable(self) -> bool:
        """Whether the server keeps it, in a named session."""
        return self._session is not None

    async def save(self, payload: bytes, step: int) -> str:
        """Keep a state after `step` steps; may be called again later in the request. The reply's `state`.

        Raises:
            Conflict, NotFound, Overloaded, NotReady: see `StateKeeper.save`; the session is as it was.
        """
        reference = await self._keeper.save(self._scope, payload, step, session=self._session, expected=self._expected)
        if self.is_durable:
            self._expected = step
        return reference

    async def read(self, name: str, reference: str, max_bytes: int) -> None:
        """Open a state that is not written back; failures name the field."""
        with naming(name):
            self.others[name] = await self._keeper.load(reference, self._scope, max_bytes)

    async def open(self, reference: str, max_bytes: int) -> None:
        """Continue from `reference`; a session is written back to where it came from."""
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
    """Read what a request says of states, and open the one that it continues from.

    Where bundles are replaced while a session store answers, the request goes on as if it had come after that.

    Args:
        connection: of the request.
        kind: tells what a state of the bundle is, as of now; it still says so when this returns.
        state: a sealed token, `session:NAME` or `session:NAME@STEP`.
        return_state: True for a token, `session:NAME` to begin a session of that name.
        others: further states that are read alone, by the names of their fields.

    Raises:
        InvalidRequest, NotFound, Conflict, Overloaded, NotReady: see `StateKeeper`, or from `kind`.
    """
    while True:
        found = kind()
        exchange = await _open(connection, found, state, return_state)
        for name, reference in others.items():
            await exchange.read(name, reference, found.max_bytes)
        if kind() == found:
            return exchange


def choose_seed(given: int | None, resumed: Any) -> int:
    """The one that was asked for, else the one of the text or stream that goes on, else a new one."""
    if given is not None:
        return given
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
                "return_state: a session that is continued is stored under its own name; leave this field out.",
                param="return_state",
                code="session_name",
            )
        await exchange.open(state, kind.max_bytes)
    if session is not None:
        await keeper.check_new(session, scope)
    return exchange
