"""A timeout names the awaited condition."""

from __future__ import annotations

import asyncio

import pytest

from tests import waiting
from tests.waiting import TooLate, until, wait_until


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)


def test_in_a_thread() -> None:
    arrived: list[str] = []
    wait_until(lambda: True)
    with pytest.raises(TooLate, match=r"not within 0 s: wait_until\(lambda: \"a letter\" in arrived\)"):
        wait_until(lambda: "a letter" in arrived)


def test_between_tasks() -> None:
    asyncio.run(until(lambda: True))
    with pytest.raises(TooLate, match=r"not within 0 s: <class 'dict'>"):
        asyncio.run(until(dict))
