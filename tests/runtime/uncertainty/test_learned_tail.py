"""The learned tail against its equations over a whole grid in NumPy, and against the rates that it promises."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.runtime.uncertainty import learned_tail
from rfa.runtime.uncertainty.learned_tail import (
    BODY,
    COLUMNS,
    GRID,
    LARGEST_SCORE,
    LEAST_THRESHOLD,
    SEEN,
    THRESHOLD,
    TREE,
)
from tests.inlined import callable_from_python
from tests.runtime.uncertainty.learned_tail_reference import RareTail

learn_tail_probability = callable_from_python(learned_tail.learn_tail_probability)
RATES = (1e-2, 1e-3)
LENGTH, BURN_IN = 40_000, 4_000


def follow(scores: np.ndarray, noise: float, learned: np.ndarray) -> np.ndarray:
    return np.array([learn_tail_probability(score, noise, True, learned) for score in scores.tolist()])


def series(kind: str, count: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    if kind == "normal":
        return np.abs(rng.standard_normal(count))
    if kind == "heavy":
        return np.abs(rng.standard_t(3, count))
    if kind == "bounded":
        return rng.random(count)
    wave = np.abs(np.sin(0.07 * np.arange(count)) * (2 + 0.1 * rng.standard_normal(count)))
    return wave if kind == "wave" else np.where(rng.random(count) < 0.03, rng.exponential(50, count), 0.0)


@pytest.mark.parametrize("kind", ["normal", "heavy", "bounded", "wave", "still"])
def test_it_is_what_its_page_says(kind: str) -> None:
    """Float64 here and there: sums of 84 in another order, some thousand times."""
    scores, learned, expected = series(kind, 3_000), np.zeros(COLUMNS), RareTail()
    found = follow(scores, 1.0, learned)
    for t, score in enumerate(scores.tolist()):
        p = expected.probability(score)
        assert found[t] == pytest.approx(1.0 if p is None else p, rel=1e-8)
        expected.learn(score)
    assert learned[SEEN] == expected.seen and learned[THRESHOLD] == pytest.approx(expected.threshold, rel=1e-9)
    grid = (expected.evidence - expected.prior).ravel()
    np.testing.assert_allclose(learned[GRID:TREE], grid, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(learned[TREE:], expected.counts, rtol=1e-9)


@pytest.mark.parametrize("kind", ["normal", "heavy", "bounded", "wave"])
def test_so_rare_as_it_says(kind: str) -> None:
    """Within the factor that is promised, and five deviations of a count; a wave comes in runs."""
    found = follow(series(kind, LENGTH), 1.0, np.zeros(COLUMNS))[BURN_IN:]
    runs = 9 if kind == "wave" else 1
    for rate in RATES:
        expected = rate * len(found)
        chance = 5 * np.sqrt(runs * expected)
        assert expected / 1.5 - chance <= (found <= rate).sum() <= 1.5 * expected + chance
    assert abs((found < 1).mean() - BODY) < 0.005


def test_it_falls_with_the_score_and_meets_the_body_at_the_threshold() -> None:
    learned = np.zeros(COLUMNS)
    follow(series("heavy", 5_000), 1.0, learned)
    scores = learned[THRESHOLD] * np.geomspace(1 + 1e-12, 1e9, 400)
    found = np.array([learn_tail_probability(score, 1.0, False, learned) for score in scores])
    assert found[0] == pytest.approx(BODY, rel=1e-6)
    assert (np.diff(found) <= 0).all() and 0 < found[-1] < 1e-6
    assert learn_tail_probability(learned[THRESHOLD], 1.0, False, learned) == 1


def test_one_anomaly_does_not_make_the_next_one_ordinary() -> None:
    learned = np.zeros(COLUMNS)
    follow(series("normal", 5_000), 1.0, learned)
    first = learn_tail_probability(30.0, 1.0, True, learned)
    assert first < 1e-6 and learn_tail_probability(30.0, 1.0, True, learned) < 1e-3


@pytest.mark.parametrize("score", [0.0, LARGEST_SCORE])
def test_extremes_stay_finite_as_kept(score: float) -> None:
    """Streams that stand still, or are as far out as there is, in float32."""
    kept = np.zeros(COLUMNS, np.float32)
    for value in [*[score] * 200, *[1.0, 0.0] * 50, LARGEST_SCORE, *[score] * 200]:
        learned = kept.astype(np.float64)
        p = learn_tail_probability(value, 1.0, True, learned)
        kept = learned.astype(np.float32)
        assert 0 < p <= 1 and np.isfinite(kept).all() and (p == 1 or p <= BODY)
    assert kept[THRESHOLD] >= np.float32(LEAST_THRESHOLD)


def test_early_scores_are_limited_unless_they_are_far_larger_than_all_before():
    """(M / s)² / n beyond three times the largest score M, and otherwise .1 / n."""
    state, floor = np.zeros(COLUMNS), callable_from_python(learned_tail.least_early)
    assert floor(5.0, state) == 0.1  # nothing is known
    state[GRID : GRID + 12], state[SEEN] = np.tile([0.5, 1.5, 2.0, 1.0], 3), 12
    for size in (0.1, 2.0, 6.0, 20.0, 200.0):
        assert floor(size, state) == pytest.approx(min(0.1, (2.0 / size) ** 2) / 13)
    state[SEEN] = 9  # too few
    assert floor(200.0, state) == 0.1 / 10
    state[GRID : GRID + 8], state[SEEN] = 0.0, 12  # most values were constant
    assert floor(200.0, state) == 0.1 / 13
