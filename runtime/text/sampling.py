"""Choose the next token reproducibly. Every draw depends only on (seed, sample, step).

The random generator is counter-based (Philox; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). A draw
therefore does not depend on the rest of the batch, on earlier draws, or on where a stream was interrupted.

Runtimes whose logits are on a device choose tokens there (`rfa.runtime.gpu.draw`), with uniform numbers from this
module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.text.logit_adjustments import AdjustedLogits
from rfa.runtime.text.scores import row_scores

Draw = Literal["token", "latent"]
Reals = NDArray[np.float32] | NDArray[np.float64]
SORTED_FIRST = 256
_DRAWS: dict[Draw, int] = {"token": 0, "latent": 1}


@dataclass(frozen=True, slots=True)
class Choice:
    """Options for choosing the next token of a row, and the requested outputs.

    Args:
        temperature: Temperature greater than 0. None chooses the most probable token. If several are equally probable,
            the first one is chosen.
        top_k, top_p, min_p, typical_p: See `filtered_probabilities`.
        with_latent: Whether to return the latent.
        uniform: Number in [0, 1) for `draw_index`.
        top: Number of most probable tokens to return.
        adjusted: Object that changes the logits before the choice. The returned log probabilities are those before the
            change.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    with_latent: bool = False
    uniform: float = 0.0
    top: int = 0
    adjusted: AdjustedLogits | None = None

    @property
    def needs_host(self) -> bool:
        """Whether the options require `chosen_token`, so that the token cannot be drawn on a device."""
        return not (self.min_p is None and self.typical_p is None and self.adjusted is None)


@dataclass(frozen=True)
class Draws:
    """Choices for the rows of a step, and the temperature at which the confidence is calibrated."""

    choices: Sequence[Choice]
    calibration: np.float32

    @property
    def are_ranked(self) -> bool:
        """Whether any row requests its most probable tokens."""
        return any(choice.top > 0 for choice in self.choices)

    @property
    def are_filtered(self) -> bool:
        """Whether any row uses `top_k` or `top_p`."""
        return any(
            choice.temperature is not None and not (choice.top_k is None and choice.top_p is None)
            for choice in self.choices
        )


@dataclass(frozen=True, slots=True)
class TopLogits:
    """The most probable tokens of a row with their log probabilities. The best token is first, and ties are ordered by
    index."""

    tokens: NDArray[np.int64]
    log_probabilities: NDArray[np.float64]


class DrawnToken(NamedTuple):
    """The chosen token of one row of a step, with its probabilities.

    Attributes:
        token: The chosen token. It is 0 if the row is not finite.
        log_probability: Log probability of the token under the model, without temperature and filters.
        calibrated: Log probability of the token at the calibrated temperature.
        is_finite: Whether all numbers of the row's output are finite.
        top: Most probable tokens. None unless requested.
        latent: Latent, `[H, 2D]`. None unless requested. It may be a view into the array of the batch.
    """

    token: int
    log_probability: float
    calibrated: float
    is_finite: bool
    top: TopLogits | None
    latent: NDArray[np.float32] | None


def drawn_tokens(
    logits: NDArray[np.float32], log_precision: NDArray[np.float32], latent: NDArray[np.float32], draws: Draws
) -> list[DrawnToken]:
    """Choose a token in every row of a step's output.

    Args:
        logits: Logits, `[B, V]`.
        log_precision: Log precision, `[B]`.
        latent: Latent, `[B, H, 2D]`.
        draws: Choices for the rows.
    """
    normaliser, calibrated = row_scores(logits, np.zeros(len(logits), np.int64), draws.calibration).T[:2]
    with np.errstate(all="ignore"):  # `is_finite` reports non-finite rows
        finite = np.isfinite(logits).all(-1) & np.isfinite(normaliser + calibrated + log_precision)
        finite &= np.isfinite(latent).all((1, 2))
    drawn = []
    for row, choice in enumerate(draws.choices):
        token, top = 0, None
        if finite[row]:
            token = chosen_token(logits[row], choice)
            top = _top_logits(logits[row], float(normaliser[row]), choice.top)
        own = logits[row, token]
        drawn.append(
            DrawnToken(
                token,
                float(own) - float(normaliser[row]),
                float(own / draws.calibration) - float(calibrated[row]),
                bool(finite[row]),
                top,
                latent[row] if choice.with_latent else None,
            )
        )
    return drawn


def chosen_token(logits: NDArray[np.float32], choice: Choice) -> int:
    """Return the token that is chosen from logits `[V]`."""
    if choice.adjusted is not None:
        logits = choice.adjusted.of(logits)
    if choice.temperature is None:
        return int(np.argmax(logits))
    filters = choice.top_k, choice.top_p, choice.min_p, choice.typical_p
    return draw_index(filtered_probabilities(logits, choice.temperature, *filters), choice.uniform)


def generator(seed: int, sample: int, step: int, draw: Draw) -> np.random.Generator:
    """Return the random generator for one draw.

    Args:
        seed: Seed of the request.
        sample: Index of the continuation.
        step: Position of the token in the stream.
        draw: Kind of draw: "token" or "latent".
    """
    key = np.array([seed, sample], dtype=np.uint64)
    counter = np.array([0, _DRAWS[draw], step, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def filtered_probabilities(
    scores: Reals,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None = None,
    typical_p: float | None = None,
) -> Reals:
    """Return the probabilities `[V]` to draw from.

    The temperature is applied first, then `min_p`, `top_k`, `top_p` and `typical_p`. `top_k` retains the k best tokens,
    and `top_p` the smallest set of best tokens with this mass. `min_p` drops tokens with less than this fraction of the
    largest probability. `typical_p` retains the smallest set with this mass, preferring tokens whose surprise -log p is
    closest to the entropy.

    All ties at the k-th position are retained, so that the result does not depend on the order of tokens. Ties in the
    other sets are broken by index. Tokens are ordered by score, because scores are equal on all processors. Their
    exponentials are not, and different scores may have equal exponentials.

    Args:
        scores: Log probabilities or logits, `[V]`. The result has the same dtype.
        temperature, top_k, top_p, min_p, typical_p: Options of the request. None disables a filter.
    """
    with np.errstate(over="ignore", under="ignore"):
        # A temperature below the smallest number of this precision has the same effect: only the best tokens remain.
        scaled = (scores - scores.max()) / max(temperature, float(np.finfo(scores.dtype).tiny))
        if min_p is not None:
            scaled = np.where(scaled >= math.log(min_p), scaled, -np.inf)
        if top_k is not None and top_k < scaled.size:
            scaled = np.where(scaled >= np.partition(scaled, -top_k)[-top_k], scaled, -np.inf)
        weights = np.exp(scaled)
    weights /= weights.sum()
    if top_p is not None and top_p < 1:
        weights = _only(weights, _nucleus(weights, scores, top_p))
    if typical_p is not None:
        weights = _only(weights, _typical(weights, typical_p))
    return weights


def _only(weights: Reals, kept: NDArray[np.int64]) -> Reals:
    """Return probabilities that are proportional to `weights` for the tokens `kept` and 0 for the others."""
    few = np.zeros_like(weights)
    few[kept] = weights[kept]
    return few / few.sum()


def _typical(weights: Reals, typical_p: float) -> NDArray[np.int64]:
    """Return the indices of the smallest set with mass `typical_p`. Tokens whose surprise is closest to the entropy are
    first, and ties are ordered by index."""
    possible = np.flatnonzero(weights)
    surprise = -np.log(weights[possible].astype(np.float64))
    distance = np.abs(surprise - (weights[possible] * surprise).sum())
    order = possible[np.argsort(distance, kind="stable")]
    before = np.cumsum(weights[order], dtype=np.float64) - weights[order]
    return order[before < typical_p]


def _nucleus(weights: Reals, scores: Reals, top_p: float) -> NDArray[np.int64]:
    """Return the indices of the smallest set of the best tokens with mass `top_p`. Ties are ordered by index.

    Most tokens have almost no weight, so only the best tokens are sorted at first. All tokens are sorted if the mass of
    the sorted ones is not sufficient.
    """
    for count in (SORTED_FIRST, weights.size):
        least = np.partition(scores, -count)[-count] if count < scores.size else -np.inf
        best = np.flatnonzero(scores >= least)
        best = best[np.argsort(-scores[best], kind="stable")]
        before = np.cumsum(weights[best], dtype=np.float64) - weights[best]
        kept = best[before < top_p]
        if kept.size < best.size:
            break
    return kept


def draw_index(weights: Reals, uniform: float) -> int:
    """Return the index whose interval of the cumulative distribution contains `uniform`, a number in [0, 1)."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    if index < weights.size and weights[index] > 0:
        return index
    return int(np.flatnonzero(weights)[-1])  # the product was rounded up to the total


def most_probable(scores: Reals, count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` largest scores in descending order. Ties are ordered by index."""
    return np.argsort(-scores, kind="stable")[:count]


def _top_logits(logits: NDArray[np.float32], normaliser: float, count: int) -> TopLogits | None:
    if count == 0:
        return None
    tokens = most_probable(logits, count)
    return TopLogits(tokens, logits[tokens].astype(np.float64) - normaliser)
