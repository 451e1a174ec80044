"""How rare a score is on its own stream: a tail probability that comes true, learned from the stream alone.

Of scores s (not negative, larger is stranger) a threshold u is followed that a share BODY lies above,

    u ← u + u (1[s > u] - BODY) PACE / (n + START)          Robbins and Monro (1951)

and of the excesses e = (s - u) / u the posterior over generalised Pareto tails, on a grid of shapes ξ and scales σ:

    S(e) = Σ_c π_c (1 + ξ_c e / σ_c)^(-1/ξ_c)        log π_c ← (1 - 1/MEMORY) log π_c + log((1 - δ) f_c(e) + δ g(e))

The mixture S allows for what so few excesses leave open, and δ g, a little of a wide exponential, keeps one anomaly
from ruling a tail out for good. Where excesses are alike (a heart beats) no Pareto tail fits; so S is held against what
came. If it is right, S(e) is uniform: below 2^-j lies half of what is below 2^-(j-1). Each of these halves is learned,

    q_j = (PRIOR / 2 + n_j) / (PRIOR + n_{j-1})      n_j: excesses with S ≤ 2^-j, forgotten over TREE_MEMORY of them

a Pólya tree (Lavine 1992) around S. With v = -log2 S(e) and j its integer part, the tail probability is

    p = BODY q_1 ⋯ q_j q_{j+1}^(v - j)               1 at or below u

A stream's memory is u, the grid and the tree, some hundred numbers, whatever its length.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numba
import numpy as np

Array = np.ndarray

BODY = 0.1
PACE, START, LONGEST = 3.0, 40.0, 4000.0
# Scores from which the first threshold is read.
FIRST = 40
SHAPES = np.array([-1.2, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6])
SCALES = np.geomspace(0.004, 4.0, 12)
# Of the shape before any excess: its mean and spread.
SHAPE_MEAN, SHAPE_SPREAD = 0.05, 0.35
MEMORY = 1000.0
WIDE_SHARE, WIDE = 0.002, 3.0
HALVES = 16
PRIOR, TREE_MEMORY = 5.0, 2000.0
LEAST = 1e-15
_LOG_SHAPES = -((SHAPES - SHAPE_MEAN) ** 2) / (2 * SHAPE_SPREAD**2)


@numba.njit(cache=True)
def _tail(excess, scale, shape):
    """Log of the survival and of the density of a generalised Pareto; -inf beyond its end."""
    place = 1 + shape * excess / scale
    if place <= 0:
        return -np.inf, -np.inf
    log_place = math.log(place)
    return -log_place / shape, -math.log(scale) - (1 + 1 / shape) * log_place


@numba.njit(cache=True)
def _survival(excess, evidence, shapes, scales):
    """Of the mixture by its log weights `[shapes, scales]`."""
    largest, total, found = evidence.max(), 0.0, 0.0
    for i in range(len(shapes)):
        for j in range(len(scales)):
            weight = math.exp(evidence[i, j] - largest)
            total += weight
            found += weight * math.exp(_tail(excess, scales[j], shapes[i])[0])
    return max(found / total, LEAST)


@numba.njit(cache=True)
def _learn(excess, evidence, prior, shapes, scales):
    wide = WIDE_SHARE * math.exp(-excess / WIDE) / WIDE
    for i in range(len(shapes)):
        for j in range(len(scales)):
            density = (1 - WIDE_SHARE) * math.exp(_tail(excess, scales[j], shapes[i])[1]) + wide
            said = (1 - 1 / MEMORY) * (evidence[i, j] - prior[i])
            evidence[i, j] = prior[i] + said + math.log(density)


@numba.njit(cache=True)
def _recalibrated(survival, counts):
    """What share of the excesses lies below this survival, by the tree; its counts take the new one in."""
    place = -math.log2(survival)
    level = min(int(place), HALVES - 1)
    share = 1.0
    for j in range(level):
        share *= (PRIOR / 2 + counts[j + 1]) / (PRIOR + counts[j])
    half = (PRIOR / 2 + counts[level + 1]) / (PRIOR + counts[level])
    for j in range(HALVES + 1):
        counts[j] = (1 - 1 / TREE_MEMORY) * counts[j] + (1.0 if place >= j else 0.0)
    return share * half ** (place - level)


@numba.njit(cache=True)
def _probabilities(scores, prior, shapes, scales):
    found = np.ones(len(scores))
    evidence = np.zeros((len(shapes), len(scales))) + prior.reshape(-1, 1)
    counts = np.zeros(HALVES + 1)
    threshold, seen = 0.0, 0.0
    first = np.empty(FIRST)
    for t in range(len(scores)):
        score = scores[t]
        if np.isnan(score):
            continue
        if seen < FIRST:
            first[int(seen)] = score
            seen += 1
            if seen == FIRST:
                threshold = max(np.quantile(first, 1 - BODY), LEAST)
            continue
        is_above = score > threshold
        if is_above:
            excess = (score - threshold) / threshold
            found[t] = BODY * _recalibrated(_survival(excess, evidence, shapes, scales), counts)
            _learn(excess, evidence, prior, shapes, scales)
        seen = min(seen + 1, LONGEST)
        threshold *= 1 + ((1.0 if is_above else 0.0) - BODY) * PACE / (seen + START)
    return found


def tail_probabilities(scores: Array) -> Array:
    """How rare each score is among those of its stream before it, `[N]`; see the module's page.

    Args:
        scores: `[N]`, not negative; NaN where there is none, which teaches nothing.
    """
    given = np.ascontiguousarray(scores, np.float64)
    if given.ndim != 1 or (given < 0).any() or np.isinf(given).any():
        raise ValueError("scores must be [N], finite or NaN, and not negative")
    found: Array = _probabilities(given, _LOG_SHAPES, SHAPES, SCALES)
    return found
