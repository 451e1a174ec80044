"""The deadline that all pieces of an answer share."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from rfa.service.deadline import Deadline

pytestmark = pytest.mark.anyio


class Clock:
    """Of the event loop, set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, time: float, act: Callable[[], None]) -> object:
        self.timers.append((time, act))
        return act

    def ring(self) -> None:
        """The next timer's time has come."""
        self.now, act = self.timers.pop(0)
        act()


async def _within(deadline: Deadline, seconds: float) -> str:
    try:
        with deadline:
            await asyncio.sleep(seconds)
    except TimeoutError:
        return "late"
    return "in time"


async def test_late_work_is_cut_and_the_task_goes_on() -> None:
    deadline = Deadline(0.05)
    assert await _within(deadline, 60) == "late"
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    assert [await _within(deadline, 0) for _ in range(3)] == ["in time"] * 3
    assert await _within(deadline, 60) == "late"


async def test_each_piece_of_work_has_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    deadline = Deadline(60)
    with deadline:
        assert [time for time, _ in clock.timers] == [60]
    clock.now = 50
    with deadline:
        clock.ring()
        assert [time for time, _ in clock.timers] == [110]
    clock.ring()  # finds nothing under way
    assert clock.timers == []
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_task_that_someone_cancels_is_cancelled() -> None:
    deadline = Deadline(60)
    task = asyncio.create_task(_within(deadline, 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_closed_one_leaves_no_timer_behind() -> None:
    """A timer holds what the task that set it held."""

    class Held:
        pass

    async def work() -> weakref.ref[Held]:
        held = Held()
        variable.set(held)
        with deadline:
            await asyncio.sleep(0)
        deadline.close()
        return weakref.ref(held)

    variable: ContextVar[Held] = ContextVar("held")
    deadline = Deadline(3600)
    gone = await asyncio.create_task(work())
    await asyncio.sleep(0)
    assert gone() is None
