"""What one client may use, so that it leaves something to the others: quotas of keys, and places of live streams.

A client is a key, or, on a server without keys, the address of its connection (of an IPv6 address its network of 64
bits, which a single machine usually has to itself).

    requests       a second, handshakes included     → 429 quota_requests
    concurrent     requests under way                → 429 quota_concurrent
    streams        live streams                      → 429 quota_streams, in a frame: a browser cannot read a handshake
    tokens         a second, of prompts and replies  → 429 quota_tokens
    observations   a second                          → 429 quota_observations; a live stream is read more slowly

What is counted by the second is a bucket that fills at that rate and holds `BURST_SECONDS` of it. A request waits for
what it asks for, at most for a full bucket; beyond that it leaves a debt, which is paid before the next one. Of a text
`max_new_tokens` is set aside, and what it did not use is given back at its end, however it ends.

Every process counts for itself: a client that uses all of them has `RFA_PROCESSES` times as much. Dividing the numbers
would leave one that keeps to one connection, and so to one process, with a fraction of what it was promised.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, get_args

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from rfa.service.access.keys import ApiKeys
from rfa.service.access.refusal import turn_away
from rfa.service.errors import Overloaded
from rfa.service.settings import QuotaName, Settings

if TYPE_CHECKING:
    from rfa.service.engine.text.job import GenerateJob

Rate = Literal["requests", "tokens", "observations"]
RATES: Final[tuple[Rate, ...]] = get_args(Rate)
BURST_SECONDS: Final = 10.0
NETWORK_BITS: Final = 64
Clock = Callable[[], float]


class Bucket:
    """`rate` a second, up to `BURST_SECONDS` of it saved; below zero it is a debt."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self.rate = rate
        self._size = max(1.0, rate * BURST_SECONDS)
        self._level = self._size
        self._clock = clock
        self._time = clock()

    def seconds_until(self, amount: float) -> float:
        """How long until the bucket holds so much, or is full where that is less; 0 where it does."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._time) * self.rate)
        self._time = now
        return max(0.0, (min(amount, self._size) - self._level) / self.rate)

    def take(self, amount: float) -> None:
        """Take what is there or not; a negative amount is given back."""
        self._level -= amount


class Client:
    """What one client has left.

    Args:
        name: of the key, or the address.
        quotas: a quota that is missing is no limit.
        streams: live streams of every client that has any.
        count_refusal: told the quota of each refusal.
    """

    def __init__(
        self,
        name: str,
        quotas: Mapping[QuotaName, float],
        streams: Counter[str],
        count_refusal: Callable[[QuotaName], None],
        clock: Clock,
    ) -> None:
        self._name = name
        self._quotas = quotas
        self._streams = streams
        self._count_refusal = count_refusal
        self._buckets = {rate: Bucket(quotas[rate], clock) for rate in RATES if rate in quotas}
        self._under_way = 0

    def afford(self, rate: Rate, amount: int) -> None:
        """Refuse what is more than this client has.

        Raises:
            Overloaded: with the time until it has enough.
        """
        if (bucket := self._buckets.get(rate)) is None:
            return
        if seconds := bucket.seconds_until(amount):
            message = f"This key has used up its quota of {bucket.rate:g} {rate} a second."
            raise self._refusal(rate, message, seconds)

    def spend(self, rate: Rate, amount: int) -> None:
        """Count what was used; a negative amount gives back."""
        if (bucket := self._buckets.get(rate)) is not None:
            bucket.take(amount)

    def pacer(self) -> Callable[[], float] | None:
        """Counts an observation of a live stream and tells how long to wait for the next; None if none is counted."""
        if (bucket := self._buckets.get("observations")) is None:
            return None

        def pace() -> float:
            bucket.take(1)
            return bucket.seconds_until(0)

        return pace

    @contextmanager
    def request(self, *, counts: bool) -> Iterator[None]:
        """A request from its beginning to its end.

        Args:
            counts: among those under way; a WebSocket does not.

        Raises:
            Overloaded
        """
        limit = self._quotas.get("concurrent", math.inf)
        if counts and self._under_way >= limit:
            raise self._refusal("concurrent", f"This key has {limit:g} requests under way, as many as it may.", 1)
        self.afford("requests", 1)
        self.spend("requests", 1)
        self._under_way += counts
        try:
            yield
        finally:
            self._under_way -= counts

    @contextmanager
    def stream(self) -> Iterator[None]:
        """The place of a live stream.

        Raises:
            Overloaded
        """
        limit = self._quotas.get("streams", math.inf)
        if self._streams[self._name] >= limit:
            raise self._refusal("streams", f"This client has {limit:g} live streams, as many as one may.", 1)
        self._streams[self._name] += 1
        try:
            yield
        finally:
            self._streams[self._name] -= 1
            if not self._streams[self._name]:
                del self._streams[self._name]

    def _refusal(self, quota: QuotaName, message: str, seconds: float) -> Overloaded:
        self._count_refusal(quota)
        return Overloaded(message, retry_after_seconds=math.ceil(seconds), code=f"quota_{quota}")


class Clients:
    """Everybody who may ask: as many as there are keys; without keys only addresses with live streams are kept."""

    def __init__(
        self,
        settings: Settings,
        keys: ApiKeys,
        count_refusal: Callable[[QuotaName], None] = lambda quota: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._streams: Counter[str] = Counter()
        self._places = {"streams": float(settings.quota_streams)}
        self._make: Callable[[str, Mapping[QuotaName, float]], Client] = lambda name, quotas: Client(
            name, quotas, self._streams, count_refusal, clock
        )
        self._keyed = {tenant: self._make(tenant, _quotas(settings, own)) for tenant, own in keys.quotas.items()}

    def of(self, scope: Scope) -> Client:
        """Who asks; on a path that needs no key, nobody in particular."""
        if self._keyed:
            return self._keyed.get(scope.get("state", {}).get("tenant", "")) or self._make("", {})
        return self._make(_network(scope), self._places)  # type: ignore[arg-type]


class QuotaGuard:
    """Middleware inside of the keys' that holds every request of a key to its quotas."""

    def __init__(self, app: ASGIApp, clients: Clients) -> None:
        self._app = app
        self._clients = clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        settle: list[Callable[[], None]] = []
        scope.setdefault("state", {})["settle"] = settle
        is_begun = False
        try:
            with self._clients.of(scope).request(counts=scope["type"] == "http"):
                is_begun = True
                await self._app(scope, receive, send)
        except Overloaded as error:
            if is_begun:
                raise
            await turn_away(error, scope, receive, send)
        finally:
            for give_back in settle:
                give_back()


def client_of(connection: HTTPConnection) -> Client:
    """The client of a request or a WebSocket."""
    clients: Clients = connection.app.state.clients
    return clients.of(connection.scope)


@contextmanager
def tokens_set_aside(connection: HTTPConnection, amount: int) -> Iterator[list[GenerateJob]]:
    """Set tokens aside for the jobs that the block submits and lists; what they did not use is given back.

    Raises:
        Overloaded: the client has not so many.
    """
    client = client_of(connection)
    client.afford("tokens", amount)
    jobs: list[GenerateJob] = []
    yield jobs
    client.spend("tokens", amount)
    settle = connection.scope.get("state", {}).get("settle")
    if settle is not None:
        settle.append(lambda: client.spend("tokens", sum(job.spent for job in jobs) - amount))


def _quotas(settings: Settings, own: Mapping[QuotaName, float | None]) -> dict[QuotaName, float]:
    """The quotas of a key: its own before the settings'."""
    general: dict[QuotaName, float | None] = {name: getattr(settings, f"quota_{name}") for name in get_args(QuotaName)}
    return {name: value for name, value in {**general, **own}.items() if value is not None}


def _network(scope: Scope) -> str:
    """Where a connection comes from, as far as one client can be told from another."""
    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a UNIX socket, or what a proxy writes instead of an address: all of those are one client
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((address, NETWORK_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)
