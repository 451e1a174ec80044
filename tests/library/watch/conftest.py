"""A server that answers like Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.library.watch.fake_prometheus import FakePrometheus, fake_prometheus


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    with fake_prometheus() as found:
        yield found
