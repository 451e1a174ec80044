"""The garbage collector of a server process: full rounds seldom, and garbage in cycles is found all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from rfa.service.process import child


@pytest.fixture
def tuned() -> Iterator[None]:
    threshold = gc.get_threshold()
    child._tune_garbage_collector()
    yield
    gc.set_threshold(*threshold)


class Node:
    itself: Any


@pytest.mark.usefixtures("tuned")
def test_opening_many_streams_brings_no_full_round() -> None:
    before = gc.get_stats()[2]["collections"]
    alive: list[Any] = [[] for _ in range(300_000)]
    node = Node()
    node.itself, gone = node, weakref.ref(node)
    del node
    alive += [[] for _ in range(50_000)]
    assert gc.get_stats()[2]["collections"] == before
    assert gone() is None and gc.get_freeze_count() > 10_000
