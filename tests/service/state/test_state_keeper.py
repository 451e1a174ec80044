"""The keeper that settings make, and that the application has one."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

from rfa.runtime.errors import InvalidInput
from rfa.runtime.state.keys import ephemeral_key
from rfa.runtime.state.names import Opened, SessionName
from rfa.service.errors import STATUS, InvalidRequest, Overloaded
from rfa.service.settings import Settings
from rfa.service.state.keeper import make_keeper
from tests.service.state.state_support import SCOPE
from tests.soak.faults.redis_process import RedisProcess

pytestmark = pytest.mark.anyio
NAME = SessionName("mine")


def settings(**values: object) -> Settings:
    return Settings.model_validate({"bundles": (), "processes": 1, **values})


async def test_tokens_of_two_processes_with_common_keys_and_settings_are_exchangeable() -> None:
    shared = settings(processes=2, state_keys=ephemeral_key())
    one, two = make_keeper(shared), make_keeper(shared)
    token = await one.save(SCOPE, b"state", 3, session=None, expected=None)
    assert await two.load(token, SCOPE, 100) == Opened(b"state", 3)


@pytest.mark.parametrize("other", [{"state_keys": ephemeral_key()}, {"state_audience": "other"}, {"state_keys": None}])
async def test_tokens_of_servers_that_share_less_are_not(other: dict[str, object]) -> None:
    values: dict[str, object] = {"state_keys": ephemeral_key()}
    token = await make_keeper(settings(**values)).save(SCOPE, b"state", 3, session=None, expected=None)
    with pytest.raises(InvalidInput):
        await make_keeper(settings(**{**values, **other})).load(token, SCOPE, 100)


async def test_state_seconds_is_what_a_token_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = make_keeper(settings(state_seconds=5))
    now = time.time()
    token = await keeper.save(SCOPE, b"state", 3, session=None, expected=None)
    assert (await keeper.load(token, SCOPE, 100)).step == 3
    monkeypatch.setattr(keeper._tokens, "_clock", lambda: now + 6)
    with pytest.raises(InvalidInput):
        await keeper.load(token, SCOPE, 100)


@pytest.mark.parametrize("operation", ["load", "continue", "create", "check"])
async def test_sessions_that_are_off_say_how_to_switch_them_on(operation: str) -> None:
    keeper = make_keeper(settings())
    call = {
        "load": lambda: keeper.load("session:mine", SCOPE, 100),
        "continue": lambda: keeper.save(SCOPE, b"", 1, session=NAME, expected=0),
        "create": lambda: keeper.save(SCOPE, b"", 1, session=NAME, expected=None),
        "check": lambda: keeper.check_new(NAME, SCOPE),
    }[operation]
    with pytest.raises(InvalidRequest, match="RFA_SESSIONS=memory") as caught:
        await call()
    field = "return_state" if operation in ("create", "check") else "state"
    assert (STATUS[type(caught.value)], caught.value.param, caught.value.code) == (422, field, "sessions_off")


async def test_memory_sessions_have_the_bounds_of_the_settings() -> None:
    keeper = make_keeper(settings(sessions="memory", max_sessions=1, max_session_bytes=1_000))
    with pytest.raises(Overloaded):
        await keeper.save(SCOPE, bytes(1_000), 1, session=NAME, expected=None)
    # A tenant may hold what is free, so that the one place goes to a server without keys only.
    await keeper.save(replace(SCOPE, tenant=""), b"", 1, session=NAME, expected=None)
    with pytest.raises(Overloaded):
        await keeper.save(replace(SCOPE, tenant=""), b"", 1, session=SessionName("second"), expected=None)


def test_memory_sessions_of_several_processes_stop_the_start() -> None:
    with pytest.raises(ValueError, match="RFA_SESSIONS=memory cannot be shared between processes"):
        make_keeper(settings(sessions="memory", processes=2, state_keys=ephemeral_key()))


async def test_redis_sessions_of_several_processes_are_common(shared_redis: RedisProcess) -> None:
    shared = settings(sessions=shared_redis.url, processes=2, state_keys=ephemeral_key(), state_audience="keepers")
    one, two = make_keeper(shared), make_keeper(shared)
    await one.save(SCOPE, b"state", 3, session=NAME, expected=None)
    assert await two.load("session:mine@3", SCOPE, 100) == Opened(b"state", 3)
    await one.aclose()
    await two.aclose()


def test_serving_needs_the_client_of_redis_only_for_sessions_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rfa.service.state.redis_sessions", raising=False)
    for name in {"redis", *(name for name in sys.modules if name.startswith("redis."))}:
        monkeypatch.setitem(sys.modules, name, None)
    make_keeper(settings(sessions="memory"))
    with pytest.raises(ValueError, match="requires an optional package; install it with pip install") as refused:
        make_keeper(settings(sessions="redis://127.0.0.1"))
    assert "rfa-server[redis]" in str(refused.value)
