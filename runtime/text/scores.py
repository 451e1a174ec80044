"""Scores of the tokens of a text under the model, computed from the logits before each token.

    log_probability = log softmax(logits)[token]
    calibrated      = log softmax(logits / temperature)[token]
    rank            = 1 + number of more probable tokens, ties by index
    entropy         = -Σ p log p                                        in nats, p = softmax(logits)
    tail            = Σ q over the tokens that are not more probable    q = softmax(logits / temperature)

The first two have the same bits as in `sampling.drawn_tokens`. The numbers of a row depend only on that row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.text.scores_numba import compile_kernels, score_rows


class TokenScores(NamedTuple):
    """Scores of N tokens under the model."""

    tokens: NDArray[np.int64]  # [N]
    log_probability: NDArray[np.float64]  # [N]
    calibrated: NDArray[np.float64]  # [N]
    rank: NDArray[np.int64]  # [N]
    entropy: NDArray[np.float64]  # [N]
    tail: NDArray[np.float64]  # [N]
    top_tokens: NDArray[np.int64]  # [N, k], the most probable tokens, best first, ties by index
    top_log_probabilities: NDArray[np.float64]  # [N, k]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the scores of successive parts of a text as one object."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def is_finite(self) -> bool:
        """Return whether all scores are finite."""
        return bool(np.isfinite(self.log_probability).all() and np.isfinite(self.calibrated).all())


def score_tokens(logits: NDArray[np.float32], tokens: Sequence[int], temperature: np.float32, top: int) -> TokenScores:
    """Return the scores of tokens `[N]`.

    Args:
        logits: Logits before each token, `[N, V]`.
        tokens: Tokens, `[N]`.
        temperature: Calibrated temperature.
        top: Number of most probable tokens to return.
    """
    chosen = np.asarray(tokens, np.int64)
    normaliser, calibrated, entropy, tail, rank = row_scores(logits, chosen, temperature).T
    own, best = logits[np.arange(len(chosen)), chosen], _best_tokens(logits, top)
    return TokenScores(
        chosen,
        own.astype(np.float64) - normaliser,
        (own / temperature).astype(np.float64) - calibrated,
        rank.astype(np.int64),
        entropy,
        tail,
        best,
        np.take_along_axis(logits, best, -1).astype(np.float64) - normaliser[:, None],
    )


def row_scores(logits: NDArray[np.float32], tokens: NDArray[np.int64], temperature: np.float32) -> NDArray[np.float64]:
    """Return the log normalisers, the entropy, the tail and the rank of each token, `[N, 5]`, in the order that
    `score_rows` defines. The normalisers do not depend on the tokens."""
    compile_kernels()
    out = np.empty((len(logits), 5))
    score_rows(np.ascontiguousarray(logits), tokens, np.float32(temperature), out)
    return out


def _best_tokens(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the `count` most probable tokens of each row in descending order. Ties are ordered by index."""
    if not count:
        return np.empty((len(logits), 0), np.int64)
    left, rows = logits.copy(), np.arange(len(logits))
    best = np.empty((len(logits), count), np.int64)
    for column in range(count):
        best[:, column] = left.argmax(-1)
        left[rows, best[:, column]] = -np.inf
    return best


def score_bytes(top: int) -> int:
    """Return the number of bytes that the scores of one token need."""
    return 64 + 32 * top
