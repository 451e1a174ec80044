"""Compiled update of one stream of a linear filter with one observation, under the capped rule.

The equations are in `rfa.model.recurrence.dense` (capped rule, K passes, missing components, jump detection), computed
here in float64. Results equal those of `LinearFilter` in float64, in the coordinates of the state. The rule that learns
the noise is in `dense_numba_learned.py`, and the layout of `work` is in `linear_rows.py`.

Two formulas differ from `dense.py` to save operations. With T = w C P Cᵀ + R, S_w⁻¹ = w T⁻¹ avoids division by the
weight w. T and S are factored as L D Lᵀ, without square roots. With A = P - K C P, Joseph's form (I - K C) P (I - K C)ᵀ
+ K R Kᵀ / w is

    A + (K R / w - A Cᵀ) Kᵀ

The bracket contains only rounding errors. Like Joseph's form, it removes the error of A along the observed directions.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from rfa.runtime.compiling import inline_jit, source_inline_jit
from rfa.runtime.filters.linear_rows import add_dot, distance, factor, rows_of, solve, u
from rfa.runtime.filters.robust_constants import AGREEMENT, LARGEST_NIS, LEAST_SHARE, OPEN_NOISE


@inline_jit
def _predict_row(work, sizes, i):
    """Compute row `i` of F m and of F P."""
    n, _, _ = sizes
    rows = rows_of(sizes)
    work[u(rows.prior_mean + i)] = 0.0
    add_dot(work, rows.prior_mean + i, 1.0, rows.f + i * n, 1, rows.mean, 1, n)
    for j in range(n):
        out = rows.product + i * n + j
        work[u(out)] = 0.0
        add_dot(work, out, 1.0, rows.f + i * n, 1, rows.covariance + j * n, 1, n)


@inline_jit
def _spread_row(work, sizes, i):
    """Compute row `i` of F P Fᵀ + Q up to its diagonal, and the column that mirrors it."""
    n, _, _ = sizes
    rows = rows_of(sizes)
    for j in range(i + 1):
        out = rows.prior + i * n + j
        work[u(out)] = work[u(rows.q + i * n + j)]
        add_dot(work, out, 1.0, rows.product + i * n, 1, rows.f + j * n, 1, n)
        work[u(rows.prior + j * n + i)] = work[u(out)]


@inline_jit
def _mask_missing(work, sizes):
    """Determine which components were observed. Also compute the covariance of the measurement noise. Rows and columns
    of missing components are those of the identity matrix."""
    _, p, _ = sizes
    rows = rows_of(sizes)
    work[u(rows.seen)] = 0.0
    for a in range(p):
        value, present = rows.value + a, rows.present + a
        given = work[u(value)]
        is_seen = given == given
        work[u(present)] = 1.0 if is_seen else 0.0
        work[u(value)] = given if is_seen else 0.0
        work[u(rows.seen)] += 1.0 if is_seen else 0.0
    for a in range(p):
        for b in range(p):
            absent, entry = 1.0 if a == b else 0.0, a * p + b
            scale = work[u(rows.scale)]
            both = work[u(rows.present + a)] * work[u(rows.present + b)]
            work[u(rows.seen_noise + entry)] = both * work[u(rows.noise + entry)] * (scale * scale) + absent * (
                1 - both
            )


@inline_jit
def _cross_row(work, sizes, i):
    """Compute row `i` of P Cᵀ for the observed components."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    for a in range(p):
        out = rows.cross + i * p + a
        if leads:
            work[u(out)] = work[u(rows.prior + i * n + a)]
        else:
            work[u(out)] = 0.0
            add_dot(work, out, 1.0, rows.matrix + a * n, 1, rows.prior + i * n, 1, n)
        work[u(out)] *= work[u(rows.present + a)]


@inline_jit
def _innovate(work, sizes):
    """Compute the innovation e, its covariance S = signal + noise for the observed components, and eᵀS⁻¹e."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    for a in range(p):
        out = rows.innovation + a
        work[u(out)] = work[u(rows.value + a)] - work[u(rows.bias + a)]
        if leads:
            work[u(out)] -= work[u(rows.prior_mean + a)]
        else:
            add_dot(work, out, -1.0, rows.matrix + a * n, 1, rows.prior_mean, 1, n)
        work[u(out)] *= work[u(rows.present + a)]
        work[u(rows.solved + a)] = work[u(out)]
        for b in range(a + 1):
            out = rows.signal + a * p + b
            if leads:
                work[u(out)] = work[u(rows.cross + a * p + b)]
            else:
                work[u(out)] = 0.0
                add_dot(work, out, 1.0, rows.matrix + a * n, 1, rows.cross + b, p, n)
            work[u(out)] *= work[u(rows.present + a)]
    work[u(rows.weight)] = 1.0
    factor(work, sizes, rows.nominal, rows.weight)
    distance(work, sizes, rows.nis, rows.nominal, rows.solved)
    work[u(rows.gate)] = work[u(rows.nis)]
    work[u(rows.jump)] = 0.0


@inline_jit
def _compare(work, sizes, inverse_nu):
    """Compare the prediction of the alternative state with that of the filter. Also compute the factor by which the
    prior grows at a jump."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    for i in range(n):
        work[u(rows.rival + i)] = 0.0
        add_dot(work, rows.rival + i, 1.0, rows.f + i * n, 1, rows.offset, 1, n)
    for a in range(p):
        out = rows.expected + a
        if leads:
            work[u(out)] = work[u(rows.rival + a)]
        else:
            work[u(out)] = 0.0
            add_dot(work, out, 1.0, rows.matrix + a * n, 1, rows.rival, 1, n)
        work[u(out)] *= work[u(rows.present + a)]
        work[u(rows.residual + a)] = work[u(out)]
        work[u(rows.solved + a)] = work[u(rows.innovation + a)] - work[u(out)]
    distance(work, sizes, rows.rival_distance, rows.nominal, rows.solved)
    own, other = (
        min(work[u(rows.nis)], LARGEST_NIS),
        min(work[u(rows.rival_distance)], LARGEST_NIS),
    )
    work[u(rows.ratio)] = (1 + own * inverse_nu) / (1 + other * inverse_nu)
    distance(work, sizes, rows.rival_distance, rows.nominal, rows.residual)

    work[u(rows.growth)] = 0.0
    for b in range(p):
        for a in range(p):
            work[u(rows.solved + a)] = work[u(rows.signal + max(a, b) * p + min(a, b))]
        solve(work, sizes, rows.nominal, rows.solved)
        work[u(rows.growth)] += work[u(rows.solved + b)]
    share = max(work[u(rows.growth)] / max(work[u(rows.seen)], 1.0), LEAST_SHARE)
    work[u(rows.growth)] = max((1 - share) / (OPEN_NOISE * share), 1.0)
    factor(work, sizes, rows.opened, rows.growth)


@inline_jit
def _count_evidence(work, sizes, inverse_nu):
    """Update the evidence for a jump. It stays 0 where the filter predicts better, so the logarithm is rarely
    needed."""
    rows = rows_of(sizes)
    evidence, ratio = work[u(rows.evidence)], work[u(rows.ratio)]
    if evidence > 0 or ratio > 1:
        nats = 0.5 * (1 / inverse_nu + work[u(rows.seen)]) * math.log(ratio)
        work[u(rows.evidence)] = max(evidence + min(nats / AGREEMENT, 1.0), 0.0)


@inline_jit
def _update_rival(work, sizes, patience):
    """Update the alternative state with the observation. The filter jumps if there is enough evidence."""
    n, p, _ = sizes
    rows = rows_of(sizes)
    evidence = work[u(rows.evidence)]
    work[u(rows.jump)] = 1.0 if evidence >= patience - 1 else 0.0
    # An alternative that differs from the filter and predicted worse restarts from the filter.
    work[u(rows.rival_distance)] = work[u(rows.rival_distance)] if evidence <= 0 else 0.0
    for i in range(n):
        kept = work[u(rows.rival + i)]
        work[u(rows.rival + i)] = 0.0 if work[u(rows.rival_distance)] >= 1 else kept
    for a in range(p):
        expected = work[u(rows.expected + a)]
        expected = 0.0 if work[u(rows.rival_distance)] >= 1 else expected
        work[u(rows.solved + a)] = work[u(rows.innovation + a)] - expected
    solve(work, sizes, rows.opened, rows.solved)
    for a in range(p):
        work[u(rows.solved + a)] *= work[u(rows.growth)]
    for i in range(n):
        add_dot(work, rows.rival + i, 1.0, rows.cross + i * p, 1, rows.solved, 1, p)


@inline_jit
def _open_prior(work, sizes):
    """Enlarge the prior, so that the update restarts from the observation."""
    n, p, _ = sizes
    rows = rows_of(sizes)
    for row in range(n * n):
        work[u(rows.prior + row)] *= work[u(rows.growth)]
    for row in range(n * p):
        work[u(rows.cross + row)] *= work[u(rows.growth)]
    for a in range(p):
        work[u(rows.solved + a)] = work[u(rows.innovation + a)]
        for b in range(a + 1):
            work[u(rows.signal + a * p + b)] *= work[u(rows.growth)]
    for row in range(p * p):
        work[u(rows.nominal + row)] = work[u(rows.opened + row)]
    distance(work, sizes, rows.gate, rows.nominal, rows.solved)


@inline_jit
def _weigh(work, sizes, inverse_nu):
    """Return the capped Student-t weight of an observation with squared distance `gate`."""
    rows = rows_of(sizes)
    count, gate = work[u(rows.seen)], work[u(rows.gate)]
    work[u(rows.weight)] = min((1 + count * inverse_nu) / (1 + gate * inverse_nu), 1.0)


@inline_jit
def _reweigh(work, sizes, inverse_nu):
    """Run a pass after the first one, with the posterior residual (R / w) S_w⁻¹ e = R T⁻¹ e."""
    _, p, _ = sizes
    rows = rows_of(sizes)
    factor(work, sizes, rows.weighted, rows.weight)
    for a in range(p):
        work[u(rows.solved + a)] = work[u(rows.innovation + a)]
    solve(work, sizes, rows.weighted, rows.solved)
    for a in range(p):
        work[u(rows.residual + a)] = 0.0
        add_dot(work, rows.residual + a, 1.0, rows.seen_noise + a * p, 1, rows.solved, 1, p)
    distance(work, sizes, rows.gate, rows.nominal, rows.residual)
    _weigh(work, sizes, inverse_nu)


@inline_jit
def step_row(work, sizes, i, innovation, factor):
    """Compute row `i` of the step and the mean, and of `product` = P - scaled · factorᵀ as far as it is used.
    `innovation` and `factor` are the positions of a vector [P] and of a matrix [n, P]."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    scaled, product = rows.scaled + i * p, rows.product + i * n
    work[u(rows.step + i)] = 0.0
    add_dot(work, rows.step + i, 1.0, scaled, 1, innovation, 1, p)
    work[u(rows.mean + i)] = work[u(rows.prior_mean + i)]
    work[u(rows.mean + i)] += work[u(rows.step + i)]
    for j in range(n):
        if j <= i or j < p or not leads:
            work[u(product + j)] = work[u(rows.prior + i * n + j)]
            add_dot(work, product + j, -1.0, scaled, 1, factor + j * p, 1, p)


@inline_jit
def store_covariance_row(work, sizes, i, factor):
    """Compute row `i` of the covariance, product + excess · factorᵀ. `factor` is the position of a matrix [n, P]."""
    n, p, _ = sizes
    rows = rows_of(sizes)
    for j in range(i + 1):
        out = rows.covariance + i * n + j
        work[u(out)] = work[u(rows.product + i * n + j)]
        add_dot(work, out, 1.0, rows.excess + i * p, 1, factor + j * p, 1, p)
        work[u(rows.covariance + j * n + i)] = work[u(out)]


@inline_jit
def _condition_row(work, sizes, i):
    """Compute row `i` of the gain K = w P Cᵀ T⁻¹, the mean and the covariance (see the module docstring). Rows before
    `i` are complete."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    gain, scaled, excess, product = rows.gain + i * p, rows.scaled + i * p, rows.excess + i * p, rows.product + i * n
    for a in range(p):
        work[u(gain + a)] = work[u(rows.cross + i * p + a)]
    solve(work, sizes, rows.weighted, gain)
    for a in range(p):
        work[u(scaled + a)] = work[u(gain + a)]
        work[u(scaled + a)] *= work[u(rows.weight)]
    step_row(work, sizes, i, rows.innovation, rows.cross)
    for a in range(p):
        work[u(excess + a)] = 0.0
        add_dot(work, excess + a, 1.0, gain, 1, rows.seen_noise + a, p, p)
        if leads:
            work[u(excess + a)] -= work[u(product + a)]
        else:
            add_dot(work, excess + a, -1.0, product, 1, rows.matrix + a * n, 1, n)
    store_covariance_row(work, sizes, i, rows.scaled)


@inline_jit
def keep_rival(work, sizes):
    """Store the alternative state relative to the filter after its step. After a jump, there is no alternative."""
    n, _, _ = sizes
    rows = rows_of(sizes)
    for i in range(n):
        left = work[u(rows.rival + i)] - work[u(rows.step + i)]
        work[u(rows.offset + i)] = 0.0 if work[u(rows.jump)] > 0 else left
    evidence = work[u(rows.evidence)]
    work[u(rows.evidence)] = 0.0 if work[u(rows.jump)] > 0 else evidence


@source_inline_jit
def predict(work, sizes):
    """Compute the prediction and its innovation. `work` must contain the observation, F and Q."""
    n, _, _ = sizes
    for i in range(n):
        _predict_row(work, sizes, i)
    for i in range(n):
        _spread_row(work, sizes, i)
    _mask_missing(work, sizes)
    for i in range(n):
        _cross_row(work, sizes, i)
    _innovate(work, sizes)


@source_inline_jit
def detect_jump(work, sizes, rule):
    """Enlarge the prior if the state has jumped."""
    inverse_nu, _, patience = rule
    rows = rows_of(sizes)
    if patience > 0:
        _compare(work, sizes, inverse_nu)
        _count_evidence(work, sizes, inverse_nu)
        _update_rival(work, sizes, patience)
        if work[u(rows.jump)] > 0:
            _open_prior(work, sizes)


@source_inline_jit
def update(work, sizes, rule):
    """Compute the posterior from the prediction and its innovation."""
    n, _, _ = sizes
    inverse_nu, inner, patience = rule
    rows = rows_of(sizes)
    _weigh(work, sizes, inverse_nu)
    for _ in range(inner - 1):
        _reweigh(work, sizes, inverse_nu)
    factor(work, sizes, rows.weighted, rows.weight)
    for i in range(n):
        _condition_row(work, sizes, i)
    if patience > 0:
        keep_rival(work, sizes)
