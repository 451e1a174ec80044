"""Tail probabilities of lengths: of the rows for which a value stands still, and of the time without a value.

The probability of a length after n others is the share that was as long, and beyond the longest one, M, a conservative
guess, at least a FARTHEST-th of that of a new longest one:

    p(l) = (1 + #{earlier lengths >= l}) / (n + 1),  l <= M        max(M / l, 1 / FARTHEST) / (n + 1),  l > M

Lengths are compared by half octaves.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit

BINS = 24
FARTHEST = 4.0
# Of the numbers of a kind of length: how many there were, the longest, and how many were in each bin: the first has
# lengths of 1 alone, the third those of 2.
COUNT, LONGEST, BIN = 0, 1, 2
TWO = BIN + 2
NUMBERS = BIN + BINS


@inline_jit
def _bin(length):
    return np.int64(min(2 * np.log2(max(length, 1.0)), BINS - 1))


@inline_jit
def length_tail(lengths, length):
    """The tail probability of a length by those before it, `[NUMBERS]`."""
    if length > lengths[LONGEST]:
        return max(lengths[LONGEST] / length, 1 / FARTHEST) / (lengths[COUNT] + 1)
    beyond = 0.0
    for k in range(_bin(length), BINS):
        beyond += lengths[BIN + k]
    return (1 + beyond) / (lengths[COUNT] + 1)


@inline_jit
def least_tail(lengths):
    """The least tail probability that a length can have."""
    return 1 / (FARTHEST * (lengths[COUNT] + 1))


@inline_jit
def add_length(lengths, length):
    """Count a length, which does not become the longest one."""
    lengths[COUNT] += 1
    lengths[BIN + _bin(length)] += 1
