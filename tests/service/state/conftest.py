"""A real Redis for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.soak.faults.redis_process import RedisProcess


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """One Redis for all tests that leave it running; each takes an audience of its own."""
    with RedisProcess(tmp_path_factory.mktemp("redis")) as redis:
        yield redis
