"""A real Redis for the tests, clocks that move when told, and keepers on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_process import RedisProcess

from service.state.keys import KeyRing
from service.state.memory_sessions import MemorySessions
from service.state.names import StateScope
from service.state.sealer import Sealer
from service.state.tokens import Tokens

SCOPE = StateScope(model="ab" * 32, kind="filter", tenant="tenant-a")
KEY = bytes(range(100, 132))
OTHER_KEY = bytes(range(7, 39))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def scope() -> StateScope:
    return SCOPE


@pytest.fixture
def clock() -> Clock:
    return Clock()
