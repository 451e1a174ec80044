"""Choosing the next token, repeatably: every draw is a function of (seed, sample, step) and of nothing else.

The generator is counter-based (Philox: Salmon et al., Parallel random numbers: as easy as 1, 2, 3), so that a draw does
not depend on what else is in the batch, on earlier draws, or on where a stream was interrupted and taken up.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Draw = Literal["token", "latent"]
Reals = NDArray[np.float32] | NDArray[np.float64]
SORTED_FIRST = 256
_DRAWS: dict[Draw, int] = {"token": 0, "latent": 1}


def generator(seed: int, sample: int, step: int, draw: Draw) -> np.random.Generator:
    """The random numbers of one draw at one step of one sample."""
    key = np.array([seed, sample], dtype=np.uint64)
    counter = np.array([0, _DRAWS[draw], step, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def log_normaliser(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """log Σ exp(logits) over the last axis: exponentials in float32, whose rounding is that of the logits, their sum in
    float64.
    """
    top = logits.max(axis=-1, keepdims=True)
    total: NDArray[np.float64] = np.log(np.exp(logits - top).sum(axis=-1, dtype=np.float64))
    return top[..., 0] + total


def filtered_probabilities(scores: Reals, temperature: float, top_k: int | None, top_p: float | None) -> Reals:
    """Probabilities `[V]` to draw from: temperature, then the k best, then the smallest set with mass top_p.

    Ties at the k-th place are all kept, so that the result does not depend on the order of tokens.

    Args:
        scores: log probabilities, or logits; the result has their precision.
    """
    with np.errstate(over="ignore", under="ignore"):
        # A temperature below the smallest number of this precision is as good as that: only the best are left.
        scaled = (scores - scores.max()) / max(temperature, float(np.finfo(scores.dtype).tiny))
        if top_k is not None and top_k < scaled.size:
            scaled = np.where(scaled >= np.partition(scaled, -top_k)[-top_k], scaled, -np.inf)
        weights = np.exp(scaled)
    weights /= weights.sum()
    if top_p is not None and top_p < 1:
        kept = _nucleus(weights, top_p)
        nucleus = np.zeros_like(weights)
        nucleus[kept] = weights[kept]
        weights = nucleus / nucleus.sum()
    return weights


def _nucleus(weights: Reals, top_p: float) -> NDArray[np.int64]:
    """Indices of the smallest set with mass `top_p`, best first, ties by index.

    Most of a vocabulary has next to no weight, so the best few are sorted first, and all only where those fall short.
    """
    for count in (SORTED_FIRST, weights.size):
        least = np.partition(weights, -count)[-count] if count < weights.size else 0.0
        best = np.flatnonzero(weights >= least)
        best = best[np.argsort(-weights[best], kind="stable")]
        before = np.cumsum(weights[best], dtype=np.float64) - weights[best]
        kept = best[before < top_p]
        if kept.size < best.size:
            break
    return kept


def draw_index(weights: Reals, uniform: float) -> int:
    """Index whose interval of the cumulative distribution holds `uniform` in [0, 1)."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    if index < weights.size and weights[index] > 0:
        return index
    return int(np.flatnonzero(weights)[-1])  # the product was rounded up to the last sum


def most_probable(scores: Reals, count: int) -> list[int]:
    """Indices of the `count` largest, best first, ties by index."""
    return [int(index) for index in np.argsort(-scores, kind="stable")[:count]]
