"""The functions exp, log and erf in float32, as polynomials that the compiler vectorises. Relative errors are about
1e-7."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numba
import numpy as np

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
INFINITY = np.float32(np.inf)
# Reassociation is not permitted, because the algorithms depend on the order of rounding.
_inline_jit = numba.njit(error_model="numpy", fastmath={"contract"}, forceinline=True)

# exp: 2^n e^r with n = round(x / ln 2). ln 2 is split in two; the first part has so few bits that its product with n is
# exact.
LOWEST_EXPONENT, HIGHEST_EXPONENT = np.float32(-87.3), np.float32(88.3)
LOG2_E = np.float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Adding this to a float32 leaves the nearest integer in the low bits of the mantissa.
ROUNDING = np.float32(12582912.0)
ROUNDING_BITS = np.int32(0x4B400000)
BIAS, MANTISSA_BITS = np.int32(127), np.int32(23)
# Minimax polynomials of Moshier's Cephes library (expf, logf).
EXP = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
LOG = tuple(
    np.float32(c)
    for c in (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )
)  # fmt: skip
SQRT_HALF_BITS = np.int32(0x3F3504F3)
# erf: an odd rational function of x in [-4, 4], because 1 - erf(4) is below half a unit in the last place of 1. The
# coefficients are those of Eigen's float32 erf.
ERF_LIMIT = np.float32(4)
ERF_ABOVE = tuple(
    np.float32(c)
    for c in (
        -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
        -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
    )
)  # fmt: skip
ERF_BELOW = tuple(
    np.float32(c)
    for c in (
        -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
        -1.42647390514189e-02,
    )
)  # fmt: skip


@_inline_jit
def clamp(x, lowest, highest):
    """Return x clamped to [lowest, highest]. NaN is returned unchanged."""
    x = lowest if x < lowest else x
    return highest if x > highest else x


@_inline_jit
def exp(x):
    """Return e^x, clamped to [e^-87.3, e^88.3]."""
    x = clamp(x, LOWEST_EXPONENT, HIGHEST_EXPONENT)
    shifted = np.float32(x * LOG2_E + ROUNDING)
    n = shifted - ROUNDING
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = ((((EXP[0] * r + EXP[1]) * r + EXP[2]) * r + EXP[3]) * r + EXP[4]) * r + EXP[5]
    power = np.int32((shifted.view(np.int32) - ROUNDING_BITS + BIAS) << MANTISSA_BITS)
    return (p * (r * r) + r + ONE) * power.view(np.float32)


@_inline_jit
def log(x):
    """Return ln x of a normal number x > 0. Infinity and NaN are returned unchanged."""
    x = np.float32(x)
    bits = np.int32(x.view(np.int32))
    e = np.int32(np.int32(bits - SQRT_HALF_BITS) >> MANTISSA_BITS)
    mantissa = np.int32(bits - (e << MANTISSA_BITS))
    f = mantissa.view(np.float32) - ONE  # x = (1 + f) 2^e, 1 + f in [sqrt(1/2), sqrt(2))
    n = np.float32(e)
    p = (((LOG[0] * f + LOG[1]) * f + LOG[2]) * f + LOG[3]) * f + LOG[4]
    p = (((p * f + LOG[5]) * f + LOG[6]) * f + LOG[7]) * f + LOG[8]
    square = f * f
    value = (f * square * p + n * LN2_LOW - HALF * square) + f + n * LN2_HIGH
    return value if x < INFINITY else x


@_inline_jit
def erf(x):
    """Return the error function of x."""
    x = clamp(x, -ERF_LIMIT, ERF_LIMIT)
    square = x * x
    above = ((ERF_ABOVE[0] * square + ERF_ABOVE[1]) * square + ERF_ABOVE[2]) * square + ERF_ABOVE[3]
    above = ((above * square + ERF_ABOVE[4]) * square + ERF_ABOVE[5]) * square + ERF_ABOVE[6]
    below = (ERF_BELOW[0] * square + ERF_BELOW[1]) * square + ERF_BELOW[2]
    below = (below * square + ERF_BELOW[3]) * square + ERF_BELOW[4]
    return x * above / below
