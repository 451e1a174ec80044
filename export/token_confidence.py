"""The probability that a token is the right next one: what calibration fits and the runtime applies. NumPy only.

confidence = softmax(logits / temperature)[token]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class TokenConfidence:
    """The calibration of one decoding mode: the temperature of the softmax."""

    def __init__(self, temperature: float) -> None:
        # float32, as the logits are that it divides.
        self.temperature = np.float32(temperature)

    @classmethod
    def of(cls, calibration: Mapping[str, Any], mode: str) -> TokenConfidence:
        """That of a mode, from the content of calibration.json."""
        return cls(calibration["temperature"][mode])

    def __call__(self, log_probability: Any) -> Any:
        """Of log softmax(logits / temperature)[token], which rounding may have put above 0."""
        return np.exp(np.minimum(log_probability, 0.0))
