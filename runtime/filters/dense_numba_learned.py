"""Compiled update of one stream of a linear filter with one observation, under the rule that learns the noise.

The equations are under "Learned noise" in `dense.py`: a Kalman update for each factor s_k on R, and the moments of
their mixture with weights g_k. Here, all factors together cost as much as one, in coordinates of the observation in
which R is the identity and C P Cᵀ is diagonal. With T R Tᵀ = I, T C P Cᵀ Tᵀ = diag(v), innovation z = T e and
Z = P Cᵀ Tᵀ,

    r_ik = 1 / (v_i + s_k)         N(e; 0, C P Cᵀ + s_k R) ∝ prod_i r_ik^½ exp(-z_i² r_ik / 2)
    h_i = sum_k g_k r_ik           mean + Z diag(h) z

Joseph's form of the covariance, for the gain Z diag(h) T and the differences from the gains Z diag(r_k) T of the
factors, is

    A - A Cᵀ Tᵀ diag(h) Zᵀ + Z D Zᵀ,     A = P - Z diag(h) Zᵀ
    D = sum_k g_k [diag((r_k - h)² v + s_k r_k²) + d_k d_kᵀ],     d_k = (r_k - h) z

where D is a sum of positive terms, and A is corrected along the observed directions as in `dense_numba.py`.

T is computed by a factorisation of R and Jacobi rotations: one rotation for two components, which is exact, and sweeps
for more. A missing component has v = 0. It is separate from the others and has no effect.

The layout is that of `linear_rows.py`, followed by the rows of `LearnedRows`, which begin with the counts.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit, source_inline_jit
from rfa.runtime.filters.dense_numba import keep_rival, step_row, store_covariance_row
from rfa.runtime.filters.linear_rows import add_dot, factor, rows_of, u
from rfa.runtime.filters.robust_constants import (
    KEPT_PRIOR,
    LARGEST_FACTOR,
    LARGEST_NIS,
    MEMORY,
    NOISE_FACTORS,
    PRIOR_COUNTS,
)

FACTORS, WIDEST = len(NOISE_FACTORS), max(NOISE_FACTORS)
_SIZES, _KEPT = np.array(NOISE_FACTORS), KEPT_PRIOR * np.array(PRIOR_COUNTS)
# Rotations smaller than the rounding of their operands are skipped.
LEAST_TURN = 2.0**-52
# Maximum number of sweeps of Jacobi rotations. A few are usually sufficient.
MOST_SWEEPS = 30
# Densities below this value are scaled, so that a product of many densities does not underflow.
LEAST_DENSITY = 1e-150


class LearnedRows(NamedTuple):
    """Rows of `work` after those of `linear_rows`. They contain the counts, the weights and half the squared distances
    of the K factors; r of each factor; T; C P Cᵀ in its coordinates; D, v, z and h; and one row of the state."""

    counts: int
    share: int
    penalty: int
    response: int
    modes: int
    half: int
    core: int
    spread: int
    variance: int
    signal: int
    mean_response: int
    seen: int
    peak: int
    total: int
    end: int


@inline_jit
def _learned_rows(counts, p):
    share = counts + FACTORS
    penalty = share + FACTORS
    response = penalty + FACTORS
    modes = response + FACTORS * p
    half, core, spread, variance = modes + p * p, modes + 2 * p * p, modes + 3 * p * p, modes + 4 * p * p
    signal, mean_response, seen, peak = variance + p, variance + 2 * p, variance + 3 * p, variance + 4 * p
    return LearnedRows(
        counts, share, penalty, response, modes, half, core, spread, variance, signal, mean_response, seen, peak,
        peak + 1, peak + 2,
    )  # fmt: skip


@inline_jit
def learned_rows_of(sizes):
    """Return the layout of `work`. `sizes` are n, P, and whether C consists of the first P rows of the identity."""
    return _learned_rows(rows_of(sizes).end, sizes[1])


def scratch_size(sizes: tuple[int, int, bool], *, learns: bool) -> int:
    """Return the size of `work`. It contains the layout, and the lag of the F and Q in it."""
    end = int(getattr(rows_of, "py_func", rows_of)(sizes).end)
    return (int(getattr(_learned_rows, "py_func", _learned_rows)(end, sizes[1]).end) if learns else end) + 1


@inline_jit
def _add_product(work, out, row, other):
    """Compute out += row · other."""
    work[u(out)] += work[u(row)] * work[u(other)]


# Coordinates of the observation.


@inline_jit
def _whiten(work, sizes):
    """Compute T with T R Tᵀ = I, and C P Cᵀ in its coordinates."""
    _, p, _ = sizes
    rows, learned = rows_of(sizes), learned_rows_of(sizes)
    # These coordinates depend on R only, not on the state.
    work[u(rows.weight)] = 0.0
    factor(work, sizes, rows.weighted, rows.weight)
    for i in range(p):
        for a in range(p):
            work[u(learned.modes + i * p + a)] = 1.0 if a == i else 0.0
        for a in range(i):
            row = learned.modes + a * p + a
            add_dot(work, learned.modes + i * p + a, -1.0, rows.weighted + i * p + a, 1, row, p, i - a)
    for i in range(p):
        for a in range(i + 1):
            root = math.sqrt(work[u(rows.weighted + i * p + i)])
            work[u(learned.modes + i * p + a)] *= root
    for i in range(p):
        for b in range(p):
            out = learned.half + i * p + b
            work[u(out)] = 0.0
            for a in range(i + 1):
                _add_product(work, out, learned.modes + i * p + a, rows.signal + max(a, b) * p + min(a, b))
    for i in range(p):
        for j in range(i + 1):
            out = learned.core + i * p + j
            work[u(out)] = 0.0
            add_dot(work, out, 1.0, learned.half + i * p, 1, learned.modes + j * p, 1, j + 1)


@inline_jit
def _turn(work, row, other, cosine, sine):
    left, right = work[u(row)], work[u(other)]
    work[u(row)] = cosine * left - sine * right
    work[u(other)] = sine * left + cosine * right


@inline_jit
def _rotate(work, sizes, a, b):
    """Rotate the coordinates a < b (Jacobi). Return 1 if a rotation was needed, and 0 otherwise."""
    _, p, _ = sizes
    learned = learned_rows_of(sizes)
    own, other, between = learned.core + a * p + a, learned.core + b * p + b, learned.core + b * p + a
    x, y, c = work[u(own)], work[u(other)], work[u(between)]
    is_needed = abs(c) > LEAST_TURN * math.sqrt((abs(x) + 1) * (abs(y) + 1))
    ratio = (y - x) / (2 * c)
    tangent = (1.0 if ratio >= 0 else -1.0) / (abs(ratio) + math.sqrt(1 + ratio * ratio))
    tangent = tangent if is_needed else 0.0
    cosine = 1 / math.sqrt(1 + tangent * tangent)
    sine = tangent * cosine
    work[u(own)] = x - tangent * c
    work[u(other)] = y + tangent * c
    work[u(between)] = 0.0 if is_needed else c
    for k in range(p):
        if k != a and k != b:
            _turn(
                work, learned.core + max(a, k) * p + min(a, k), learned.core + max(b, k) * p + min(b, k), cosine,
                sine,
            )  # fmt: skip
        _turn(work, learned.modes + a * p + k, learned.modes + b * p + k, cosine, sine)
    return 1 if is_needed else 0


@inline_jit
def _diagonalise(work, sizes):
    _, p, _ = sizes
    for _ in range(MOST_SWEEPS if p > 2 else 1):
        turned = 0
        for b in range(1, p):
            for a in range(b):
                turned += _rotate(work, sizes, a, b)
        if turned == 0:
            break


@inline_jit
def _project(work, sizes):
    """Compute v and z."""
    _, p, _ = sizes
    rows, learned = rows_of(sizes), learned_rows_of(sizes)
    for i in range(p):
        work[u(learned.variance + i)] = max(work[u(learned.core + i * p + i)], 0.0)
        work[u(learned.signal + i)] = 0.0
        add_dot(work, learned.signal + i, 1.0, learned.modes + i * p, 1, rows.innovation, 1, p)


# Weights of the factors.


@inline_jit
def _size(work, sizes, least):
    """Return the noise factor s_k. The largest factor is at least eᵀS⁻¹e."""
    reach = min(work[u(rows_of(sizes).gate)], LARGEST_FACTOR)
    return max(least, reach if least == WIDEST else 0.0)


@inline_jit
def _respond(work, sizes, k):
    """Compute r for factor k. Also compute count × density of the factor as share · exp(−penalty), in which `penalty`
    contains half of the squared distance."""
    _, p, _ = sizes
    rows, learned = rows_of(sizes), learned_rows_of(sizes)
    share, penalty, least = learned.share + k, learned.penalty + k, _SIZES[k]
    work[u(share)] = work[u(learned.counts + k)]
    work[u(penalty)] = 0.0
    for i in range(p):
        variance, signal = (
            work[u(learned.variance + i)],
            work[u(learned.signal + i)],
        )
        response = 1 / (variance + _size(work, sizes, least))
        work[u(learned.response + k * p + i)] = response
        density = work[u(share)]
        is_small = density < LEAST_DENSITY
        # The density is relative to that under R, because this factor is common to all terms.
        ratio = math.sqrt((variance + 1) * response) if work[u(rows.present + i)] > 0 else 1.0
        work[u(share)] = density * (1 / LEAST_DENSITY if is_small else 1.0) * ratio
        work[u(penalty)] += 0.5 * (min(signal * signal, LARGEST_NIS) * response) - (
            math.log(LEAST_DENSITY) if is_small else 0.0
        )


@inline_jit
def _normalise(work, sizes, factors):
    """Convert densities to weights. `total` is their sum."""
    learned = learned_rows_of(sizes)
    work[u(learned.peak)] = -math.inf
    work[u(learned.total)] = 0.0
    for k in range(factors):
        score = math.log(work[u(learned.share + k)]) - work[u(learned.penalty + k)]
        work[u(learned.share + k)] = score
        work[u(learned.peak)] = max(work[u(learned.peak)], score)
    for k in range(factors):
        share = math.exp(work[u(learned.share + k)] - work[u(learned.peak)])
        work[u(learned.share + k)] = share
        work[u(learned.total)] += share


@inline_jit
def _clear(work, sizes):
    rows, learned = rows_of(sizes), learned_rows_of(sizes)
    _, p, _ = sizes
    work[u(rows.weight)] = 0.0
    for i in range(p):
        work[u(learned.mean_response + i)] = 0.0
        for j in range(p):
            work[u(learned.spread + i * p + j)] = 0.0


@inline_jit
def _weigh(work, sizes, k):
    """Return the weight of factor k, and add its contributions to the weight and to h. At a jump, the noise
    covariance is R."""
    _, p, _ = sizes
    rows, learned = rows_of(sizes), learned_rows_of(sizes)
    least = _SIZES[k]
    share = work[u(learned.share + k)] / work[u(learned.total)]
    share = (1.0 if least == 1 else 0.0) if work[u(rows.jump)] > 0 else share
    work[u(learned.share + k)] = share
    work[u(rows.weight)] += share / _size(work, sizes, least)
    for i in range(p):
        _add_product(work, learned.mean_response + i, learned.share + k, learned.response + k * p + i)


@inline_jit
def _fade(work, sizes, factors):
    """Update the counts. They represent MEMORY observations in addition to the retained prior. A weight is at
    most 1."""
    rows, learned = rows_of(sizes), learned_rows_of(sizes)
    work[u(learned.total)] = 0.0
    for k in range(factors):
        count = work[u(learned.counts + k)] + work[u(learned.share + k)]
        work[u(learned.total)] += max(count - _KEPT[k], 0.0)
    work[u(learned.total)] = min(MEMORY / work[u(learned.total)], 1.0)
    work[u(rows.weight)] = min(work[u(rows.weight)], 1.0)
    for k in range(factors):
        count = work[u(learned.counts + k)]
        beyond = max(count + work[u(learned.share + k)] - _KEPT[k], 0.0)
        after = _KEPT[k] + beyond * work[u(learned.total)]
        is_seen = work[u(rows.seen)] > 0
        work[u(learned.counts + k)] = after if is_seen else count


# Moments of the mixture.


@inline_jit
def _spread(work, sizes, k):
    """Add the contribution of factor k to D."""
    _, p, _ = sizes
    learned = learned_rows_of(sizes)
    least = _SIZES[k]
    for i in range(p):
        for j in range(i + 1):
            out, mirrored = learned.spread + i * p + j, learned.spread + j * p + i
            share = work[u(learned.share + k)]
            response = work[u(learned.response + k * p + i)]
            left = response - work[u(learned.mean_response + i)]
            right = work[u(learned.response + k * p + j)] - work[u(learned.mean_response + j)]
            # Multiply by the weight first, because a distance may overflow where the weight is 0.
            part = (share * left * work[u(learned.signal + i)]) * (right * work[u(learned.signal + j)])
            if i == j:
                part += share * (
                    left * left * work[u(learned.variance + i)] + _size(work, sizes, least) * (response * response)
                )
            work[u(out)] += part
            work[u(mirrored)] = work[u(out)]


@inline_jit
def _gain_row(work, sizes, i):
    """Compute row `i` of Z and of Z diag(h)."""
    _, p, _ = sizes
    rows, learned = rows_of(sizes), learned_rows_of(sizes)
    for m in range(p):
        gain, scaled = rows.gain + i * p + m, rows.scaled + i * p + m
        work[u(gain)] = 0.0
        add_dot(work, gain, 1.0, rows.cross + i * p, 1, learned.modes + m * p, 1, p)
        work[u(scaled)] = work[u(gain)]
        work[u(scaled)] *= work[u(learned.mean_response + m)]


@inline_jit
def _mix_row(work, sizes, i):
    """Compute row `i` of the mean and of the covariance (see the module docstring). Rows before `i` are complete."""
    n, p, leads = sizes
    rows, learned = rows_of(sizes), learned_rows_of(sizes)
    gain, excess, product = rows.gain + i * p, rows.excess + i * p, rows.product + i * n
    step_row(work, sizes, i, learned.signal, rows.gain)
    for a in range(p):
        if leads:
            work[u(learned.seen + a)] = work[u(product + a)]
        else:
            work[u(learned.seen + a)] = 0.0
            add_dot(work, learned.seen + a, 1.0, product, 1, rows.matrix + a * n, 1, n)
    for m in range(p):
        out = excess + m
        work[u(out)] = 0.0
        add_dot(work, out, -1.0, learned.modes + m * p, 1, learned.seen, 1, p)
        work[u(out)] *= work[u(learned.mean_response + m)]
        add_dot(work, out, 1.0, gain, 1, learned.spread + m * p, 1, p)
    store_covariance_row(work, sizes, i, rows.gain)


@source_inline_jit
def update(work, sizes, rule):
    """Compute the posterior from the prediction and its innovation.

    The second element of `rule` is the number of factors. It is not a compile-time constant, so numba does not unroll
    the loops over the factors.
    """
    n, _, _ = sizes
    _, factors, patience = rule
    _whiten(work, sizes)
    _diagonalise(work, sizes)
    _project(work, sizes)
    for k in range(factors):
        _respond(work, sizes, k)
    _normalise(work, sizes, factors)
    _clear(work, sizes)
    for k in range(factors):
        _weigh(work, sizes, k)
    _fade(work, sizes, factors)
    for k in range(factors):
        _spread(work, sizes, k)
    for i in range(n):
        _gain_row(work, sizes, i)
    for i in range(n):
        _mix_row(work, sizes, i)
    if patience > 0:
        keep_rival(work, sizes)
