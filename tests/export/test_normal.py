"""The learned normal: as rare as it says on clean streams, whatever their unit; rows alone; news only once."""

import math

import numpy as np
import pytest

from rfa.export import normal
from rfa.export.normal import NormalState, anomalies, learn, start, surprise

STREAMS, SETTLED, SCORED = 64, 600, 2400


def scores_of(sizes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`[B, N]` sizes and values of one component → scores."""
    state, scores = start(len(sizes), 1), np.zeros_like(sizes)
    for i in range(sizes.shape[1]):
        state, scores[:, i] = learn(state, sizes[:, i], values[:, i : i + 1])
    return scores


@pytest.mark.parametrize("shape", ["normal", "laplace"])
def test_a_score_above_one_minus_p_is_at_most_as_rare_as_p(shape):
    """Counts of the whole are compared with their binomial mean and four of its deviations; the learned quantile strays
    by some tenths over a memory of 1,000, which adds a tenth of the mean."""
    generator = np.random.default_rng(0)
    draw = generator.standard_normal if shape == "normal" else lambda size: generator.laplace(size=size)
    noise = draw(size=(STREAMS, SETTLED + SCORED))
    scores = scores_of(np.abs(noise), 5 + noise)[:, SETTLED:]
    for p in (0.1, 0.03, 0.01, 0.003, 0.001):
        count, mean = int((scores > 1 - p).sum()), p * scores.size
        assert count <= 1.1 * mean + 4 * math.sqrt(mean), p
    assert scores.max() > 0.999, "the rarest of 150,000 is seen as rare"


def test_units_do_not_matter():
    noise = np.random.default_rng(1).standard_normal((16, 500))
    noise[:, 400] = 9
    here = scores_of(np.abs(noise), 3 + noise)
    there = scores_of(2.0**20 * np.abs(noise), 2.0**-30 * (3 + noise))
    assert np.allclose(here, there, rtol=0, atol=1e-12)


def test_a_missing_observation_changes_nothing():
    noise = np.random.default_rng(2).standard_normal((16, 50))
    state = start(16, 1)
    for i in range(50):
        state, _ = learn(state, np.abs(noise[:, i]), noise[:, i : i + 1])
    silent, score = learn(state, np.full(16, np.nan), np.full((16, 1), np.nan))
    assert not score.any()
    assert all(np.array_equal(a, b) for a, b in zip(silent, state, strict=True))


def test_a_missing_component_keeps_its_level():
    state = start(1, 2)
    for i in range(30):
        state, _ = learn(state, np.ones(1), np.array([[i % 3, 10.0 - i % 2]]))
    after, _ = learn(state, np.ones(1), np.array([[1.0, np.nan]]))
    assert after.level[0, 1] == state.level[0, 1] and after.trust[0, 1] == state.trust[0, 1]
    assert after.trust[0, 0] == state.trust[0, 0] + 1


def test_rows_do_not_depend_on_each_other():
    generator = np.random.default_rng(3)
    noise = generator.standard_normal((32, 300)) * 10.0 ** generator.integers(-3, 4, (32, 1))
    together, order = scores_of(np.abs(noise), noise), generator.permutation(32)
    assert np.array_equal(scores_of(np.abs(noise[order]), noise[order]), together[order])
    assert np.array_equal(scores_of(np.abs(noise[:16]), noise[:16]), together[:16])
    assert np.array_equal(anomalies((noise[5] ** 2).tolist(), noise[5][:, None]), together[5])


def test_an_outlier_and_a_shift_of_the_level_are_seen():
    noise = np.random.default_rng(4).standard_normal((16, 800))
    values = 100 + noise
    values[:8, 700] += 12
    sizes = np.abs(noise)
    sizes[:8, 700] = 12
    values[8:, 700:] += 12  # the filter follows at once: only the level tells
    scores = scores_of(sizes, values)
    assert (scores[:, 700] > normal.THRESHOLD).all()
    assert (scores[:, 200:700] <= normal.THRESHOLD).mean() > 0.998


def test_the_same_evidence_is_no_news_until_it_has_faded():
    sizes = np.abs(np.random.default_rng(5).standard_normal((16, 1400)))
    sizes[:, [800, 810, 1300]] = 8  # the quantile is some 1.6: 810 may seem a few percent stronger than 800
    scores = scores_of(sizes, np.zeros_like(sizes))
    assert (scores[:, 800] > normal.THRESHOLD).all()
    assert (scores[:, 810] <= normal.QUIET).all()
    assert (scores[:, 1300] > normal.THRESHOLD).all()
    stronger = sizes.copy()
    stronger[:, 810] = 16
    assert (scores_of(stronger, np.zeros_like(sizes))[:, 810] > normal.THRESHOLD).all()


def test_what_comes_again_and_again_becomes_normal():
    """A size ten times the usual, every tenth observation: alarming at first, not after a while."""
    sizes = np.abs(np.random.default_rng(6).standard_normal((16, 2000)))
    sizes[:, 300::10] = 10
    scores = scores_of(sizes, np.zeros_like(sizes))
    assert (scores[:, 300] > normal.THRESHOLD).all()
    assert (scores[:, 1000:] < normal.THRESHOLD).all()


def test_a_flat_line_is_normal_and_its_end_is_not():
    sizes, values = np.zeros((16, 300)), np.full((16, 300), 7.0)
    sizes[:, 290], values[:, 290] = 1e3, 8.0
    scores = scores_of(sizes, values)
    assert np.isfinite(scores).all()
    assert not scores[:, :290].any() and (scores[:, 290] > normal.THRESHOLD).all()


def test_surprise_is_the_size_per_component():
    found = surprise(np.array([8.0, -1e-9, 5.0]), np.array([2, 1, 0]))
    assert found[0] == 2 and found[1] == 0 and np.isnan(found[2])


def test_the_state_is_small():
    state = start(1, 1)
    assert isinstance(state, NormalState) and sum(array.size for array in state) == 14
