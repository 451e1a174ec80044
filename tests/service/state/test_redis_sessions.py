"""Sessions in a real Redis that is gone, slow, restarted, full, or written to by an attacker."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio.connection import AbstractConnection

from rfa.runtime.state.keys import StateKeys
from rfa.runtime.state.names import Opened, SessionName, StateScope
from rfa.runtime.state.sealer import Sealer
from rfa.service.errors import STATUS, Conflict, NotReady, Overloaded, ServiceError
from rfa.service.state.redis_sessions import RedisSessions
from rfa.service.state.sessions import SessionAddress
from tests.service.state.state_support import KEY, OTHER_KEY, SCOPE
from tests.soak.faults.redis_process import RedisProcess
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio
LIMIT = 10_000
HERE = SessionAddress(SCOPE, SessionName("mine"))
audiences = itertools.count()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisProcess]:
    """A server of the test's own, that survives a crash with everything it acknowledged."""
    with RedisProcess(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@asynccontextmanager
async def connected(
    server: RedisProcess, audience: str = "rfa", keys: tuple[bytes, ...] = (KEY,), **options: float | str
) -> AsyncIterator[RedisSessions]:
    sealer = Sealer(StateKeys(keys), audience)
    values: dict[str, object] = {"seconds": 3_600, "timeout_seconds": PATIENCE, **options}
    store = RedisSessions(server.url, sealer, audience, **values)  # type: ignore[arg-type]
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
async def store(shared_redis: RedisProcess) -> AsyncIterator[RedisSessions]:
    async with connected(shared_redis, f"redis-test-{next(audiences)}") as made:
        yield made


def address(name: str, scope: StateScope = SCOPE) -> SessionAddress:
    return SessionAddress(scope, SessionName(name))


def key_of(store: RedisSessions, where: SessionAddress = HERE) -> str:
    return store._key(where)


async def every_operation(store: RedisSessions) -> list[ServiceError]:
    """What each operation on the session answers where none can succeed."""
    errors = []
    for operation in (
        store.read(HERE, LIMIT),
        store.check_new(HERE),
        store.create(HERE, Opened(b"new", 0)),
        store.replace(HERE, Opened(b"later", 2), expected=1),
    ):
        with pytest.raises(ServiceError) as caught:
            await operation
        errors.append(caught.value)
    return errors


async def test_redis_gone_is_not_ready_and_the_session_is_there_when_it_is_back(redis_server: RedisProcess) -> None:
    async with connected(redis_server) as store:
        await store.create(HERE, Opened(b"state", 1))
        redis_server.kill()
        for error in await every_operation(store):
            assert isinstance(error, NotReady)
            assert (STATUS[type(error)], error.code) == (503, "sessions_unavailable")
            assert int(error.headers()["Retry-After"]) >= 1
            assert "127.0.0.1" not in error.message
        redis_server.start()
        # The same store, nothing done to it.
        assert await store.read(HERE, LIMIT) == Opened(b"state", 1)
        await store.replace(HERE, Opened(b"later", 2), expected=1)
        assert await store.read(HERE, LIMIT) == Opened(b"later", 2)


async def test_a_frozen_redis_is_given_up_and_used_again_when_it_answers(redis_server: RedisProcess) -> None:
    async with connected(redis_server, timeout_seconds=0.3, connections=4) as store:
        await store.create(HERE, Opened(b"state", 1))
        redis_server.freeze()
        try:
            results = await asyncio.gather(*(store.read(HERE, LIMIT) for _ in range(20)), return_exceptions=True)
            assert {type(result) for result in results} == {NotReady}
        finally:
            redis_server.thaw()
        # No answer of the frozen time may reach a later call.
        for name in ("a", "b"):
            await store.create(address(name), Opened(name.encode(), 0))
        for name in ("a", "b") * 5:
            assert await store.read(address(name), LIMIT) == Opened(name.encode(), 0)
        assert await store.read(HERE, LIMIT) == Opened(b"state", 1)


@pytest.mark.parametrize("command", [b"EXEC", b"NX"])
async def test_31_a_write_without_an_answer_counts_as_done(
    store: RedisSessions, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    """The server has done what it was sent, and the connection breaks before its answer is read."""
    lossy: list[AbstractConnection] = []
    send, receive, lost = AbstractConnection.send_packed_command, AbstractConnection.read_response, 0

    async def send_once(connection: AbstractConnection, packed: Any, *rest: Any, **options: Any) -> None:
        await send(connection, packed, *rest, **options)
        if not lost and command in (packed if isinstance(packed, bytes) else b"".join(packed)):
            lossy.append(connection)

    async def lose(connection: AbstractConnection, *given: Any, **options: Any) -> Any:
        nonlocal lost
        answer = await receive(connection, *given, **options)
        if connection in lossy:
            lossy.remove(connection)
            lost += 1
            await connection.disconnect(nowait=True)
            raise redis.ConnectionError("the answer is lost")
        return answer

    if command == b"EXEC":
        await store.create(HERE, Opened(b"0", 0))
    monkeypatch.setattr(AbstractConnection, "send_packed_command", send_once)
    monkeypatch.setattr(AbstractConnection, "read_response", lose)
    if command == b"EXEC":
        await store.replace(HERE, Opened(b"1", 1), expected=0)
    else:
        await store.create(HERE, Opened(b"1", 1))
    assert lost == 1 and await store.read(HERE, LIMIT) == Opened(b"1", 1)


async def test_30_cancelled_calls_leave_every_later_answer_right(store: RedisSessions) -> None:
    """A connection given back in the middle of an answer would hand it to the next caller."""
    rng = random.Random(6)
    names = [f"s{number}" for number in range(8)]
    for name in names:
        await store.create(address(name), Opened(name.encode(), 0))
    cancelled = 0
    for _ in range(120):
        name = rng.choice(names)
        at = await store.read(address(name), LIMIT)
        assert at.payload == name.encode()
        later = Opened(name.encode(), at.step + 1)
        task = asyncio.ensure_future(store.replace(address(name), later, at.step))
        await asyncio.sleep(rng.choice((0, 0, rng.uniform(0, 0.003))))
        cancelled += task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found = await store.read(address(name), LIMIT)
        assert found in (at, later)
    assert cancelled > 20


async def test_the_pool_is_bounded(shared_redis: RedisProcess) -> None:
    async with connected(shared_redis, f"pool-{next(audiences)}", connections=3) as store:
        await store.create(HERE, Opened(b"state", 1))
        with shared_redis.client() as admin:
            before = admin.info("clients")["connected_clients"]
            await asyncio.gather(*(store.read(HERE, LIMIT) for _ in range(200)))
            assert admin.info("clients")["connected_clients"] - before <= 3


async def test_redis_forgets_by_its_own_clock_from_the_last_write(shared_redis: RedisProcess) -> None:
    async with connected(shared_redis, f"ttl-{next(audiences)}", seconds=100) as store:
        with shared_redis.client() as admin:
            await store.create(HERE, Opened(b"state", 1))
            assert 0 < admin.pttl(key_of(store)) <= 100_000
            admin.pexpire(key_of(store), 5_000)
            await store.read(HERE, LIMIT)
            assert admin.pttl(key_of(store)) <= 5_000
            await store.replace(HERE, Opened(b"later", 2), expected=1)
            assert admin.pttl(key_of(store)) > 5_000


async def test_redis_sees_neither_states_nor_names(shared_redis: RedisProcess) -> None:
    async with connected(shared_redis, f"plain-{next(audiences)}") as store:
        where = address("somebodys-name", replace(SCOPE, tenant="somebodys-tenant"))
        await store.create(where, Opened(b"somebodys secret" * 9, 1))
        with shared_redis.client() as admin:
            stored = b"".join(key + (admin.get(key) or b"") for key in admin.scan_iter("*"))
        assert key_of(store, where).encode() in stored
        for plain in (b"somebody", b"secret", SCOPE.model.encode()):
            assert plain not in stored


async def test_1_an_attacker_with_redis_cannot_alter_a_session(
    shared_redis: RedisProcess, store: RedisSessions
) -> None:
    await store.create(HERE, Opened(b"state", 1))
    with shared_redis.client() as attacker:
        record = attacker.get(key_of(store))
        assert isinstance(record, bytes)
        forgeries = [b"", b"x", record[:-1], record + b"x", bytes(len(record))]
        forgeries += [record[:k] + bytes([record[k] ^ 1 << k % 8]) + record[k + 1 :] for k in range(len(record))]
        for forged in forgeries:
            attacker.set(key_of(store), forged)
            with pytest.raises(Conflict) as read:
                await store.read(HERE, LIMIT)
            with pytest.raises(Conflict) as written:
                await store.replace(HERE, Opened(b"later", 2), expected=1)
            assert read.value.code == written.value.code == "session_unreadable"
        attacker.set(key_of(store), record)
    assert await store.read(HERE, LIMIT) == Opened(b"state", 1)


async def test_32_the_value_of_another_key_is_not_taken(shared_redis: RedisProcess, store: RedisSessions) -> None:
    theirs = address("mine", replace(SCOPE, tenant="tenant-b"))
    others = [address("other"), theirs, address("mine", replace(SCOPE, model="cd" * 32))]
    await store.create(HERE, Opened(b"ours", 1))
    for other in others:
        await store.create(other, Opened(b"another", 1))
        with shared_redis.client() as attacker:
            attacker.set(key_of(store), attacker.get(key_of(store, other)) or b"")
        with pytest.raises(Conflict) as caught:
            await store.read(HERE, LIMIT)
        assert caught.value.code == "session_unreadable"


async def test_an_oversized_record_is_not_opened(store: RedisSessions) -> None:
    await store.create(HERE, Opened(bytes(100), 1))
    assert (await store.read(HERE, 100)).step == 1
    with pytest.raises(Conflict) as caught:
        await store.read(HERE, 99)
    assert caught.value.code == "session_unreadable"


async def test_a_value_of_another_type_under_our_key_is_an_outage_not_a_state(
    shared_redis: RedisProcess, store: RedisSessions
) -> None:
    with shared_redis.client() as attacker:
        attacker.rpush(key_of(store), "a list")
    with pytest.raises(NotReady):
        await store.read(HERE, LIMIT)


async def test_5_sessions_survive_a_rotation_and_are_sealed_anew(shared_redis: RedisProcess) -> None:
    audience = f"rotation-{next(audiences)}"
    rings = [(KEY,), (KEY, OTHER_KEY), (OTHER_KEY, KEY), (OTHER_KEY,)]
    async with connected(shared_redis, audience, rings[0]) as first:
        await first.create(HERE, Opened(b"0", 0))
        await first.create(address("idle"), Opened(b"idle", 0))
    for step, ring in enumerate(rings[1:]):
        async with connected(shared_redis, audience, ring) as store:
            assert await store.read(HERE, LIMIT) == Opened(str(step).encode(), step)
            await store.replace(HERE, Opened(str(step + 1).encode(), step + 1), expected=step)
    async with connected(shared_redis, audience, rings[-1]) as last:
        # A session that nobody wrote since the key was retired is refused, not restarted.
        with pytest.raises(Conflict) as caught:
            await last.read(address("idle"), LIMIT)
        assert caught.value.code == "session_unreadable"


async def test_28_a_full_redis_refuses_new_sessions_and_keeps_the_others(tmp_path: Path) -> None:
    with RedisProcess(tmp_path, "--maxmemory", "8mb", "--maxmemory-policy", "noeviction") as small:
        async with connected(small) as store:
            stored = 0
            with pytest.raises(Overloaded) as caught:
                for stored in range(1_000):
                    await store.create(address(f"s{stored}"), Opened(stored.to_bytes(2, "big") * 50_000, stored))
            assert (STATUS[type(caught.value)], caught.value.code) == (429, "sessions_full")
            assert stored > 10
            for number in range(stored):
                found = await store.read(address(f"s{number}"), 100_000)
                assert found == Opened(number.to_bytes(2, "big") * 50_000, number)
            with pytest.raises(Overloaded):
                await store.replace(address("s0"), Opened(b"\0\0" * 50_000, 1), expected=0)
            assert (await store.read(address("s0"), 100_000)).step == 0


async def test_24_no_log_line_names_the_store_or_a_session(
    redis_server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = redis_server.url.replace("redis://", "redis://user:hidden-password@")
    store = RedisSessions(url, Sealer(StateKeys([KEY]), "rfa"), "rfa", 60)
    redis_server.kill()
    with pytest.raises(NotReady) as caught:
        await store.create(address("somebodys-name"), Opened(b"secret text", 1))
    await store.aclose()
    assert "Redis does not respond" in caplog.text
    for secret in ("hidden-password", "somebodys-name", "secret text"):
        assert secret not in caplog.text + caught.value.message


async def test_the_commands_of_the_documentation_are_enough(redis_server: RedisProcess) -> None:
    """A user that may do no more than docs/STATE.md asks for: no scripts, and no keys but ours."""
    commands = ("+get", "+set", "+exists", "+watch", "+unwatch", "+multi", "+exec", "+hello", "+client")
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "rfa", "on", ">password", "~rfa:session:*", *commands)
    url = redis_server.url.replace("redis://", "redis://rfa:password@")
    store = RedisSessions(url, Sealer(StateKeys([KEY]), "rfa"), "rfa", 3_600)
    await store.check_new(HERE)
    await store.create(HERE, Opened(b"0", 0))
    await store.replace(HERE, Opened(b"1", 1), expected=0)
    with pytest.raises(Conflict):
        await store.replace(HERE, Opened(b"1", 1), expected=0)
    assert await store.read(HERE, LIMIT) == Opened(b"1", 1)
    await store.aclose()


async def test_a_user_that_may_do_less_is_an_outage(redis_server: RedisProcess) -> None:
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "rfa", "on", ">password", "~other:*", "+@all")
    for user in ("rfa:password", "rfa:wrong"):
        store = RedisSessions(
            redis_server.url.replace("redis://", f"redis://{user}@"), Sealer(StateKeys([KEY]), "rfa"), "rfa", 60
        )
        for error in await every_operation(store):
            assert isinstance(error, NotReady)
        await store.aclose()


async def test_a_redis_with_a_password_opens_to_who_has_it(tmp_path: Path) -> None:
    with RedisProcess(tmp_path) as server:
        client = redis.Redis.from_url(server.url)
        client.config_set("requirepass", "open sesame")
        client.close()
        async with connected(server) as stranger:
            errors = await every_operation(stranger)
        assert {STATUS[type(error)] for error in errors} == {503}
        async with connected(server, password="open sesame") as friend:
            await friend.create(HERE, Opened(b"new", 1))
            assert (await friend.read(HERE, LIMIT)).payload == b"new"
