"""Confidence and tail probability of a token. Calibration and runtime use this code, which needs only NumPy.

    confidence = softmax(logits / temperature)[token]
    tail       = P(surprise >= s) over held-out tokens, s = -log of the model's own tail probability

log P is linear in s between the points of the table, and the tail is exponential beyond the last point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15
# Number of held-out tokens beyond the last point of the tail table.
RAREST = 10


class TokenConfidence:
    """Computes calibrated confidences and tail probabilities of tokens in one decoding mode.

    Args:
        temperature: Divisor of the logits.
        tails: Fields `surprise`, `share` and `scale` of `tail_table`. If None, `tail` returns its argument.
    """

    def __init__(self, temperature: float, tails: Mapping[str, Any] | None = None) -> None:
        # float32, as the logits are.
        self.temperature = np.float32(temperature)
        self._tails = None
        if tails is not None:
            surprise, share = np.asarray(tails["surprise"]), np.asarray(tails["share"])
            self._tails = np.append(0.0, surprise), np.append(0.0, np.log(share)), float(tails["scale"])

    @classmethod
    def of(cls, calibration: Mapping[str, Any], mode: str) -> TokenConfidence:
        """Return the `TokenConfidence` of a mode, given the content of calibration.json."""
        return cls(calibration["temperature"][mode], calibration.get("modes", {}).get(mode, {}).get("tails"))

    def __call__(self, log_probability: Any) -> Any:
        """Return the confidence of a token.

        Args:
            log_probability: log softmax(logits / temperature)[token]. Rounding may make it positive.
        """
        return np.exp(np.minimum(log_probability, 0.0))

    def tail(self, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the calibrated tail probability of each token, `[n]`. It is the fraction of held-out tokens that are
        at least as surprising as this token.

        Args:
            probability: Tail probability of each token under the model, `[n]`.
        """
        if self._tails is None:
            return probability
        surprise, log_share, scale = self._tails
        s = -np.log(np.maximum(probability, np.finfo(np.float64).tiny))
        between = np.interp(s, surprise, log_share)
        return np.exp(between - np.maximum(s - surprise[-1], 0.0) / scale)  # type: ignore[no-any-return]


def tail_table(probability: NDArray[np.float64]) -> dict[str, Any]:
    """Return the tail table of a mode. It contains some surprises, the fraction of held-out tokens that have at least
    each of these surprises, and the mean excess of the surprises above the last one.

    Neighbouring fractions differ by a factor of about 2^(1/4). The last fraction is that of `RAREST` tokens.

    Args:
        probability: The model's own tail probability of each token, `[n]`.
    """
    ordered = np.sort(-np.log(np.maximum(probability, np.finfo(np.float64).tiny)))
    count = len(ordered)
    places = np.unique((count * 2.0 ** -np.arange(0.25, np.log2(max(count / RAREST, 2)), 0.25)).astype(int))[::-1]
    surprise = np.unique(ordered[count - places])
    surprise = surprise[surprise > 0] if (surprise > 0).any() else np.array([1.0])
    share = np.maximum((count - np.searchsorted(ordered, surprise)) / count, 0.5 / count)
    beyond = ordered[ordered > surprise[-1]] - surprise[-1]
    return {
        "surprise": surprise.tolist(),
        "share": share.tolist(),
        "scale": max(float(beyond.mean()) if len(beyond) else 1.0, 1e-3),
    }


def reliability(confidence: NDArray[Any], correct: NDArray[np.bool_], bins: int = BINS) -> dict[str, Any]:
    """Return the expected calibration error (ECE) as "ece". The lists "confidence", "accuracy" and "count" contain the
    mean confidence, the fraction of correct tokens and the number of tokens of each bin. The bins contain equally many
    tokens.

    Args:
        confidence: Confidence of each token, `[n]`.
        correct: Whether each token was correct, `[n]`.
        bins: Number of bins.
    """
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    stated = [float(confidence[part].mean()) for part in parts]
    actual = [float(correct[part].mean()) for part in parts]
    counts = [len(part) for part in parts]
    gaps = [count * abs(a - b) for count, a, b in zip(counts, stated, actual, strict=True)]
    return {"ece": sum(gaps) / len(order), "confidence": stated, "accuracy": actual, "count": counts}
