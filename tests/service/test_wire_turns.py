"""Connections of a process take turns: nobody waits for ever, and what fails in one turn ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rfa.service.wire import connection
from rfa.service.wire.connection import TURNS_A_ROUND, Wire

pytestmark = pytest.mark.anyio
NOTHING: Any = None


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """One turn has all the time of a round."""
    monkeypatch.setattr(connection, "ROUND_SECONDS", 1e-9)
    return Wire(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)


async def rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_always_has_more_waits_for_the_others(wire: Wire) -> None:
    log: list[str] = []

    def greedy(name: str) -> Callable[[], None]:
        def work() -> None:
            log.append(name)
            wire.queue_turn(work)

        return work

    for name in "abc":
        wire.queue_turn(greedy(name))
    await rounds(30)
    assert len(log) >= 9 and "".join(log) == ("abc" * len(log))[: len(log)]
    assert not wire.take_turn(lambda: log.append("first"))


async def test_who_comes_while_nobody_waits_works_at_once_and_one_a_round(wire: Wire) -> None:
    log: list[str] = []
    assert wire.take_turn(lambda: log.append("a"))
    assert not wire.take_turn(lambda: log.append("b"))
    await rounds(2)
    assert wire.take_turn(lambda: log.append("c"))
    assert log == ["a", "c"]


async def test_no_more_turns_a_round_than_so_many_however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn may take nothing itself and wake an application that takes long."""
    monkeypatch.setattr(connection, "ROUND_SECONDS", 1e9)
    wire = Wire(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    log: list[int] = []
    for number in range(3 * TURNS_A_ROUND):
        wire.queue_turn(partial(log.append, number))
    for done in (1, 2, 3):
        await rounds(1)
        assert log == list(range(done * TURNS_A_ROUND))


async def test_a_turn_that_fails_holds_nobody_up(wire: Wire) -> None:
    log: list[str] = []
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    wire.queue_turn(lambda: log.append("a"))
    wire.queue_turn(lambda: log.remove("nothing"))
    wire.queue_turn(lambda: log.append("b"))
    await rounds(20)
    assert log == ["a", "b"]
    assert [type(error) for error in told] == [ValueError]
