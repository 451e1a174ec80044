"""Store named sessions in Redis, for all processes and replicas of a server.

    key   = rfa:session: and 64 hex digits, which are the digest of audience, tenant, bundle, kind and name
    value = step (u64) and payload, sealed with the keys of the server for this session

Redis contains no plain states or names. A program that can write to Redis can delete sessions or restore older records,
but cannot forge a record or move it to another session. Sessions expire in Redis. The compare-and-set operation uses
WATCH, GET, MULTI, SET and EXEC, without scripts. Set `maxmemory-policy noeviction`, so that a full Redis server rejects
new sessions instead of removing others.
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
# A request to Redis usually takes a millisecond. If Redis does not respond, clients should get an error soon.
TIMEOUT_SECONDS = 2.0
# Maximum number of transactions. A rejected transaction is repeated if the session is still at the expected step.
_ATTEMPTS = 3
_FULL_RETRY_SECONDS = 30
_STEP = struct.Struct("<Q")

logger = logging.getLogger("rfa.state")


class RedisSessions:
    """Stores sessions in one Redis server, with a pool of connections.

    Args:
        url: URL of the server, with the scheme `redis` or `rediss`.
        sealer: Object that seals the records.
        audience: Name of the deployment, which is part of every key.
        seconds: Seconds after which an unused session expires.
        connections: Maximum number of connections.
        timeout_seconds: Maximum time to wait for a connection and for each reply.
        password: Password of the server, if the URL does not contain it.

    Raises:
        ValueError: If the URL is invalid.
    """

    def __init__(
        self,
        url: str,
        sealer: Sealer,
        audience: str,
        seconds: int,
        *,
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
            # A command is repeated once on a new connection, because Redis may have been restarted.
            retry=Retry(NoBackoff(), 1),
            retry_on_error=[RedisConnectionError, RedisTimeoutError],
        )
        self._redis = Redis.from_pool(pool)
        self._sealer = sealer
        self._audience = audience
        self._milliseconds = 1000 * seconds

    async def read(self, address: SessionAddress, max_bytes: int) -> Opened:
        """Return the state of a session."""
        async with _reporting_outages():
            record = await self._redis.get(self._key(address))
        if record is not None and len(record) > OVERHEAD_BYTES + _STEP.size + max_bytes:
            logger.error("rejected a session record that is larger than the largest possible state of its model")
            raise unreadable()
        return self._open(record, address)

    async def check_new(self, address: SessionAddress) -> None:
        """Check that a session does not exist yet. Raise `Conflict` if it exists."""
        async with _reporting_outages():
            found = await self._redis.exists(self._key(address))
        if found:
            raise exists()

    async def create(self, address: SessionAddress, state: Opened) -> None:
        """Create a session."""
        key, record = self._key(address), self._seal(state, address)
        async with _reporting_outages():
            stored = await self._redis.set(key, record, nx=True, px=self._milliseconds)
            # If the command was repeated, the first attempt may have created the session.
            if not stored and await self._redis.get(key) != record:
                raise exists()

    async def replace(self, address: SessionAddress, state: Opened, expected: int) -> None:
        """Replace the state of a session that is at the step `expected`."""
        key, record = self._key(address), self._seal(state, address)
        async with _reporting_outages():
            for _ in range(_ATTEMPTS):
                if await self._compare_and_set(key, record, address, expected):
                    return
                # Another request has changed the session, or the connection failed after the write. Sealed records are
                # unique, so if the record is this one, the write has succeeded.
                if await self._redis.get(key) == record:
                    return
        raise unavailable()

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self._redis.aclose()

    async def _compare_and_set(self, key: str, record: bytes, address: SessionAddress, expected: int) -> bool:
        """Write a record if the session is at the expected step. Return False if the transaction was rejected, because
        another request has changed the session."""
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
            raise TypeError("the Redis URL must not set decode_responses, because session records are encrypted bytes")
        try:
            plaintext = self._sealer.open(record, address.scope, _purpose(address))
        except SealBroken as reason:
            logger.error("a session record could not be decrypted: %s", reason)
            raise unreadable() from None
        return Opened(plaintext[_STEP.size :], _STEP.unpack_from(plaintext)[0])


def _purpose(address: SessionAddress) -> str:
    return f"session:{address.name.value}"


@asynccontextmanager
async def _reporting_outages() -> AsyncIterator[None]:
    """Context manager that converts errors of the Redis client to the errors of this package."""
    try:
        yield
    except OutOfMemoryError:
        logger.error("Redis has no free memory, so no session can be stored")
        raise store_full(_FULL_RETRY_SECONDS) from None
    except (RedisError, OSError, TimeoutError) as error:
        logger.warning("Redis does not respond: %s", type(error).__name__)
        raise unavailable() from None
