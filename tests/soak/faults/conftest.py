from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.faults.cast import FILTERS, ROOT, Truths, find_truths
from tests.soak.faults.redis_process import RedisProcess


@pytest.fixture(scope="session")
def filter_truths() -> Truths:
    """What the filters say of short series."""
    return find_truths([ROOT / "bundles" / name for name in FILTERS], steps=40, texts=0)


@pytest.fixture(scope="session")
def all_truths() -> Truths:
    """What all bundles say, of short series and of one text."""
    return find_truths(steps=80, texts=1)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisProcess]:
    """A Redis of the test's own, that survives a crash with everything it acknowledged."""
    with RedisProcess(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server
