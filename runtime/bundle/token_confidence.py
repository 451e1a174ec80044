"""Confidence of a token and its calibration error, computed alike in calibration and runtime. NumPy only.

confidence = softmax(logits / temperature)[token]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15


class TokenConfidence:
    """The calibration of one decoding mode: the temperature of the softmax."""

    def __init__(self, temperature: float) -> None:
        # float32, like the logits.
        self.temperature = np.float32(temperature)

    @classmethod
    def of(cls, calibration: Mapping[str, Any], mode: str) -> TokenConfidence:
        """Return the confidence of a mode, from the content of calibration.json."""
        return cls(calibration["temperature"][mode])

    def __call__(self, log_probability: Any) -> Any:
        """Compute from log softmax(logits / temperature)[token], which rounding may put above 0."""
        return np.exp(np.minimum(log_probability, 0.0))


def reliability(confidence: NDArray[Any], correct: NDArray[np.bool_], bins: int = BINS) -> dict[str, Any]:
    """Return ECE, and mean confidence, share correct and count of bins of equal mass, by ascending confidence."""
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    stated = [float(confidence[part].mean()) for part in parts]
    actual = [float(correct[part].mean()) for part in parts]
    counts = [len(part) for part in parts]
    gaps = [count * abs(a - b) for count, a, b in zip(counts, stated, actual, strict=True)]
    return {"ece": sum(gaps) / len(order), "confidence": stated, "accuracy": actual, "count": counts}
