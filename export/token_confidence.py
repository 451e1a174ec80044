"""The probability that a token is the right next one: what calibration fits and the runtime applies. NumPy only.

    confidence = table( softmax(logits / temperature)[token] )

The table is monotone, linear between its points, and goes from (0, 0) to (1, 1). A bundle without one has confidence =
softmax(logits / temperature)[token].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class TokenConfidence:
    """The calibration of one decoding mode.

    Args:
        temperature: of the softmax.
        stated: probabilities at that temperature where the table has its points, rising.
        actual: how often tokens of these are right.
    """

    def __init__(
        self, temperature: float, stated: Sequence[float] = (0.0, 1.0), actual: Sequence[float] = (0.0, 1.0)
    ) -> None:
        # float32, as the logits are that it divides.
        self.temperature = np.float32(temperature)
        self.stated, self.actual = np.array(stated, np.float64), np.array(actual, np.float64)

    @classmethod
    def of(cls, calibration: Mapping[str, Any], mode: str) -> TokenConfidence:
        """That of a mode, from the content of calibration.json."""
        temperature, tables = calibration["temperature"][mode], calibration.get("confidence")
        if tables is None:
            return cls(temperature)
        return cls(temperature, tables[mode]["stated"], tables[mode]["actual"])

    def __call__(self, log_probability: Any) -> Any:
        """Of log softmax(logits / temperature)[token], which rounding may have put above 0."""
        return np.interp(np.exp(np.minimum(log_probability, 0.0)), self.stated, self.actual)
