"""The confidence of a token: one formula where it is measured and where it is served."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rfa.export.token_confidence import TokenConfidence
from rfa.service.engine.text.decode import _Step
from rfa.service.engine.text.sampling import log_normaliser


def served(logits: np.ndarray, token: int, confidence: TokenConfidence) -> float:
    """As a step of the service gives it."""
    calibrated = float(log_normaliser((logits / confidence.temperature).astype(np.float32)))
    advance, latent = None, np.zeros((1, 2), np.float32)
    return _Step(advance, latent, logits, 0.0, confidence, calibrated, True).confidence(token)  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "temperature"), [("attention", 1.7), ("recurrent", 0.9)])
def test_the_service_gives_the_softmax_at_the_temperature(mode: str, temperature: float) -> None:
    confidence = TokenConfidence.of({"temperature": {"attention": 1.7, "recurrent": 0.9}}, mode)
    logits = 3 * np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    expected = torch.softmax(torch.from_numpy(logits).double() / temperature, -1).numpy()
    # Logits of up to 10 are rounded to 5e-7, their exponentials to as much of themselves.
    found = [[served(row, token, confidence) for token in range(30)] for row in logits]
    np.testing.assert_allclose(found, expected, rtol=5e-6)


def test_a_certain_token_is_not_more_than_certain() -> None:
    logits = np.array([80.0, 0.0, -3.0], np.float32)
    confidence = TokenConfidence(0.7)
    assert served(logits, 0, confidence) == 1.0
    assert confidence(1e-7) == 1.0
