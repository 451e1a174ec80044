"""Scores of given tokens against their definitions in float64."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rfa.runtime.text.scores import row_scores, score_tokens


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(2, 300), st.booleans(), st.sampled_from([1.0, 1.7]))
def test_scores_follow_their_equations(seed: int, rows: int, size: int, has_ties: bool, warmth: float) -> None:
    draw = np.random.default_rng(seed)
    logits = (4 * draw.standard_normal((rows, size))).astype(np.float32)
    logits = np.round(logits) if has_ties else logits
    tokens, top = draw.integers(0, size, rows).tolist(), min(4, size)
    temperature = np.float32(warmth)
    found = score_tokens(logits, tokens, temperature, top)
    for row, token in enumerate(tokens):
        exact = logits[row].astype(np.float64)
        p, q = (np.exp(scores - scores.max()) for scores in (exact, exact / temperature))
        p, q = p / p.sum(), q / q.sum()
        order = np.argsort(-exact, kind="stable").tolist()
        assert found.rank[row] == 1 + order.index(token)
        assert found.top_tokens[row].tolist() == order[:top]
        assert abs(found.log_probability[row] - np.log(p[token])) < 1e-5
        assert abs(found.calibrated[row] - np.log(q[token])) < 1e-5
        assert abs(found.entropy[row] + (p * np.log(p)).sum()) < 1e-4
        assert abs(found.tail[row] - q[exact <= exact[token]].sum()) < 1e-5 * (1 + found.tail[row])
    assert found.is_finite() and (found.tail <= 1).all() and (found.entropy >= 0).all()


def test_small_tails_keep_their_digits() -> None:
    logits = np.zeros((1, 1000), np.float32)
    logits[0, 3], logits[0, 4] = -30, -31
    exact = (np.exp(-30.0) + np.exp(-31.0)) / (998 + np.exp(-30.0) + np.exp(-31.0))
    assert abs(score_tokens(logits, [3], np.float32(1), 0).tail[0] / exact - 1) < 1e-5


def test_a_row_is_scored_alone() -> None:
    logits = (4 * np.random.default_rng(0).standard_normal((50, 5000))).astype(np.float32)
    tokens = list(range(50))
    together = score_tokens(logits, tokens, np.float32(1.3), 2)
    for row in range(50):
        alone = score_tokens(logits[row : row + 1], tokens[row : row + 1], np.float32(1.3), 2)
        assert [part[0].tolist() for part in alone] == [part[row].tolist() for part in together]


def test_a_row_that_is_not_finite_says_so() -> None:
    for broken in (np.nan, np.inf):
        logits = np.zeros((2, 5), np.float32)
        logits[1, 2] = broken
        assert not score_tokens(logits, [0, 1], np.float32(1), 1).is_finite()


def test_normalisers_are_exact_to_the_rounding_of_the_logits() -> None:
    logits = (8 * np.random.default_rng(0).standard_normal((5, 4096))).astype(np.float32)
    exact = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    found = row_scores(logits, np.zeros(5, np.int64), np.float32(1))[:, 0]
    assert np.abs(found - exact).max() <= np.finfo(np.float32).eps
