"""How surprising the tokens of a text are: scores of given tokens under the model, from the logits before each.

    log_probability = log softmax(logits)[token]
    calibrated      = log softmax(logits / temperature)[token]
    rank            = 1 + tokens that are more probable, ties by index
    entropy         = -Σ p log p                                      in nats, p = softmax(logits)
    tail            = Σ q over the tokens not more probable than it   q = softmax(logits / temperature)

The first two have the bits of `sampling.drawn_tokens`. Every number of a row depends on that row only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.text.sampling import log_normaliser

# Rows that are scored at once: their logits fit into the cache.
BLOCK = 16


class TokenScores(NamedTuple):
    """Scores of N tokens."""

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
        """The parts in order; at least one."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def is_finite(self) -> bool:
        """Whether all scores are."""
        return bool(np.isfinite(self.log_probability).all() and np.isfinite(self.calibrated).all())


def score_tokens(logits: NDArray[np.float32], tokens: Sequence[int], temperature: np.float32, top: int) -> TokenScores:
    """Scores of tokens `[N]` given the logits `[N, V]` before each.

    Args:
        temperature: of the calibration.
        top: number of the most probable tokens to return.
    """
    chosen = np.asarray(tokens, np.int64)
    blocks = range(0, len(chosen), BLOCK)
    with np.errstate(all="ignore"):  # the caller checks `is_finite`
        parts = [_score_block(logits[i : i + BLOCK], chosen[i : i + BLOCK], temperature, top) for i in blocks]
    return TokenScores.joined(parts)


def _score_block(
    logits: NDArray[np.float32], chosen: NDArray[np.int64], temperature: np.float32, top: int
) -> TokenScores:
    rows = np.arange(len(chosen))
    scaled, own = logits / temperature, logits[rows, chosen]
    normaliser, scaled_normaliser = log_normaliser(logits), log_normaliser(scaled)
    rank = 1 + (logits > own[:, None]).sum(-1, dtype=np.int64)
    for row in np.flatnonzero((logits == own[:, None]).sum(-1) > 1):  # few tokens tie
        rank[row] += np.count_nonzero(logits[row, : chosen[row]] == own[row])
    centred = logits - normaliser[:, None].astype(np.float32)
    entropy = -(np.exp(centred) * centred).sum(-1, dtype=np.float64)
    scaled -= scaled_normaliser[:, None].astype(np.float32)
    tail = (np.exp(scaled) * (logits <= own[:, None])).sum(-1, dtype=np.float64)
    best = _best_tokens(logits, top)
    return TokenScores(
        chosen,
        own.astype(np.float64) - normaliser,
        (own / temperature).astype(np.float64) - scaled_normaliser,
        rank,
        np.maximum(entropy, 0),
        np.minimum(tail, 1),
        best,
        np.take_along_axis(logits, best, -1).astype(np.float64) - normaliser[:, None],
    )


def _best_tokens(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The `count` most probable tokens of each row, best first, ties by index."""
    left, rows = logits.copy(), np.arange(len(logits))
    best = np.empty((len(logits), count), np.int64)
    for column in range(count):
        best[:, column] = left.argmax(-1)
        left[rows, best[:, column]] = -np.inf
    return best


def score_bytes(top: int) -> int:
    """Memory of a token's scores."""
    return 64 + 32 * top
