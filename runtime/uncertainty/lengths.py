"""Tail probabilities of the number of rows in which a value is unchanged, and of the time without a value.

After n lengths, the tail probability of a length is the smoothed fraction of lengths that were at least as long. The
probability of a new longest length is 1 / (n + 1). For a length l beyond the longest length M, this is multiplied by
(M / l)², a Pareto tail, but at least by 1 / FARTHEST:

    p(l) = (1 + #{earlier lengths >= l}) / (n + 1),  l <= M        max((M / l)², 1 / FARTHEST) / (n + 1),  l > M

Lengths are compared in bins of half octaves.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit

BINS = 24
FARTHEST = 16.0
# Numbers of a kind of length: the number of lengths, the longest one, and the number in each bin. The first bin
# contains lengths of 1, and the third bin those of 2.
COUNT, LONGEST, BIN = 0, 1, 2
TWO = BIN + 2
NUMBERS = BIN + BINS


@inline_jit
def _bin(length):
    return np.int64(min(2 * np.log2(max(length, 1.0)), BINS - 1))


@inline_jit
def length_tail(lengths, length):
    """Return the tail probability of a length, given the earlier lengths `[NUMBERS]`."""
    if length > lengths[LONGEST]:
        return max((lengths[LONGEST] / length) ** 2, 1 / FARTHEST) / (lengths[COUNT] + 1)
    beyond = 0.0
    for k in range(_bin(length), BINS):
        beyond += lengths[BIN + k]
    return (1 + beyond) / (lengths[COUNT] + 1)


@inline_jit
def least_tail(lengths):
    """Return the smallest tail probability that a length can have."""
    return 1 / (FARTHEST * (lengths[COUNT] + 1))


@inline_jit
def add_length(lengths, length):
    """Add a length to the counts. The longest length is not updated."""
    lengths[COUNT] += 1
    lengths[BIN + _bin(length)] += 1
