"""The confidence of a token: one formula where it is measured and where it is served."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rfa.runtime.bundle.token_confidence import TokenConfidence
from rfa.runtime.text.sampling import Choice, Draws, drawn_tokens


def served(logits: np.ndarray, uniform: float, confidence: TokenConfidence) -> tuple[int, float]:
    """A token that a step of the service draws, and its confidence."""
    draws = Draws([Choice(temperature=9.0, uniform=uniform)], confidence.temperature)
    (drawn,) = drawn_tokens(logits[None], np.zeros(1, np.float32), np.zeros((1, 1, 2), np.float32), draws)
    return drawn.token, float(confidence(drawn.calibrated))


@pytest.mark.parametrize(("mode", "temperature"), [("attention", 1.7), ("recurrent", 0.9)])
def test_the_service_gives_the_softmax_at_the_temperature(mode: str, temperature: float) -> None:
    confidence = TokenConfidence.of({"temperature": {"attention": 1.7, "recurrent": 0.9}}, mode)
    logits = 3 * np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    expected = torch.softmax(torch.from_numpy(logits).double() / temperature, -1).numpy()
    # Logits of up to 10 are rounded to 5e-7, their exponentials to as much of themselves.
    tokens = set()
    for row, row_expected in zip(logits, expected, strict=True):
        for uniform in np.arange(0, 1, 0.05):
            token, found = served(row, uniform, confidence)
            assert found == pytest.approx(row_expected[token], rel=5e-6)
            tokens.add(token)
    assert len(tokens) == 30
