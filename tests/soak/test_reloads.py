"""The oracle of `python -m tests.soak.reloads` finds what it is there for, and a few rounds of it pass."""

from __future__ import annotations

import pytest

from tests.soak.reloads.history import AFTERMATH_SECONDS, History


def test_a_request_that_begins_after_a_reply_of_the_new_version_must_not_get_the_old() -> None:
    history = History("a")
    assert history.see("a", 0, 1) and not history.see("b", 0, 1)
    history.begin("b", 10)
    assert history.see("a", 11, 12)
    assert history.see("b", 11, 13)  # the first of the new version is complete at 13
    assert history.see("a", 12.9, 20)  # began before
    assert not history.see("a", 13.1, 14)
    history.commit(15)
    assert history.see("b", 16, 17) and not history.see("a", 16, 17)


def test_the_word_of_the_server_counts_like_a_reply() -> None:
    history = History("a")
    history.begin("b", 10)
    history.commit(15)
    assert history.see("a", 14.9, 16) and not history.see("a", 15.1, 16)
    assert not history.see("b", 8, 9.9)  # before anybody could have it


def test_a_version_that_comes_back_is_not_mistaken_for_its_first_turn() -> None:
    history = History("a")
    for version, now in (("b", 10), ("a", 20)):
        history.begin(version, now)
        history.commit(now + 5)
    history.begin("b", 30)
    assert history.see("b", 14, 31)  # so slow that it may be of either turn
    assert history.see("a", 31, 32)
    assert history.see("b", 31, 33)
    assert not history.see("a", 34, 35)


def test_a_refused_round_must_not_show() -> None:
    history = History("a")
    history.begin("b", 10)
    assert history.keep() and not history.see("b", 11, 12)
    history.begin("b", 20)
    assert history.see("b", 21, 22)
    assert not history.keep()
    history = History("a")
    history.begin(None, 10)
    assert not history.see("b", 11, 12) and history.keep()


@pytest.mark.parametrize(("now", "is_allowed"), [(9, False), (11, True), (20 + AFTERMATH_SECONDS, True), (23, False)])
def test_a_connection_may_end_only_with_a_process(now: float, is_allowed: bool) -> None:
    history = History("a")
    history.harm(10)
    history.heal(20)
    assert history.may_lose(now) == is_allowed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_few_rounds_under_load() -> None:
    from tests.soak.reloads.run import Plan, run_reloads

    verdict = run_reloads(Plan(rounds=6, mishap_every=5, streams=4, kept=2, tokens=2, one_shots=2), lambda: None)
    assert not verdict.missed, verdict.measured
