"""Tail probability of a score in its stream, which is learned from the stream alone.

The threshold u tracks the quantile of the scores s >= 0 that is exceeded by a fraction BODY of them,

    u ← u + u (1[s > u] - BODY) PACE / (n + START)          Robbins and Monro (1951)

where n is the number of scores so far, at most LONGEST. The excesses e = (s - u) / u update a posterior over
generalised Pareto tails on a grid of shapes ξ and scales σ:

    S(e) = Σ_c π_c (1 + ξ_c e / σ_c)^(-1/ξ_c)        log π_c ← (1 - 1/MEMORY) log π_c + log((1 - δ) f_c(e) + δ g(e))

The mixture S includes the uncertainty due to few excesses. δ g, a small fraction of a wide exponential distribution,
prevents one anomaly from excluding a tail permanently. No Pareto tail fits excesses that are nearly equal, such as
those of a heartbeat, so S is recalibrated. If S is correct, S(e) is uniform, and half of the mass below 2^-(j-1) is
below 2^-j. Each of these fractions is learned,

    q_j = (TREE_PRIOR / 2 + n_j) / (TREE_PRIOR + n_{j-1})     n_j: excesses with S ≤ 2^-j, forgotten over TREE_MEMORY

which is a Pólya tree (Lavine 1992) around S. With v = -log2 S(e) and its integer part j, the tail probability is

    p = BODY q_1 ⋯ q_j q_{j+1}^(v - j)

A stream stores u, the grid and the tree, which are a hundred numbers. Its first FIRST scores, or fewer if the caller
begins the tail earlier, are stored in place of the grid. The first u is their 1 - BODY quantile, in units of the noise
that has been learned by then.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit

FIELD = "tail.learned"
BODY = 0.1
PACE, START, LONGEST = 3.0, 40.0, 4000.0
# Largest number of scores before the first threshold.
FIRST = 80
# See `least_early`. From EARLY_FROM scores on, the largest of them is representative of the stream.
EARLY, EARLY_FROM = 0.1, 10
# Smallest threshold in standard deviations of the filter. A smaller score is not an excess.
LEAST_THRESHOLD = 0.01
SHAPES = np.array([-1.2, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6])
SCALES = np.geomspace(0.004, 4.0, 12)
# Prior mean and standard deviation of the shape and of the logarithm of the scale. The normal distribution has a scale
# of 0.3, most streams one from 0.1 to 1, and streams with rare bursts one up to 4.
SHAPE_MEAN, SHAPE_SPREAD = 0.05, 0.35
SCALE_MEAN, SCALE_SPREAD = np.log(0.3), 1.0
MEMORY = 1000.0
WIDE_SHARE, WIDE = 0.002, 3.0
HALVES = 16
TREE_PRIOR, TREE_MEMORY = 5.0, 2000.0
LEAST = 1e-15
LARGEST_SCORE = 1e12
# Columns: number of scores, u, quiet observations left after an alarm and its evidence (anomaly.py), the grid (log π
# without its prior) and the tree.
SEEN, THRESHOLD, QUIET, HELD, GRID = 0, 1, 2, 3, 4
TREE = GRID + len(SHAPES) * len(SCALES)
COLUMNS = TREE + HALVES + 1
_SHAPES, _SCALES = len(SHAPES), len(SCALES)
_PRIOR = np.add.outer(
    -((SHAPES - SHAPE_MEAN) ** 2) / (2 * SHAPE_SPREAD**2),
    -((np.log(SCALES) - SCALE_MEAN) ** 2) / (2 * SCALE_SPREAD**2),
)


@inline_jit
def _survival(excess, learns, learned):
    """Return the survival probability S(e) of an excess. If `learns` is true, update the posterior with the excess."""
    largest = -np.inf
    for i in range(_SHAPES):
        for j in range(_SCALES):
            largest = max(largest, _PRIOR[i, j] + learned[GRID + i * _SCALES + j])
    wide = max(WIDE_SHARE * np.exp(-excess / WIDE) / WIDE, LEAST)
    total, beyond = 0.0, 0.0
    for i in range(_SHAPES):
        for j in range(_SCALES):
            cell = GRID + i * _SCALES + j
            weight = np.exp(_PRIOR[i, j] + learned[cell] - largest)
            total += weight
            base, density = 1 + SHAPES[i] * excess / SCALES[j], wide
            if base > 0:  # otherwise, the excess is beyond the end of the tail
                survival = np.exp(-np.log(base) / SHAPES[i])
                beyond += weight * survival
                density += (1 - WIDE_SHARE) * survival / (base * SCALES[j])
            if learns:
                learned[cell] = (1 - 1 / MEMORY) * learned[cell] + np.log(density)
    return max(beyond / total, LEAST)


@inline_jit
def _share(survival, learned):
    """Return the fraction of the excesses whose survival probability is lower, according to the Pólya tree."""
    depth = -np.log2(survival)
    level = min(int(depth), HALVES - 1)
    share = 1.0
    for j in range(TREE, TREE + level):
        share *= (TREE_PRIOR / 2 + learned[j + 1]) / (TREE_PRIOR + learned[j])
    half = (TREE_PRIOR / 2 + learned[TREE + level + 1]) / (TREE_PRIOR + learned[TREE + level])
    return share * half ** (depth - level)


@inline_jit
def _count(survival, learned):
    """Add a survival probability to the Pólya tree."""
    depth = -np.log2(survival)
    for j in range(HALVES + 1):
        learned[TREE + j] = (1 - 1 / TREE_MEMORY) * learned[TREE + j] + (1.0 if depth >= j else 0.0)


@inline_jit
def has_begun(learned):
    """Return whether there is a threshold."""
    return learned[THRESHOLD] > 0


@inline_jit
def least_early(size, learned):
    """Return the least tail probability of a score before there is a threshold, because the scale of the model is only
    a first guess for the stream.

    It is EARLY / n for the n-th score. If the score is more than three times as large as all before, of which there are
    at least EARLY_FROM, it is that of a Pareto tail with exponent 2 beyond the largest, (largest / size)² / n, unless
    most scores were zero.

    Args:
        size: Score, in the unit of the stored ones.
        learned: State before the score, `[COLUMNS]`.
    """
    largest, positive, seen = 0.0, 0, min(max(int(learned[SEEN]), 0), FIRST)
    for k in range(seen):
        stored = np.float64(learned[GRID + k])
        largest = max(largest, stored)
        positive += 1 if stored > 0 else 0
    share = EARLY
    if seen >= EARLY_FROM and 2 * positive > seen and size > largest:
        share = min(share, (largest / size) ** 2)
    return share / (seen + 1)


@inline_jit
def begin_tail(noise, learned):
    """Compute the first threshold from the stored scores, and clear the grid that contained them. The fraction BODY of
    the scores is above it."""
    for _ in range(int(min(BODY * learned[SEEN], FIRST)) + 1):
        largest = 0
        for k in range(1, FIRST):
            if learned[GRID + k] > learned[GRID + largest]:
                largest = k
        learned[THRESHOLD] = max(learned[GRID + largest] / noise, LEAST_THRESHOLD)
        learned[GRID + largest] = -1.0
    for k in range(FIRST):
        learned[GRID + k] = 0.0


@inline_jit
def learn_tail_probability(score, noise, learns, learned):
    """Return the tail probability p of a score given the scores before it. Then update `learned` with the score.

    Args:
        score: Score, >= 0.
        noise: Unit of the score.
        learns: Whether to update `learned`.
        learned: State, `[COLUMNS]`.

    Returns:
        p. It is 1 for scores up to u, and before there is a u.
    """
    if not has_begun(learned):
        if learns:
            # The number may be negative or too large, because states may come from arbitrary bytes.
            learned[GRID + min(max(int(learned[SEEN]), 0), FIRST - 1)] = score * noise
            learned[SEEN] += 1
            if learned[SEEN] >= FIRST:
                begin_tail(noise, learned)
        return 1.0
    threshold, p = learned[THRESHOLD], 1.0
    if score > threshold:
        survival = _survival(score / threshold - 1, learns, learned)
        p = BODY * _share(survival, learned)
        if learns:
            _count(survival, learned)
    if learns:
        step = ((1.0 if score > threshold else 0.0) - BODY) * PACE / (learned[SEEN] + START)
        learned[SEEN] = min(learned[SEEN] + 1, LONGEST)
        learned[THRESHOLD] = max(threshold * (1 + step), LEAST_THRESHOLD)
    return p
