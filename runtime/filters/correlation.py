"""The correlation of the columns of a stream, learned from what they were off by, and how far off a row is by it.

z `[P]` is how far off a row was, each column in its own deviations. With u, z bounded at BOUND and 0 where a column was
missing, the running mean of u uᵀ is a covariance whatever was missing, and so

    R = (1 - own) corr(mean of u uᵀ) + own I          own = OWN + (1 - OWN) (P + 1) / (P + 1 + n)

is positive definite: few rows tell no correlation from none, and of what columns share always something is their own.
A row is then z_sᵀ R_ss⁻¹ z_s off, s the columns that were seen, chi-square of as many where z is normal.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit

# Deviations that a column counts for, at most; what is its own, at least; and rows over which is learned.
BOUND, OWN, MEMORY = 3.0, 0.01, 1000.0


@inline_jit
def joint_square(z, learned, factor):
    """z_sᵀ R_ss⁻¹ z_s and log |R_ss|.

    Args:
        z: `[P]`, NaN where a column is not in s.
        learned: `[P + 1, P]`, means of products below and on the diagonal, and in the last row n.
        factor: `[P + 1, P]`, overwritten.
    """
    size, square, log_det = len(z), 0.0, 0.0
    shared = (1 - OWN) * learned[size, 0] / (size + 1 + learned[size, 0])
    for a in range(size):
        # What is not seen stands for 0, and goes with nothing.
        is_seen = z[a] == z[a]
        rest, pivot = z[a] if is_seen else 0.0, 1.0
        for b in range(a):
            both = learned[a, a] * learned[b, b]
            like = 0.0
            if is_seen and z[b] == z[b] and both > 0:
                like = shared * learned[a, b] / np.sqrt(both)
            for k in range(b):
                like -= factor[a, k] * factor[b, k]
            like /= factor[b, b]
            factor[a, b] = like
            pivot -= like * like
            rest -= like * factor[size, b]
        root = np.sqrt(pivot)
        rest /= root
        factor[a, a], factor[size, a] = root, rest
        square += rest * rest
        log_det += 2 * np.log(root)
    return square, log_det


@inline_jit
def learn(z, learned):
    """Take a row into what is learned, if anything of it was seen; the arguments are those of `joint_square`."""
    size, seen = len(z), 0
    for a in range(size):
        seen += 1 if z[a] == z[a] else 0
    if seen == 0:
        return
    count = min(learned[size, 0] + 1, MEMORY)
    learned[size, 0] = count
    for a in range(size):
        one = min(max(z[a], -BOUND), BOUND) if z[a] == z[a] else 0.0
        for b in range(a + 1):
            other = min(max(z[b], -BOUND), BOUND) if z[b] == z[b] else 0.0
            learned[a, b] += (one * other - learned[a, b]) / count
