"""Draws: repeatable, independent, and from the distribution asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rfa.runtime.text.logit_adjustments import AdjustedLogits, SamplingRules
from rfa.runtime.text.sampling import (
    Choice,
    chosen_token,
    draw_index,
    filtered_probabilities,
    generator,
    most_probable,
)

PROBABILITIES = np.array([0.5, 0.25, 0.15, 0.1])


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "expected"),
    [
        (1.0, None, None, [0.5, 0.25, 0.15, 0.1]),
        (0.5, None, None, np.array([0.25, 0.0625, 0.0225, 0.01]) / 0.345),
        (1.0, 2, None, [2 / 3, 1 / 3, 0, 0]),
        (1.0, None, 0.6, [2 / 3, 1 / 3, 0, 0]),
        (1.0, None, 0.5, [1, 0, 0, 0]),
        (1.0, None, 1e-9, [1, 0, 0, 0]),
        (1.0, 3, 0.9, np.array([0.5, 0.25, 0.15, 0]) / 0.9),
        (1e-300, None, None, [1, 0, 0, 0]),
        (100.0, 1, None, [1, 0, 0, 0]),
        (1.0, 99, 1.0, [0.5, 0.25, 0.15, 0.1]),
    ],
)
def test_filters(temperature: float, top_k: int | None, top_p: float | None, expected: list[float]) -> None:
    found = filtered_probabilities(np.log(PROBABILITIES), temperature, top_k, top_p)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(st.integers(0, 2**32), st.floats(0.001, 0.9999), st.sampled_from([0.01, 1.0, 5.0]), st.booleans())
def test_the_nucleus_is_that_of_a_sort_of_everything(seed: int, top_p: float, spread: float, has_ties: bool) -> None:
    logits = spread * np.random.default_rng(seed).standard_normal(1000)
    logits = np.round(logits) if has_ties else logits
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    mass, expected = 0.0, set()
    for index in sorted(range(1000), key=lambda index: (-weights[index], index)):
        if mass >= top_p:
            break
        expected.add(index)
        mass += weights[index]
    found = set(np.flatnonzero(filtered_probabilities(logits - logits.max(), 1.0, None, top_p)))
    # The two sums of a thousand weights may differ in their last bit.
    assert found == expected or abs(mass - top_p) < 1e-12 or abs(mass - weights[index] - top_p) < 1e-12


def test_the_nucleus_goes_by_scores_where_weights_round_to_one_number() -> None:
    """Which scores do so is another matter on every processor; their order is not."""
    scores = np.array([np.nextafter(np.float32(1), np.float32(0)), 1, 0], np.float32)
    found = filtered_probabilities(scores, 100.0, None, 0.3)
    np.testing.assert_array_equal(found, np.array([0, 1, 0], np.float32))


def test_ties_at_the_last_place_are_all_kept() -> None:
    found = filtered_probabilities(np.log([0.4, 0.2, 0.2, 0.2]), 1.0, 2, None)
    np.testing.assert_allclose(found, [0.4, 0.2, 0.2, 0.2])


@given(st.floats(0, 1, exclude_max=True))
def test_a_draw_never_has_probability_zero(uniform: float) -> None:
    weights = np.array([0.0, 0.3, 0.0, 0.7, 0.0])
    assert draw_index(weights, uniform) == (1 if uniform < 0.3 else 3)


@given(st.integers(0, 2**32), st.integers(1, 300), st.floats(0, 1, exclude_max=True), st.sampled_from("fd"))
def test_a_draw_is_the_first_whose_sum_exceeds_the_uniform(seed: int, size: int, uniform: float, kind: str) -> None:
    draw = np.random.default_rng(seed)
    weights = (draw.random(size) * (draw.random(size) < 0.3)).astype(kind)
    weights[draw.integers(size)] = 1
    exact = np.cumsum(weights.astype(np.longdouble))
    index = draw_index(weights, uniform)
    before, after = (exact[index] - weights[index]) / exact[-1], exact[index] / exact[-1]
    assert weights[index] > 0 and before - 1e-12 <= uniform <= after + 1e-12


def test_float32_scores_give_the_same_probabilities() -> None:
    logits = (8 * np.random.default_rng(0).standard_normal(4096)).astype(np.float32)
    for options in ((0.8, None, None), (0.8, 40, None), (1.3, None, 0.9), (1e-300, None, None)):
        found, exact = (filtered_probabilities(scores, *options) for scores in (logits, logits.astype(np.float64)))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, exact, atol=1e-6)


def test_draws_follow_the_distribution() -> None:
    draws = [draw_index(PROBABILITIES, generator(7, 0, step, "token").random()) for step in range(4000)]
    counts = np.bincount(draws, minlength=4)
    chi2 = ((counts - 4000 * PROBABILITIES) ** 2 / (4000 * PROBABILITIES)).sum()
    assert chi2 < 16.3  # 0.999 quantile of chi-squared with 3 degrees of freedom


def test_a_draw_depends_on_its_key_and_on_nothing_else() -> None:
    keys: list[tuple[int, int, int, Any]] = [
        (seed, sample, step, draw)
        for seed in (0, 2**64 - 1)
        for sample in (0, 1)
        for step in (0, 1)
        for draw in ("token", "latent")
    ]
    first = [generator(*key).random(8) for key in keys]
    again = [generator(*key).random(8) for key in reversed(keys)][::-1]
    np.testing.assert_array_equal(first, again)
    assert len({tuple(row) for row in first}) == len(keys)
    # Long draws of one step must not run into those of the next.
    assert not np.isin(generator(3, 0, 0, "latent").random(10_000), generator(3, 0, 1, "latent").random(10_000)).any()


def test_most_probable_is_ordered_with_ties_by_index() -> None:
    assert most_probable(np.log([0.2, 0.4, 0.2, 0.2]), 3).tolist() == [1, 0, 2]


def test_min_p_drops_what_is_below_its_share_of_the_largest() -> None:
    scores = np.log(PROBABILITIES)
    np.testing.assert_allclose(filtered_probabilities(scores, 1.0, None, None, 0.4), [2 / 3, 1 / 3, 0, 0])
    np.testing.assert_allclose(filtered_probabilities(scores, 1.0, None, None, 1.0), [1, 0, 0, 0])
    # Of the tempered distribution: at a high temperature all are near the largest.
    np.testing.assert_array_less(0, filtered_probabilities(scores, 10.0, None, None, 0.4))


def test_typical_p_keeps_the_surprises_nearest_to_the_entropy() -> None:
    weights = np.array([0.6, 0.2, 0.1, 0.1])
    # Entropy 1.09 nats; surprises .51, 1.61, 2.30, 2.30: the second is nearest, then the first.
    np.testing.assert_allclose(filtered_probabilities(np.log(weights), 1.0, None, None, None, 0.1), [0, 1, 0, 0])
    np.testing.assert_allclose(filtered_probabilities(np.log(weights), 1.0, None, None, None, 0.3), [0.75, 0.25, 0, 0])
    np.testing.assert_allclose(filtered_probabilities(np.log(weights), 1.0, 1, None, None, 0.5), [1, 0, 0, 0])


def changed(logits: list[float], prompt: list[int], text: list[int], **rules: Any) -> Any:
    adjusted = AdjustedLogits(SamplingRules(**rules), len(logits), prompt)
    for token in text:
        adjusted.add(token)
    return adjusted.of(np.array(logits, np.float32))


def test_rules_follow_their_equations() -> None:
    logits, prompt, text = [2.0, -2.0, 1.0, 3.0, -1.0], [0, 1], [2, 2, 4]
    found = changed(logits, prompt, text, repetition_penalty=2.0)
    np.testing.assert_array_equal(found, np.array([1, -4, 0.5, 3, -2], np.float32))
    found = changed(logits, prompt, text, frequency_penalty=0.5, presence_penalty=0.25)
    np.testing.assert_array_equal(found, np.array([2, -2, -0.25, 3, -1.75], np.float32))
    found = changed(logits, prompt, text, logit_bias={3: -4.0, 1: 6.0}, repetition_penalty=2.0)
    np.testing.assert_array_equal(found, np.array([1, 2, 0.5, -1, -2], np.float32))
    np.testing.assert_array_equal(changed(logits, [], [0] * 4, min_tokens=5, ends=(3,))[3], -np.inf)
    np.testing.assert_array_equal(changed(logits, [], [0] * 5, min_tokens=5, ends=(3,)), np.float32(logits))


@given(st.integers(0, 2**32), st.floats(0, 1, exclude_max=True))
def test_neutral_rules_choose_the_same_token(seed: int, uniform: float) -> None:
    draw = np.random.default_rng(seed)
    logits = (3 * draw.standard_normal(50)).astype(np.float32)
    neutral = SamplingRules(logit_bias={7: 0.0})
    assert neutral.are_neutral and not SamplingRules(min_tokens=1).are_neutral
    adjusted = AdjustedLogits(neutral, 50, [1, 2])
    adjusted.add(3)
    for options in ({}, {"temperature": 0.9, "top_k": 9, "top_p": 0.8, "uniform": uniform}):
        assert chosen_token(logits, Choice(**options)) == chosen_token(logits, Choice(**options, adjusted=adjusted))
