"""Kernels that processes which start together compile once."""

from __future__ import annotations

import threading
from types import ModuleType

from rfa.model import compiling
from tests.model import test_dense_numba as first
from tests.model import test_metric_filter as second

PATIENCE = 60


def test_what_another_process_compiles_comes_last_and_is_waited_for() -> None:
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        order.append("one: first")

    one = threading.Thread(
        target=compiling.in_turn, args=([(first, slow), (second, lambda: order.append("one: second"))],)
    )
    one.start()
    assert begun.wait(PATIENCE)

    def quick() -> None:
        order.append("other: second")
        go_on.set()

    compiling.in_turn([(first, lambda: order.append("other: first")), (second, quick)])
    one.join(PATIENCE)
    assert order[:2] == ["other: second", "one: first"]
    assert sorted(order[2:]) == ["one: second", "other: first"]


def test_a_task_that_fails_lets_go() -> None:
    def fail() -> None:
        raise ValueError("no")

    done: list[ModuleType] = []
    try:
        compiling.in_turn([(first, fail)])
    except ValueError:
        compiling.in_turn([(first, lambda: done.append(first))])
    assert done == [first]
