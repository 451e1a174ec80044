"""Quotas of clients.

A client is identified by its API key. On a server without keys, it is identified by the address of its connection. For
IPv6, this is the /64 prefix, which usually belongs to one machine.

    quota          limit                                          status and error code
    requests       requests per second, including handshakes      429 quota_requests
    concurrent     active requests                                429 quota_concurrent
    streams        live streams                                   429 quota_streams
    tokens         tokens in prompts and replies per second       429 quota_tokens
    observations   observations per second                        429 quota_observations

The error `quota_streams` is sent in a WebSocket frame, because browsers cannot read the reply to a handshake. A live
stream that exceeds `observations` gets no error; the server waits before it reads the next observations.

Quotas per second are token buckets that hold the amount of `BURST_SECONDS`. A request is accepted if the bucket
contains the required amount. A request that requires more than a full bucket is accepted if the bucket is full; the
level then becomes negative. A text reserves `max_new_tokens`, and unused tokens are refunded when it ends.

Each process counts separately, so a client with connections to all processes has `RFA_PROCESSES` times its quotas. If
the quotas were divided among the processes, a client with one connection would only have the share of one process.
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
from rfa.service.access.middleware import Middleware, refuse_early
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
    """Token bucket that fills at `rate` per second. It holds at most the amount of `BURST_SECONDS`. A negative level is
    a debt."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self.rate = rate
        self._size = max(1.0, rate * BURST_SECONDS)
        self._level = self._size
        self._clock = clock
        self._time = clock()

    def seconds_until(self, amount: float) -> float:
        """Return the seconds until the bucket contains an amount. If the amount is larger than the bucket, return the
        seconds until the bucket is full."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._time) * self.rate)
        self._time = now
        return max(0.0, (min(amount, self._size) - self._level) / self.rate)

    def take(self, amount: float) -> None:
        """Take an amount from the bucket, even if it is larger than the level. A negative amount is a refund."""
        self._level -= amount


class Client:
    """Quotas of one client.

    Args:
        name: Tenant of the API key, or network address of the client.
        quotas: Mapping from names of quotas to limits. A quota that is missing has no limit.
        streams: Number of live streams by client. All clients share this counter.
        count_refusal: Function that is called with the name of the quota for each rejection.
        clock: Function that returns the time in seconds.
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
        self._active = 0

    def afford(self, rate: Rate, amount: int) -> None:
        """Check that a quota contains an amount, without using it.

        Raises:
            Overloaded: If the quota is exhausted. The error contains the seconds to wait.
        """
        if (bucket := self._buckets.get(rate)) is None:
            return
        if seconds := bucket.seconds_until(amount):
            message = f"This API key has used up its quota of {bucket.rate:g} {rate} per second; try again later."
            raise self._refusal(rate, message, seconds)

    def spend(self, rate: Rate, amount: int) -> None:
        """Use an amount of a quota. A negative amount is a refund."""
        if (bucket := self._buckets.get(rate)) is not None:
            bucket.take(amount)

    def pacer(self) -> Callable[[int], float] | None:
        """Return a function that counts observations against the quota. Its argument is a number of observations, and
        it returns the seconds to wait before reading more. Return None if the client has no quota for observations."""
        if (bucket := self._buckets.get("observations")) is None:
            return None

        def pace(amount: int) -> float:
            bucket.take(amount)
            return bucket.seconds_until(0)

        return pace

    @contextmanager
    def request(self, *, counts: bool) -> Iterator[None]:
        """Context manager that counts a request while it is active.

        Args:
            counts: Whether the request counts towards the quota `concurrent`. WebSockets do not count towards this
                quota.

        Raises:
            Overloaded: If the quota `concurrent` or `requests` is exhausted.
        """
        limit = self._quotas.get("concurrent", math.inf)
        if counts and self._active >= limit:
            raise self._refusal(
                "concurrent",
                f"This API key already has {limit:g} active requests, which is its limit; try again later.",
                1,
            )
        self.afford("requests", 1)
        self.spend("requests", 1)
        self._active += counts
        try:
            yield
        finally:
            self._active -= counts

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Context manager that counts a live stream while it is open.

        Raises:
            Overloaded: If the quota `streams` is exhausted.
        """
        limit = self._quotas.get("streams", math.inf)
        if self._streams[self._name] >= limit:
            raise self._refusal(
                "streams", f"This client already has {limit:g} live streams, which is its limit; close one first.", 1
            )
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
    """Clients of the server: one for each API key, or one for each network address if there are no keys."""

    def __init__(
        self,
        settings: Settings,
        keys: ApiKeys,
        count_refusal: Callable[[QuotaName], None] = lambda quota: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._streams: Counter[str] = Counter()
        self._address_quotas = {"streams": float(settings.limits.quota_streams)}
        self._make: Callable[[str, Mapping[QuotaName, float]], Client] = lambda name, quotas: Client(
            name, quotas, self._streams, count_refusal, clock
        )
        self._keyed = {tenant: self._make(tenant, _quotas(settings, own)) for tenant, own in keys.quotas.items()}

    def client_for(self, scope: Scope) -> Client:
        """Return the client of a request. If the server has keys and the path requires none, the client has no
        quotas."""
        if self._keyed:
            return self._keyed.get(scope.get("state", {}).get("tenant", "")) or self._make("", {})
        return self._make(_network(scope), self._address_quotas)  # type: ignore[arg-type]


class QuotaGuard(Middleware):
    """Middleware that enforces the quotas for requests. It runs after the check of API keys."""

    def __init__(self, app: ASGIApp, clients: Clients) -> None:
        super().__init__(app)
        self._clients = clients

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        refunds: list[Callable[[], None]] = []
        scope.setdefault("state", {})["refunds"] = refunds
        has_begun = False
        try:
            with self._clients.client_for(scope).request(counts=scope["type"] == "http"):
                has_begun = True
                await self._app(scope, receive, send)
        except Overloaded as error:
            if has_begun:
                raise
            await refuse_early(error, scope, receive, send)
        finally:
            for refund in refunds:
                refund()


def client_of(connection: HTTPConnection) -> Client:
    """Return the client of a request or a WebSocket."""
    clients: Clients = connection.app.state.clients
    return clients.client_for(connection.scope)


@contextmanager
def reserve_tokens(connection: HTTPConnection, amount: int) -> Iterator[list[GenerateJob]]:
    """Context manager that reserves tokens for the jobs of a request, and yields a list to which the caller adds the
    jobs. Tokens that the jobs do not use are refunded at the end of the request.

    Raises:
        Overloaded: If the quota `tokens` is exhausted.
    """
    client = client_of(connection)
    client.afford("tokens", amount)
    jobs: list[GenerateJob] = []
    yield jobs
    client.spend("tokens", amount)
    refunds = connection.scope.get("state", {}).get("refunds")
    if refunds is not None:
        refunds.append(lambda: client.spend("tokens", sum(job.token_count for job in jobs) - amount))


def _quotas(settings: Settings, own: Mapping[QuotaName, float | None]) -> dict[QuotaName, float]:
    """Return the quotas of a key. Quotas that the key does not define are those of the settings."""
    general: dict[QuotaName, float | None] = {
        name: getattr(settings.limits, f"quota_{name}") for name in get_args(QuotaName)
    }
    return {name: value for name, value in {**general, **own}.items() if value is not None}


def _network(scope: Scope) -> str:
    """Return the address or IPv6 network of a connection."""
    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a UNIX socket, or an invalid address; all such connections are one client
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((address, NETWORK_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)
