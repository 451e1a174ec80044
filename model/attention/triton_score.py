"""Device functions that compute the lag, E, V, U and the score of a pair of tokens.

Source: Racioppo, Robust Filter Attention, section 3, as in `reference.py`, with the division by V moved out of the
logit:

    E = e^{-mu lag}     V = sigma2 phi(lag) + eta2 E² + gamma2     R² = |q|² + E² |k|² - 2 E q·k
    U = V + R² / nu     L = tau ((kappa - 1) log V - kappa log U)                        Student-t
                        L = -tau (log V + R² / (nu V))                                   Gaussian

FAST uses approximate hardware functions (2 ulp, subnormals flushed to zero), for 16-bit inputs on a GPU. Logarithms
have base 2, and stored results are scaled by ln 2.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# If mu lag is below this, the series of phi is accurate in float32; otherwise, the quotient is.
SMALL_EXPONENT = tl.constexpr(0.5)
# Limit of mu lag for 16-bit results, which use a series of five terms.
COARSE_EXPONENT = tl.constexpr(0.125)
# ln 2 = LN2_HIGH + LN2_LOW. Products of LN2_HIGH with integers are exact.
LN2_HIGH = tl.constexpr(0.693145751953125)
LN2_LOW = tl.constexpr(1.428606820309417e-06)
# Number of threads that compute a row of a matrix product. Each computes two of eight adjacent columns.
LANES = tl.constexpr(4)


@triton.jit
def _hardware(x, INSTRUCTION: tl.constexpr):
    """Apply an instruction with one operand."""
    return tl.inline_asm_elementwise(INSTRUCTION, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def log2(x, FAST: tl.constexpr):
    """Return the logarithm to base 2. `tl.log2` takes 25 instructions; the hardware function takes one."""
    if FAST:
        return _hardware(x, "lg2.approx.ftz.f32 $0, $1;")
    else:
        return tl.log2(x)


@triton.jit
def log2_of_one_plus(x):
    """Return log2(1 + x) for x >= 0, corrected for the rounding of the sum."""
    total = 1.0 + x
    return tl.log2(total) + (x - (total - 1.0)) / total * LOG2E


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    """Return 1 / x."""
    if FAST:
        return _hardware(x, "rcp.approx.ftz.f32 $0, $1;")
    else:
        return 1.0 / x


@triton.jit
def by_lane(b_pairs, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return partial sums over columns, [ROWS, LANES]. Each is computed by one thread."""
    return tl.sum(tl.sum(tl.reshape(b_pairs, (ROWS, COLUMNS // (2 * LANES), LANES, 2)), 3), 1)


@triton.jit
def exponential(x):
    """Return e^x for x <= 0, accurate to within rounding error. The relative error of `tl.exp` grows with |x|."""
    whole = tl.floor(tl.maximum(x, -127.0) * LOG2E + 0.5)
    rest = (tl.maximum(x, -150.0) - whole * LN2_HIGH) - whole * LN2_LOW
    return tl.exp2(whole) * tl.exp2(rest * LOG2E)


@triton.jit
def transport(lag, mu):
    """Return E for lag >= 0."""
    return tl.exp2(-mu * LOG2E * lag)


@triton.jit
def accumulated(lag, transport2, mu, IS_EXACT: tl.constexpr = True):
    """Return phi(lag), where `transport2` is E². It is computed as the quotient (1 - E²) / (2 mu), as a series if the
    terms of the quotient cancel, or as lag if mu = 0.

    If IS_EXACT, the result is accurate to within rounding error. Otherwise, its error is 3e-6, which is sufficient for
    16-bit inputs.
    """
    x = 2.0 * mu * lag
    if IS_EXACT:
        series = 1.0 - x * (1.0 / 9.0)
        series = 1.0 - x * (1.0 / 8.0) * series
        series = 1.0 - x * (1.0 / 7.0) * series
        series = 1.0 - x * (1.0 / 6.0) * series
        series = 1.0 - x * (1.0 / 5.0) * series
        series = 1.0 - x * (1.0 / 4.0) * series
        series = 1.0 - x * (1.0 / 3.0) * series
        series = 1.0 - x * (1.0 / 2.0) * series
        is_small = x < SMALL_EXPONENT
    else:
        series = 1.0 - x * (1.0 / 2.0 - x * (1.0 / 6.0 - x * (1.0 / 24.0 - x * (1.0 / 120.0))))
        is_small = x < COARSE_EXPONENT
    return tl.where(is_small, lag * series, (1.0 - transport2) * (1.0 / tl.where(mu > 0.0, 2.0 * mu, 1.0)))


@triton.jit
def spread(lag, transport2, mu, sigma2, eta2, gamma2, IS_EXACT: tl.constexpr = True):
    """Return V at a lag, where `transport2` is E²."""
    return sigma2 * accumulated(lag, transport2, mu, IS_EXACT) + eta2 * transport2 + gamma2
