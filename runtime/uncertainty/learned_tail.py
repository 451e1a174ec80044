"""How rare a score is on its own stream: a tail probability that comes true, learned from the stream alone.

Of scores s (not negative, larger is stranger) a threshold u is followed that a share BODY lies above,

    u ← u + u (1[s > u] - BODY) PACE / (n + START)          Robbins and Monro (1951)

with n the scores so far, at most LONGEST. Of the excesses e = (s - u) / u the
posterior over generalised Pareto tails is kept, on a grid of shapes ξ and scales σ:

    S(e) = Σ_c π_c (1 + ξ_c e / σ_c)^(-1/ξ_c)        log π_c ← (1 - 1/MEMORY) log π_c + log((1 - δ) f_c(e) + δ g(e))

The mixture S allows for what so few excesses leave open, and δ g, a little of a wide exponential, keeps one anomaly
from ruling a tail out for good. Where excesses are alike (a heart beats) no Pareto tail fits; so S is held against what
came. If it is right, S(e) is uniform: below 2^-j lies half of what is below 2^-(j-1). Each of these halves is learned,

    q_j = (TREE_PRIOR / 2 + n_j) / (TREE_PRIOR + n_{j-1})     n_j: excesses with S ≤ 2^-j, forgotten over TREE_MEMORY

a Pólya tree (Lavine 1992) around S. With v = -log2 S(e) and j its integer part, the tail probability is

    p = BODY q_1 ⋯ q_j q_{j+1}^(v - j)

A stream's memory is u, the grid and the tree, a hundred numbers, whatever its length. Its first scores are kept where
the grid will be, and u is read from them, in units of the noise that is known by then.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import part

FIELD = "tail.learned"
BODY = 0.1
PACE, START, LONGEST = 3.0, 40.0, 4000.0
# Scores from which the first threshold is read: it is the `ABOVE`-th largest.
FIRST, ABOVE = 80, 9
# In units of what the filter expects: what is that small is no excess.
LEAST_THRESHOLD = 0.01
SHAPES = np.array([-1.2, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6])
SCALES = np.geomspace(0.004, 4.0, 12)
# Of the shape before any excess: its mean and spread.
SHAPE_MEAN, SHAPE_SPREAD = 0.05, 0.35
MEMORY = 1000.0
WIDE_SHARE, WIDE = 0.002, 3.0
HALVES = 16
TREE_PRIOR, TREE_MEMORY = 5.0, 2000.0
LEAST = 1e-15
LARGEST_SCORE = 1e12
# Columns: scores so far, u, quiet observations to come after an alarm and its evidence (scoring.py), the grid (log π
# beside its prior) and the tree.
SEEN, THRESHOLD, QUIET, HELD, GRID = 0, 1, 2, 3, 4
TREE = GRID + len(SHAPES) * len(SCALES)
COLUMNS = TREE + HALVES + 1
_SHAPES, _SCALES = len(SHAPES), len(SCALES)
_PRIOR = -((SHAPES - SHAPE_MEAN) ** 2) / (2 * SHAPE_SPREAD**2)


@part
def _survival(excess, teaches, learned):
    """S(e), and the excess taken into the posterior."""
    largest = -np.inf
    for i in range(_SHAPES):
        for j in range(_SCALES):
            largest = max(largest, _PRIOR[i] + learned[GRID + i * _SCALES + j])
    wide = max(WIDE_SHARE * np.exp(-excess / WIDE) / WIDE, LEAST)
    total, beyond = 0.0, 0.0
    for i in range(_SHAPES):
        for j in range(_SCALES):
            cell = GRID + i * _SCALES + j
            weight = np.exp(_PRIOR[i] + learned[cell] - largest)
            total += weight
            place, density = 1 + SHAPES[i] * excess / SCALES[j], wide
            if place > 0:  # else it lies beyond the tail's end
                survival = np.exp(-np.log(place) / SHAPES[i])
                beyond += weight * survival
                density += (1 - WIDE_SHARE) * survival / (place * SCALES[j])
            if teaches:
                learned[cell] = (1 - 1 / MEMORY) * learned[cell] + np.log(density)
    return max(beyond / total, LEAST)


@part
def _share(survival, learned):
    """What share of the excesses lies below this survival, by the tree."""
    place = -np.log2(survival)
    level = min(int(place), HALVES - 1)
    share = 1.0
    for j in range(TREE, TREE + level):
        share *= (TREE_PRIOR / 2 + learned[j + 1]) / (TREE_PRIOR + learned[j])
    half = (TREE_PRIOR / 2 + learned[TREE + level + 1]) / (TREE_PRIOR + learned[TREE + level])
    return share * half ** (place - level)


@part
def _count(survival, learned):
    """Take a survival into the tree."""
    place = -np.log2(survival)
    for j in range(HALVES + 1):
        learned[TREE + j] = (1 - 1 / TREE_MEMORY) * learned[TREE + j] + (1.0 if place >= j else 0.0)


@part
def _begin(noise, learned):
    """Read the first threshold from the first scores, and clear the grid that held them."""
    for _ in range(ABOVE):
        largest = 0
        for k in range(1, FIRST):
            if learned[GRID + k] > learned[GRID + largest]:
                largest = k
        learned[THRESHOLD] = max(learned[GRID + largest] / noise, LEAST_THRESHOLD)
        learned[GRID + largest] = -1.0
    for k in range(FIRST):
        learned[GRID + k] = 0.0


@part
def learn_tail_probability(score, noise, teaches, learned):
    """p of a score by what came before it, and the score taken into what is learned.

    Args:
        noise: the unit of the score.
        teaches: what does not leaves all as it is.
        learned: `[COLUMNS]`.

    Returns:
        p; 1 up to u, where nothing is told, as before there is a u.
    """
    if learned[SEEN] < FIRST:
        if teaches:
            learned[GRID + int(learned[SEEN])] = score * noise
            learned[SEEN] += 1
            if learned[SEEN] == FIRST:
                _begin(noise, learned)
        return 1.0
    threshold, p = learned[THRESHOLD], 1.0
    if score > threshold:
        survival = _survival(score / threshold - 1, teaches, learned)
        p = BODY * _share(survival, learned)
        if teaches:
            _count(survival, learned)
    if teaches:
        step = ((1.0 if score > threshold else 0.0) - BODY) * PACE / (learned[SEEN] + START)
        learned[SEEN] = min(learned[SEEN] + 1, LONGEST)
        learned[THRESHOLD] = max(threshold * (1 + step), LEAST_THRESHOLD)
    return p
