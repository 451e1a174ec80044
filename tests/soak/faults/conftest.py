from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.faults.cast import FILTERS, ROOT, Truths, find_truths
from tests.soak.faults.redis_process import RedisProcess


@pytest.fixture(scope="session")
def filter_truths() -> Truths:
    """Expected answers of the filters for short series."""
    return find_truths([ROOT / "bundles" / name for name in FILTERS], steps=40, texts=0)


@pytest.fixture(scope="session")
def all_truths() -> Truths:
    """Expected answers of all bundles for short series and one text."""
    return find_truths(steps=80, texts=1)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisProcess]:
    """A Redis server for the test, which keeps all acknowledged writes over a crash."""
    with RedisProcess(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server
