"""Named sessions, the same promises in memory and in a real Redis. Numbers are those of the attack list."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from rfa.runtime.errors import InvalidInput
from rfa.runtime.state.keys import StateKeys
from rfa.runtime.state.names import Opened, SessionName, SessionReference
from rfa.runtime.state.sealer import Sealer
from rfa.service.errors import NAMED, Conflict, ErrorReply, InvalidRequest, NotFound, ServiceError, as_service_error
from rfa.service.state.keeper import StateKeeper
from rfa.service.state.memory_sessions import MemorySessions
from rfa.service.state.redis_sessions import RedisSessions
from tests.service.state.state_support import KEY, SCOPE, make_tokens
from tests.soak.faults.redis_process import RedisProcess

pytestmark = pytest.mark.anyio
NAME = SessionName("mine")
LIMIT = 1_000
audiences = itertools.count()


@pytest.fixture(params=["memory", "redis"])
async def keeper(request: pytest.FixtureRequest) -> AsyncIterator[StateKeeper]:
    if request.param == "memory":
        made = StateKeeper(make_tokens(), MemorySessions(seconds=3_600, max_sessions=1_000, max_bytes=10**7))
    else:
        redis: RedisProcess = request.getfixturevalue("shared_redis")
        made = StateKeeper(make_tokens(), open_redis(redis, f"test-{next(audiences)}"))
    yield made
    await made.aclose()


def open_redis(redis: RedisProcess, audience: str) -> RedisSessions:
    return RedisSessions(redis.url, Sealer(StateKeys([KEY]), audience), audience, seconds=3_600)


async def refusal(awaitable: object) -> tuple[type[ServiceError], str]:
    with pytest.raises(NAMED) as caught:
        await awaitable  # type: ignore[misc]
    error = as_service_error(caught.value)
    return type(error), error.code


async def create(keeper: StateKeeper, payload: bytes = b"zero", step: int = 0, name: SessionName = NAME) -> str:
    return await keeper.save(SCOPE, payload, step, session=name, expected=None)


async def test_a_session_is_created_continued_and_named_by_its_step(keeper: StateKeeper) -> None:
    assert await create(keeper) == "session:mine@0"
    for reference in ("session:mine", "session:mine@0"):
        assert await keeper.load(reference, SCOPE, LIMIT) == Opened(b"zero", 0)
    assert await keeper.save(SCOPE, b"seven", 7, session=NAME, expected=0) == "session:mine@7"
    for reference in ("session:mine", "session:mine@7"):
        assert await keeper.load(reference, SCOPE, LIMIT) == Opened(b"seven", 7)


@pytest.mark.parametrize("payload", [b"", b"\0", bytes(range(256)) * 600])
@pytest.mark.parametrize("step", [0, 1, 2**64 - 1])
async def test_any_state_comes_back_as_it_was(keeper: StateKeeper, payload: bytes, step: int) -> None:
    await create(keeper, payload, step)
    assert await keeper.load("session:mine", SCOPE, 200_000) == Opened(payload, step)


async def test_an_unknown_session_is_never_a_fresh_state(keeper: StateKeeper) -> None:
    assert await refusal(keeper.load("session:mine", SCOPE, LIMIT)) == (NotFound, "session_not_found")
    assert await refusal(keeper.load("session:mine@0", SCOPE, LIMIT)) == (NotFound, "session_not_found")
    saved = keeper.save(SCOPE, b"one", 1, session=NAME, expected=0)
    assert await refusal(saved) == (NotFound, "session_not_found")
    assert await refusal(keeper.load("session:mine", SCOPE, LIMIT)) == (NotFound, "session_not_found")


async def test_creating_twice_is_a_conflict_and_changes_nothing(keeper: StateKeeper) -> None:
    await keeper.check_new(NAME, SCOPE)
    await create(keeper, b"first", 1)
    assert await refusal(keeper.check_new(NAME, SCOPE)) == (Conflict, "session_exists")
    assert await refusal(create(keeper, b"second", 1)) == (Conflict, "session_exists")
    assert await keeper.load("session:mine", SCOPE, LIMIT) == Opened(b"first", 1)


async def test_12_13_a_repeated_or_rolled_back_step_is_a_conflict(keeper: StateKeeper) -> None:
    """And says where the session is: who retries after a lost reply learns that it was stored."""
    await create(keeper)
    await keeper.save(SCOPE, b"one", 1, session=NAME, expected=0)
    await keeper.save(SCOPE, b"two", 2, session=NAME, expected=1)
    for stale in ("session:mine@0", "session:mine@1", "session:mine@3"):
        assert await refusal(keeper.load(stale, SCOPE, LIMIT)) == (Conflict, "session_moved")
    for expected in (0, 1, 3):
        saved = keeper.save(SCOPE, b"stale", expected + 1, session=NAME, expected=expected)
        assert await refusal(saved) == (Conflict, "session_moved")
    assert await keeper.load("session:mine@2", SCOPE, LIMIT) == Opened(b"two", 2)
    with pytest.raises(Conflict, match="expects the session to be at step 1, but it is at step 2") as caught:
        await keeper.load("session:mine@1", SCOPE, LIMIT)
    assert caught.value.param == "state"


@pytest.mark.parametrize("field", ["tenant", "model", "kind"])
async def test_7_9_25_another_scope_has_sessions_of_its_own(keeper: StateKeeper, field: str) -> None:
    """The same name elsewhere is another session, and one that exists there cannot be told from one that does not."""
    elsewhere = replace(SCOPE, **{field: "elsewhere"})
    await create(keeper, b"ours")
    absent = await absent_refusal(keeper, "session:other")
    with pytest.raises(NotFound) as theirs:
        await keeper.load("session:mine", elsewhere, LIMIT)
    assert theirs.value.payload() == absent
    saved = keeper.save(elsewhere, b"theirs", 1, session=NAME, expected=0)
    assert await refusal(saved) == (NotFound, "session_not_found")
    await keeper.save(elsewhere, b"theirs", 5, session=NAME, expected=None)
    assert await keeper.load("session:mine", SCOPE, LIMIT) == Opened(b"ours", 0)
    assert await keeper.load("session:mine", elsewhere, LIMIT) == Opened(b"theirs", 5)


async def absent_refusal(keeper: StateKeeper, reference: str) -> ErrorReply:
    with pytest.raises(NotFound) as caught:
        await keeper.load(reference, SCOPE, LIMIT)
    return caught.value.payload()


async def test_14_29_of_many_writers_exactly_one_wins_each_step(keeper: StateKeeper) -> None:
    created = await asyncio.gather(*(create(keeper) for _ in range(16)), return_exceptions=True)
    assert created.count("session:mine@0") == 1
    assert {getattr(one, "code", None) for one in created if not isinstance(one, str)} == {"session_exists"}
    for step in range(8):
        writers = [
            keeper.save(SCOPE, f"{step + 1} by {writer}".encode(), step + 1, session=NAME, expected=step)
            for writer in range(16)
        ]
        results = await asyncio.gather(*writers, return_exceptions=True)
        winners = [writer for writer, result in enumerate(results) if result == f"session:mine@{step + 1}"]
        assert len(winners) == 1
        losers = [result for result in results if not isinstance(result, str)]
        assert {getattr(result, "code", result) for result in losers} == {"session_moved"}
        stored = await keeper.load("session:mine", SCOPE, LIMIT)
        assert stored == Opened(f"{step + 1} by {winners[0]}".encode(), step + 1)


async def test_30_what_is_cancelled_before_its_commit_changes_nothing(keeper: StateKeeper) -> None:
    await create(keeper)
    task = asyncio.ensure_future(keeper.save(SCOPE, b"one", 1, session=NAME, expected=0))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await keeper.load("session:mine", SCOPE, LIMIT) == Opened(b"zero", 0)
    await keeper.save(SCOPE, b"one", 1, session=NAME, expected=0)


async def test_a_session_may_be_written_at_its_own_step(keeper: StateKeeper) -> None:
    """The last frame of a stream stores what the last step stored: it only puts the expiry off."""
    await create(keeper, b"five", 5)
    assert await keeper.save(SCOPE, b"five", 5, session=NAME, expected=5) == "session:mine@5"


MALFORMED_NAMES = ["", ":a", "a/b", "é", "*", "a b", "a\n", "a\0", "a" * 65]
MALFORMED_STEPS = ["", "-1", "01", "1.0", "x", "1@2", "\u0661", "9" * 20]


@pytest.mark.parametrize("rest", [*MALFORMED_NAMES, *(f"a@{step}" for step in MALFORMED_STEPS)])
async def test_a_malformed_session_is_refused_before_the_store_sees_it(keeper: StateKeeper, rest: str) -> None:
    assert await refusal(keeper.load(f"session:{rest}", SCOPE, LIMIT)) == (InvalidRequest, "session_name")


@pytest.mark.parametrize("text", ["true", "", "v1.abc", "session:a@1", "Session:a", " session:a", "session:a b"])
def test_a_new_session_is_named_without_a_step(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SessionName.parse(text, param="return_state")
    assert (caught.value.param, caught.value.code) == ("return_state", "session_name")
    assert "session:NAME" in caught.value.message


def test_a_reference_reads_back_what_it_writes() -> None:
    assert SessionName.parse("session:a_B-9", param="return_state") == SessionName("a_B-9")
    for text in ("session:a", "session:a@0", "session:" + "z" * 64 + "@9223372036854775807"):
        assert str(SessionReference.parse(text)) == text
