"""How the intervals of `auto` are held against what came: on numbers that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.benchmarks.filters.auto_coverage import (
    LEADS,
    LENGTH,
    SCORED,
    Forecasts,
    Recorded,
    is_inside,
    score,
    simulated,
    step_seconds,
    summary,
)

ROWS = 1_000


def constant_width(series: Recorded, half: float, *, warns: bool = False) -> Forecasts:
    """The last value, give or take the same at every lead."""
    mean = np.tile(series.values, (len(LEADS), 1))
    return Forecasts(mean, mean - half, mean + half, [warns] * len(LEADS))


def test_a_forecast_is_scored_by_the_observation_of_its_time() -> None:
    """Of a line the last value is off by the lead; every 50th row is missing, and what was for it not scored."""
    kept = np.arange(ROWS) % 50 != 49
    line = Recorded("line", 60.0 * np.arange(ROWS)[kept], np.arange(float(ROWS))[kept])
    assert step_seconds(line) == 60
    for lead, figure in zip(LEADS, score(line, constant_width(line, 12.5)), strict=True):
        rows = np.arange(ROWS - lead)
        assert figure["scored"] == np.sum(kept[rows] & kept[rows + lead])
        assert figure["coverage"] == (1 if lead <= 12.5 else 0)
        assert figure["error_over_last"] == 1
        beyond = max(lead - 12.5, 0.0)
        unit = np.abs(np.diff(line.values)).mean()
        assert figure["interval_score"] == pytest.approx((25 + 20 * beyond) / unit)


def test_few_forecasts_are_held_to_nothing_and_warnings_are_counted() -> None:
    coverage = (0.9, 0.875, 0.86)
    figures = [{"scored": SCORED, "coverage": share} for share in coverage]
    assert [is_inside(lead, figures[lead]) for lead in range(3)] == [True, True, False]
    assert is_inside(0, {"scored": SCORED - 1, "coverage": 0.0})
    noise = Recorded("noise", np.arange(float(ROWS)), np.random.default_rng(0).normal(size=ROWS))
    rows = {"set": {"wide": score(noise, constant_width(noise, 9.0, warns=True)),
                    "narrow": score(noise, constant_width(noise, 0.1))}}  # fmt: skip
    found = summary(rows)
    assert [(one["figures"], one["inside"], one["warned"], one["false_warnings"]) for one in found["set"]] == [
        (2, 0, 1, 0)
    ] * len(LEADS)


def test_simulated_series_are_of_every_clock() -> None:
    found = {one.name: one for one in simulated()}
    assert {step_seconds(found[f"walk, {clock}"]) for clock in ("1 s", "5 min", "1 day")} == {1.0, 300.0, 86_400.0}
    assert len(found["walk, gaps"].times) < LENGTH == len(found["walk, jitter"].times)
    assert all((np.diff(one.times) > 0).all() and len(one.times) == len(one.values) for one in found.values())
