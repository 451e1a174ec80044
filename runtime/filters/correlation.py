"""The correlation of a stream's columns, which is learned from its innovations, and the joint squared distance of a
row.

z `[P]` are the standardised innovations of a row. u is z bounded at BOUND, and 0 for missing columns. The running mean
of u uᵀ is a covariance, regardless of which values were missing, so

    R = (1 - own) corr(mean of u uᵀ) + own I          own = OWN + (1 - OWN) (P + 1) / (P + 1 + n)

is positive definite. The correlation of n rows is shrunk towards 0, and each column keeps an independent part. The
joint square is z_sᵀ R_ss⁻¹ z_s for the observed columns s. For normal z, it is chi-square with as many degrees of
freedom as there are observed columns.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit

# Bound of |z|, minimum independent part of a column, and number of rows of the running mean.
BOUND, OWN, MEMORY = 3.0, 0.01, 1000.0


@inline_jit
def joint_square(z, learned, factor):
    """Return z_sᵀ R_ss⁻¹ z_s and log |R_ss|.

    Args:
        z: Standardised innovations, `[P]`. NaN if a column is not in s.
        learned: Means of products on and below the diagonal, and n in the last row, `[P + 1, P]`.
        factor: Scratch, `[P + 1, P]`. It is overwritten.
    """
    size, square, log_det = len(z), 0.0, 0.0
    shared = (1 - OWN) * learned[size, 0] / (size + 1 + learned[size, 0])
    for a in range(size):
        # A missing column has z = 0 and no correlations.
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
    """Update the means with a row in which at least one column is observed. See `joint_square` for the arguments."""
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
