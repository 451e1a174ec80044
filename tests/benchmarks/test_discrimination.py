"""Scores that tell right from wrong, against counts by hand and intervals by resampling."""

import numpy as np
import pytest

from rfa.benchmarks.language.discrimination import auroc, fit_linear, fit_logistic, with_interval


def scored(count, seed, digits=1):
    """Scores with many ties, right more often where they are high."""
    generator = np.random.default_rng(seed)
    score = generator.normal(size=count).round(digits)
    return score, generator.random(count) < 1 / (1 + np.exp(-score))


def test_auroc_is_the_count_over_all_pairs():
    score, is_right = scored(300, 0)
    gaps = np.subtract.outer(score[is_right], score[~is_right])
    assert auroc(score, is_right).value == pytest.approx(((gaps > 0) + 0.5 * (gaps == 0)).mean(), abs=1e-12)


@pytest.mark.parametrize("is_right", [[True, True], [False, False]])
def test_auroc_of_one_kind_is_refused(is_right):
    with pytest.raises(ValueError, match="needs right and wrong items"):
        auroc(np.array([0.1, 0.2]), np.array(is_right))


def test_influence_is_what_an_item_adds():
    """Leaving item i out moves the value by its influence, to the order 1/n²."""
    score, is_right = scored(400, 1)
    whole = auroc(score, is_right)
    for i in (0, 17, 233):
        kept = np.arange(400) != i
        moved = whole.value - auroc(score[kept], is_right[kept]).value
        assert moved == pytest.approx(whole.influence[i], abs=10 / 400**2)


def clustered(generator, blocks, size):
    """Two scores of items whose rightness and noise are shared within a block."""
    shared = generator.normal(size=(3, blocks, 1))
    is_right = generator.random((blocks, size)) < 1 / (1 + np.exp(-2 * shared[0]))
    noise = 1.5 * shared[1:] + generator.normal(size=(2, blocks, size))
    first, second = is_right + noise[0], 0.7 * is_right + noise[1]
    return first.ravel(), second.ravel(), is_right.ravel(), np.repeat(np.arange(blocks), size)


def test_intervals_of_a_difference_cover_the_truth_though_items_depend_on_each_other():
    """95 % of 300 intervals hold the truth, so fewer than 92 % or more than 98.5 % would be a chance below 1 in 100.
    Intervals that took the items for independent would cover 73 %."""
    generator = np.random.default_rng(0)
    first, second, is_right, _ = clustered(generator, 40_000, 10)
    truth = auroc(first, is_right).value - auroc(second, is_right).value
    covered = np.zeros(2)
    for _ in range(300):
        first, second, is_right, block = clustered(generator, 60, 10)
        a, b = auroc(first, is_right), auroc(second, is_right)
        for k, groups in enumerate((block, np.arange(len(block)))):
            low, high = with_interval(a.value - b.value, a.influence - b.influence, groups)["interval"]
            covered[k] += low <= truth <= high
    assert 0.92 <= covered[0] / 300 <= 0.985
    assert covered[1] / 300 < 0.85


def test_logistic_regression_finds_the_odds_that_made_the_data():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40_000, 2)) * (3.0, 0.1) + (1.0, 5.0)
    odds = 0.4 * features[:, 0] - 8.0 * (features[:, 1] - 5.0) - 0.5
    found = fit_logistic(features, generator.random(40_000) < 1 / (1 + np.exp(-odds)))
    # The standard error of a slope is about 2/sqrt(n) per standard deviation of its feature: 5 of them.
    assert found(features) == pytest.approx(odds, abs=0.35)
    assert found.weights == pytest.approx([1.2, -0.8], abs=5 * 2.3 / 200)


def test_linear_regression_finds_the_plane_that_made_the_data():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(1000, 2)) * (3.0, 0.1) + (1.0, 5.0)
    values = 0.4 * features[:, 0] - 8.0 * (features[:, 1] - 5.0) - 0.5
    found = fit_linear(features, values)
    assert found(features) == pytest.approx(values, abs=1e-9)
    # What no plane gives stays: noise of deviation 1, and its mean within 5 standard errors.
    rest = fit_linear(features, values + generator.normal(size=1000))(features) - values
    assert abs(rest.mean()) < 5 / np.sqrt(1000) and rest.std() < 0.2
