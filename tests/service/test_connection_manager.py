"""The connection manager shares the event loop fairly, and an exception in one call does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rfa.service.http import connection
from rfa.service.http.connection import CALLS_PER_ITERATION, ConnectionManager

pytestmark = pytest.mark.anyio
NOTHING: Any = None


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> ConnectionManager:
    """One call uses up the time of an iteration."""
    monkeypatch.setattr(connection, "ITERATION_SECONDS", 1e-9)
    return ConnectionManager(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)


async def iterations(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_busy_connections_alternate(manager: ConnectionManager) -> None:
    log: list[str] = []

    def busy(name: str) -> Callable[[], None]:
        def work() -> None:
            log.append(name)
            manager.run_later(work)

        return work

    for name in "abc":
        manager.run_later(busy(name))
    await iterations(30)
    assert len(log) >= 9 and "".join(log) == ("abc" * len(log))[: len(log)]
    assert not manager.run_now(lambda: log.append("first"))


async def test_with_an_empty_queue_one_call_runs_at_once(manager: ConnectionManager) -> None:
    log: list[str] = []
    assert manager.run_now(lambda: log.append("a"))
    assert not manager.run_now(lambda: log.append("b"))
    await iterations(2)
    assert manager.run_now(lambda: log.append("c"))
    assert log == ["a", "c"]


async def test_the_number_of_calls_per_iteration_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short call may wake an application that takes long."""
    monkeypatch.setattr(connection, "ITERATION_SECONDS", 1e9)
    manager = ConnectionManager(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    log: list[int] = []
    for number in range(3 * CALLS_PER_ITERATION):
        manager.run_later(partial(log.append, number))
    for done in (1, 2, 3):
        await iterations(1)
        assert log == list(range(done * CALLS_PER_ITERATION))


async def test_an_exception_does_not_stop_the_queue(manager: ConnectionManager) -> None:
    log: list[str] = []
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    manager.run_later(lambda: log.append("a"))
    manager.run_later(lambda: log.remove("nothing"))
    manager.run_later(lambda: log.append("b"))
    await iterations(20)
    assert log == ["a", "b"]
    assert [type(error) for error in errors] == [ValueError]
