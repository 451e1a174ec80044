"""Named sessions in Redis: they outlive the server and are shared by all of its processes and replicas.

    key   = rfa:session: and 64 hex digits, the digest of audience, tenant, bundle, kind and name
    value = step (u64) and payload, sealed with the server's keys for exactly this session

Redis sees neither states nor names. Who can write to it can delete sessions and put older records of a session back,
but cannot forge one nor move one to another session. Its own clock counts the time to live. Compare-and-set is
WATCH, GET, MULTI, SET, EXEC; no scripts. Give it `maxmemory-policy noeviction`: a full store then refuses new
sessions, where an evicting one loses live ones.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisError, WatchError
from redis.exceptions import TimeoutError as RedisTimeoutError

from rfa.runtime.state.names import Opened
from rfa.runtime.state.sealer import OVERHEAD_BYTES, SealBroken, Sealer
from rfa.service.state.sessions import SessionAddress, exists, moved, not_found, store_full, unavailable, unreadable

CONNECTIONS = 32
# One network round trip to a healthy Redis takes a millisecond; a client should hear of a sick one soon.
TIMEOUT_SECONDS = 2.0
# A refused transaction is tried again only while the session is still at the expected step, which few calls see twice.
_ATTEMPTS = 3
_FULL_RETRY_SECONDS = 30
_STEP = struct.Struct("<Q")

logger = logging.getLogger("rfa.state")


class RedisSessions:
    """Sessions in one Redis, over a bounded pool of connections that come back by themselves.

    Args:
        url: `redis://` or `rediss://`.
        sealer: seals what Redis keeps.
        audience: part of every key.
        seconds: a session not written for so long is forgotten.
        connections: pool size; a request waits at most `timeout_seconds` for one.
        timeout_seconds: longest wait for a connection and for each answer.
        password: of Redis, where the URL has none.

    Raises:
        ValueError: the URL is not one.
    """

    def __init__(
        self,
        url: str,
        sealer: Sealer,
        audience: str,
        seconds: int,
        connections: int = CONNECTIONS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        password: str | None = None,
    ) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            **({} if password is None else {"password": password}),
            max_connections=connections,
            timeout=timeout_seconds,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            # One more try on a new connection: the pooled one may be of a Redis that has restarted since.
            retry=Retry(NoBackoff(), 1),
            retry_on_error=[RedisConnectionError, RedisTimeoutError],
        )
        self._redis = Redis.from_pool(pool)
        self._sealer = sealer
        self._audience = audience
        self._milliseconds = 1000 * seconds

    async def read(self, address: SessionAddress, max_bytes: int) -> Opened:
        """The session's state."""
        async with _telling_outages():
            record = await self._redis.get(self._key(address))
        if record is not None and len(record) > OVERHEAD_BYTES + _STEP.size + max_bytes:
            logger.error("a session record is larger than any state of its model")
            raise unreadable()
        return self._open(record, address)

    async def check_new(self, address: SessionAddress) -> None:
        """Raise `Conflict` where the session exists."""
        async with _telling_outages():
            found = await self._redis.exists(self._key(address))
        if found:
            raise exists()

    async def create(self, address: SessionAddress, state: Opened) -> None:
        """Store a new session."""
        key, record = self._key(address), self._seal(state, address)
        async with _telling_outages():
            stored = await self._redis.set(key, record, nx=True, px=self._milliseconds)
            # A first try whose answer was lost makes the second one see its own session.
            if not stored and await self._redis.get(key) != record:
                raise exists()

    async def replace(self, address: SessionAddress, state: Opened, expected: int) -> None:
        """Overwrite the session if it is at step `expected`."""
        key, record = self._key(address), self._seal(state, address)
        async with _telling_outages():
            for _ in range(_ATTEMPTS):
                if await self._compare_and_set(key, record, address, expected):
                    return
                # Another writer came between, or the connection broke after the write: every seal is another, so
                # our own record there means that the write arrived.
                if await self._redis.get(key) == record:
                    return
        raise unavailable()

    async def aclose(self) -> None:
        """Close the connections; the sessions stay."""
        await self._redis.aclose()

    async def _compare_and_set(self, key: str, record: bytes, address: SessionAddress, expected: int) -> bool:
        """Whether the record was written; False where the transaction was refused."""
        async with self._redis.pipeline(transaction=True) as transaction:
            await transaction.watch(key)
            found = self._open(await transaction.get(key), address)
            if found.step != expected:
                raise moved(expected, found.step)
            transaction.multi()
            transaction.set(key, record, px=self._milliseconds)
            try:
                await transaction.execute()
            except WatchError:
                return False
            return True

    def _key(self, address: SessionAddress) -> str:
        return f"rfa:session:{address.digest(self._audience).hex()}"

    def _seal(self, state: Opened, address: SessionAddress) -> bytes:
        return self._sealer.seal(_STEP.pack(state.step) + state.payload, address.scope, _purpose(address))

    def _open(self, record: bytes | str | None, address: SessionAddress) -> Opened:
        if record is None:
            raise not_found()
        if isinstance(record, str):
            raise TypeError("a Redis URL with decode_responses cannot carry sealed bytes")
        try:
            plaintext = self._sealer.open(record, address.scope, _purpose(address))
        except SealBroken as reason:
            logger.error("a session record cannot be opened: %s", reason)
            raise unreadable() from None
        return Opened(plaintext[_STEP.size :], _STEP.unpack_from(plaintext)[0])


def _purpose(address: SessionAddress) -> str:
    return f"session:{address.name.value}"


@asynccontextmanager
async def _telling_outages() -> AsyncIterator[None]:
    """Every failure of Redis as one of the service's errors; none becomes a fresh state."""
    try:
        yield
    except OutOfMemoryError:
        logger.error("Redis is out of memory: no session can be stored")
        raise store_full(_FULL_RETRY_SECONDS) from None
    except (RedisError, OSError, TimeoutError) as error:
        logger.warning("Redis does not answer: %s", type(error).__name__)
        raise unavailable() from None
