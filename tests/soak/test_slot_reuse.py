"""Pool slots with many users: no user receives data of another, and every planted leak is detected."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.interface import Row
from tests.soak.slot_reuse import soak, without_zeroing

COUNT = 1_500


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log: hundreds of failures are deliberate."""
    logger = logging.getLogger("rfa")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def test_no_user_sees_another() -> None:
    outcome = soak(COUNT, seed=1, phases=3, has_texts=True)
    assert outcome.is_clean, (outcome.findings.wrong, outcome.leaks, outcome.left)
    assert outcome.acquired >= COUNT
    compared = outcome.findings.answers
    assert min(compared[who] for who in ("needle", "needle state", "visitor", "text")) > 0
    assert {"close", "leave", "poison", "crash", "refuse", "request_and_leave"} <= set(outcome.findings.ends)


@pytest.mark.slow
def test_without_padding_the_needles_notice_their_neighbours() -> None:
    assert soak(COUNT, seed=1, phases=1, is_padded=False).findings.wrong["needle"] > 0


def test_slots_that_keep_what_was_in_them_are_seen() -> None:
    with without_zeroing():
        outcome = soak(300, seed=1, phases=1)
    assert outcome.leaks["a slot was not empty"] > 0
    assert outcome.left["bytes"] > 0 and not outcome.is_clean


def test_answers_that_change_places_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = FilterRuntime.advance

    def swapped(self: FilterRuntime, pool: StatePool, rows: Sequence[Row]) -> Any:
        first, *others = advance(self, pool, rows)
        return [*others, first]

    monkeypatch.setattr(FilterRuntime, "advance", swapped)
    assert soak(300, seed=1, phases=1).findings.wrong["visitor"] > 0
