"""Sentences on the worst windows say what their figures say."""

from __future__ import annotations

from typing import Any

from rfa.benchmarks.results_page.worst import cause, sentence


def window(**own: float) -> dict[str, Any]:
    parts = {"level": 0.0, "growth": 0.0, "rest": 0.0, "above": 3, "below": 4, **own}
    return {
        "own": parts, "others": {"rest": 0.5}, "rows": 48, "season": 24, "swing": 0.9, "alike": 0.9,
        "moved": 0.5, "moved_before": 0.4, "foretold": 0.1,
    }  # fmt: skip


def test_the_largest_part_of_the_error_is_named() -> None:
    assert cause(window(level=-2.0, growth=1.0)) == "what came lay 2.0 below the median on average"
    assert "trend" in cause(window(level=1.0, growth=4.0))
    assert "0.5" in cause(window(level=0.1, rest=1.5))


def test_growth_counts_by_its_share_of_the_squared_error() -> None:
    """A line from -g/2 to g/2 has a mean square of g²/12."""
    assert "average" in cause(window(level=1.0, growth=3.4))
    assert "trend" in cause(window(level=1.0, growth=3.5))


def test_a_series_that_moved_is_said_to_have() -> None:
    moved = {**window(level=3.0), "moved": 5.0}
    assert "moved by +5.0" in cause(moved) and "+0.1 were foretold" in cause(moved)
    assert "moved" not in cause({**moved, "moved_before": -3.0})
    assert "moved" not in cause({**moved, "season": 1})


def test_shape_is_flat_before_it_is_another() -> None:
    assert "flat" in cause({**window(rest=1.0), "swing": 0.2, "alike": 0.1})
    assert "-0.20" in cause({**window(rest=1.0), "alike": -0.2})


def test_rows_outside_are_those_on_both_sides() -> None:
    assert sentence(window(rest=1.0)).endswith("; 7 of 48 rows came outside the 90 % interval.")
