"""The table of tails: shares of held-out tokens, an exponential beyond, and tails as they are without it."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.runtime.bundle.token_confidence import RAREST, TokenConfidence, tail_table


def test_a_share_of_the_held_out_tokens_is_as_surprising() -> None:
    surprise = np.random.default_rng(0).exponential(2.0, 20_000)
    confidence = TokenConfidence(1.0, tail_table(np.exp(-surprise)))
    for share in (0.3, 0.01, 0.001):
        found = confidence.tail(np.exp(-surprise))
        assert (found <= share).mean() == pytest.approx(share, rel=0.1)
    # exp(-s / 2) of this law, also beyond the table.
    beyond = confidence.tail(np.exp(-np.array([0.0, 4.0, 30.0])))
    assert beyond[0] == 1 and np.log(beyond[1:]) == pytest.approx([-2.0, -15.0], rel=0.3)
    assert (np.diff(confidence.tail(np.linspace(1e-12, 1, 1000))) >= 0).all()


def test_tokens_of_few_values_have_the_share_of_theirs() -> None:
    tails = np.repeat([1.0, 0.5, 1e-4], [900, 90, 3 * RAREST])
    confidence = TokenConfidence(1.0, tail_table(tails))
    found = confidence.tail(np.array([1.0, 0.5, 1e-4, 1e-12]))
    count = len(tails)
    assert found[0] == 1 and found[1] == pytest.approx((count - 900) / count)
    assert found[2] == pytest.approx(3 * RAREST / count) and 0 <= found[3] < found[2]


@pytest.mark.parametrize("tails", [np.ones(100), np.full(3, 0.5), np.full(100, 0.0)])
def test_any_held_out_tokens_make_a_table(tails: np.ndarray) -> None:
    table = tail_table(tails)
    assert len(table["surprise"]) == len(table["share"]) >= 1 and table["scale"] > 0
    assert np.isfinite(TokenConfidence(1.0, table).tail(np.array([0.0, 1e-300, 0.5, 1.0]))).all()


def test_without_a_table_tails_stay() -> None:
    assert TokenConfidence(1.0).tail(np.array([0.25])).tolist() == [0.25]
