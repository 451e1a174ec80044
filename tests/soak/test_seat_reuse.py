"""Pool slots with many users: no user receives data of another, and every planted leak is detected."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.interface import Row
from rfa.service.engine.filter.recurrent_job import RecurrentJob
from tests.soak.seat_reuse import soak, without_zeroing
from tests.soak.watched import WatchedFilter

COUNT = 1_500


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the log: hundreds of failures are deliberate."""
    logger = logging.getLogger("rfa")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def test_nobody_sees_anybody() -> None:
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
    assert outcome.leaks["a seat was not empty"] > 0
    assert outcome.left["bytes"] > 0 and not outcome.is_clean


def test_answers_that_change_places_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = FilterRuntime.advance

    def swapped(self: FilterRuntime, pool: StatePool, rows: Sequence[Row]) -> Any:
        first, *others = advance(self, pool, rows)
        return [*others, first]

    monkeypatch.setattr(FilterRuntime, "advance", swapped)
    assert soak(300, seed=1, phases=1).findings.wrong["visitor"] > 0


def test_states_that_change_places_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = StatePool.rows
    monkeypatch.setattr(StatePool, "rows", lambda self, slots: np.roll(rows(self, slots), 1))
    assert soak(300, seed=1, phases=1).findings.wrong["needle"] > 0


def test_the_mark_of_another_owner_is_seen() -> None:
    watched = WatchedFilter(FilterRuntime(open_bundle(BUNDLE_ROOT / "linear")))
    pool = StatePool(watched.state_fields, 2)
    slots = [pool.acquire() for _ in range(2)]
    for slot in slots:
        watched.put(pool, slot, watched.start())
    watched.get(pool, slots[0], 0)
    assert not watched.leaks.total()
    for array in pool.arrays.values():
        array[:] = array[::-1].copy()
    watched.get(pool, slots[0], 0)
    assert watched.leaks["a seat had another owner's mark"] == 1


def test_slots_that_are_not_given_back_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    release = RecurrentJob.release

    def forgetful(self: RecurrentJob) -> None:
        if not self.cancelled:
            release(self)

    monkeypatch.setattr(RecurrentJob, "release", forgetful)
    assert soak(300, seed=1, phases=1).left["seats"] > 0
