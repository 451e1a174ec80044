"""One observation of one stream of a linear filter, compiled: the Kalman update under the capped rule.

Equations: `rfa.model.recurrence.dense` (capped rule, K passes, missing components, re-acquisition after a jump), in
float64. The numbers are those of `LinearFilter` in float64, in the coordinates of the state. The rule that learns the
noise is in `dense_numba_learned.py`, the layout of `work` in `linear_rows.py`.

Two forms differ from `dense.py`, to save operations. With T = w C P Cᵀ + R, S_w⁻¹ = w T⁻¹ divides nothing by the weight
w; T and S are factored as L D Lᵀ, without roots. And with A = P - K C P Joseph's form (I - K C) P (I - K C)ᵀ + K R Kᵀ
/ w is

    A + (K R / w - A Cᵀ) Kᵀ

The bracket is rounding alone: like Joseph's form, it removes the error of A along what was observed.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

from rfa.runtime.compiling import inline_jit, source_inline_jit
from rfa.runtime.filters.linear_rows import add_dot, distance, factor, rows_of, solve
from rfa.runtime.filters.robust_constants import AGREEMENT, LARGEST_NIS, LEAST_SHARE, OPEN_NOISE

# The prediction.


@inline_jit
def _predict_row(work, sizes, i):
    """F m and F P."""
    n, _, _ = sizes
    rows = rows_of(sizes)
    f = rows.f + i * n, 1
    work[rows.prior_mean + i] = add_dot(0.0, work, 1.0, f, (rows.mean, 1), n)
    for j in range(n):
        work[rows.product + i * n + j] = add_dot(0.0, work, 1.0, f, (rows.covariance + j * n, 1), n)


@inline_jit
def _spread_row(work, sizes, i):
    """F P Fᵀ + Q."""
    n, _, _ = sizes
    rows = rows_of(sizes)
    for j in range(i + 1):
        moved = add_dot(work[rows.q + i * n + j], work, 1.0, (rows.product + i * n, 1), (rows.f + j * n, 1), n)
        work[rows.prior + i * n + j] = moved
        work[rows.prior + j * n + i] = moved


@inline_jit
def _mask_missing(work, sizes):
    """Which components were seen, and the noise of the observation; 0 and 1 where missing."""
    _, p, _ = sizes
    rows = rows_of(sizes)
    work[rows.seen] = 0.0
    for a in range(p):
        value = work[rows.value + a]
        is_seen = value == value
        work[rows.present + a] = 1.0 if is_seen else 0.0
        work[rows.value + a] = value if is_seen else 0.0
        work[rows.seen] += 1.0 if is_seen else 0.0
    scale = work[rows.scale]
    for a in range(p):
        for b in range(p):
            entry = a * p + b
            both = work[rows.present + a] * work[rows.present + b]
            absent = 1.0 if a == b else 0.0
            noise = both * work[rows.noise + entry] * (scale * scale)
            work[rows.seen_noise + entry] = noise + absent * (1 - both)


@inline_jit
def _cross_row(work, sizes, i):
    """P Cᵀ of the components seen."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    for a in range(p):
        if leads:
            seen = work[rows.prior + i * n + a]
        else:
            seen = add_dot(0.0, work, 1.0, (rows.matrix + a * n, 1), (rows.prior + i * n, 1), n)
        work[rows.cross + i * p + a] = seen * work[rows.present + a]


@inline_jit
def _innovate(work, sizes):
    """Innovation e, its covariance S = signal + noise of what was seen, and e'S⁻¹e."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    for a in range(p):
        sensor, present = (rows.matrix + a * n, 1), work[rows.present + a]
        off = work[rows.value + a] - work[rows.bias + a]
        if leads:
            off -= work[rows.prior_mean + a]
        else:
            off = add_dot(off, work, -1.0, sensor, (rows.prior_mean, 1), n)
        work[rows.innovation + a] = off * present
        work[rows.solved + a] = off * present
        for b in range(a + 1):
            if leads:
                signal = work[rows.cross + a * p + b]
            else:
                signal = add_dot(0.0, work, 1.0, sensor, (rows.cross + b, p), n)
            work[rows.signal + a * p + b] = signal * present
    factor(work, sizes, rows.nominal, 1.0)
    work[rows.nis] = distance(work, sizes, rows.nominal, rows.solved)
    work[rows.gate] = work[rows.nis]
    work[rows.jump] = 0.0


@source_inline_jit
def predict(work, sizes):
    """The prediction and its innovation; the observation, F and Q are in `work`."""
    n, _, _ = sizes
    for i in range(n):
        _predict_row(work, sizes, i)
    for i in range(n):
        _spread_row(work, sizes, i)
    _mask_missing(work, sizes)
    for i in range(n):
        _cross_row(work, sizes, i)
    _innovate(work, sizes)


# Jumps. The rival is the state that rejected observations agree on; see `weigh_jump` in `dense.py`.


@inline_jit
def _compare(work, sizes, inverse_nu):
    """The rival, carried to now, against the filter; and by how much a jump enlarges the prior."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    for i in range(n):
        work[rows.rival + i] = add_dot(0.0, work, 1.0, (rows.f + i * n, 1), (rows.offset, 1), n)
    for a in range(p):
        if leads:
            expected = work[rows.rival + a]
        else:
            expected = add_dot(0.0, work, 1.0, (rows.matrix + a * n, 1), (rows.rival, 1), n)
        expected *= work[rows.present + a]
        work[rows.expected + a] = expected
        work[rows.residual + a] = expected
        work[rows.solved + a] = work[rows.innovation + a] - expected
    own = min(work[rows.nis], LARGEST_NIS)
    other = min(distance(work, sizes, rows.nominal, rows.solved), LARGEST_NIS)
    work[rows.ratio] = (1 + own * inverse_nu) / (1 + other * inverse_nu)
    work[rows.rival_distance] = distance(work, sizes, rows.nominal, rows.residual)
    growth = 0.0
    for b in range(p):
        for a in range(p):
            work[rows.solved + a] = work[rows.signal + max(a, b) * p + min(a, b)]
        solve(work, sizes, rows.nominal, rows.solved)
        growth += work[rows.solved + b]
    share = max(growth / max(work[rows.seen], 1.0), LEAST_SHARE)
    work[rows.growth] = max((1 - share) / (OPEN_NOISE * share), 1.0)
    factor(work, sizes, rows.opened, work[rows.growth])


@inline_jit
def _count_evidence(work, sizes, inverse_nu):
    """Evidence stays 0 where the filter does better: the logarithm is seldom needed."""
    rows = rows_of(sizes)
    evidence, ratio = work[rows.evidence], work[rows.ratio]
    if evidence > 0 or ratio > 1:
        nats = 0.5 * (1 / inverse_nu + work[rows.seen]) * math.log(ratio)
        work[rows.evidence] = max(evidence + min(nats / AGREEMENT, 1.0), 0.0)


@inline_jit
def _update_rival(work, sizes, patience):
    """The rival moves to the observation; the filter jumps if the evidence is enough."""
    n, p, _ = sizes
    rows = rows_of(sizes)
    evidence = work[rows.evidence]
    work[rows.jump] = 1.0 if evidence >= patience - 1 else 0.0
    # A rival that differs from the filter and did worse starts again from the filter.
    starts_again = evidence <= 0 and work[rows.rival_distance] >= 1
    for i in range(n):
        rival = work[rows.rival + i]
        work[rows.rival + i] = 0.0 if starts_again else rival
    for a in range(p):
        expected = work[rows.expected + a]
        expected = 0.0 if starts_again else expected
        work[rows.solved + a] = work[rows.innovation + a] - expected
    solve(work, sizes, rows.opened, rows.solved)
    for a in range(p):
        work[rows.solved + a] *= work[rows.growth]
    for i in range(n):
        rival = work[rows.rival + i]
        work[rows.rival + i] = add_dot(rival, work, 1.0, (rows.cross + i * p, 1), (rows.solved, 1), p)


@inline_jit
def _open_prior(work, sizes):
    """Enlarge the prior, so that the update starts again from the observation."""
    n, p, _ = sizes
    rows = rows_of(sizes)
    growth = work[rows.growth]
    for k in range(n * n):
        work[rows.prior + k] *= growth
    for k in range(n * p):
        work[rows.cross + k] *= growth
    for a in range(p):
        work[rows.solved + a] = work[rows.innovation + a]
        for b in range(a + 1):
            work[rows.signal + a * p + b] *= growth
    for k in range(p * p):
        work[rows.nominal + k] = work[rows.opened + k]
    work[rows.gate] = distance(work, sizes, rows.nominal, rows.solved)


@source_inline_jit
def detect_jump(work, sizes, rule):
    """Enlarge the prior where the state has jumped."""
    inverse_nu, _, patience = rule
    rows = rows_of(sizes)
    if patience > 0:
        _compare(work, sizes, inverse_nu)
        _count_evidence(work, sizes, inverse_nu)
        _update_rival(work, sizes, patience)
        if work[rows.jump] > 0:
            _open_prior(work, sizes)


@inline_jit
def keep_rival(work, sizes):
    """The rival relative to the filter after its step; none after a jump."""
    n, _, _ = sizes
    rows = rows_of(sizes)
    jumps = work[rows.jump] > 0
    for i in range(n):
        rest = work[rows.rival + i] - work[rows.step + i]
        work[rows.offset + i] = 0.0 if jumps else rest
    evidence = work[rows.evidence]
    work[rows.evidence] = 0.0 if jumps else evidence


# The update.


@inline_jit
def _weigh(work, sizes, inverse_nu):
    """The capped Student-t weight of an observation whose squared distance is the gate."""
    rows = rows_of(sizes)
    count, gate = work[rows.seen], work[rows.gate]
    work[rows.weight] = min((1 + count * inverse_nu) / (1 + gate * inverse_nu), 1.0)


@inline_jit
def _reweigh(work, sizes, inverse_nu):
    """A pass after the first: by the posterior residual (R / w) S_w⁻¹ e = R T⁻¹ e."""
    _, p, _ = sizes
    rows = rows_of(sizes)
    factor(work, sizes, rows.weighted, work[rows.weight])
    for a in range(p):
        work[rows.solved + a] = work[rows.innovation + a]
    solve(work, sizes, rows.weighted, rows.solved)
    for a in range(p):
        work[rows.residual + a] = add_dot(0.0, work, 1.0, (rows.seen_noise + a * p, 1), (rows.solved, 1), p)
    work[rows.gate] = distance(work, sizes, rows.nominal, rows.residual)
    _weigh(work, sizes, inverse_nu)


@inline_jit
def move_mean(work, sizes, i, innovation):
    """m = m⁻ + scaled · innovation, for state i. innovation: its first index in `work`."""
    _, p, _ = sizes
    rows = rows_of(sizes)
    work[rows.step + i] = add_dot(0.0, work, 1.0, (rows.scaled + i * p, 1), (innovation, 1), p)
    work[rows.mean + i] = work[rows.prior_mean + i] + work[rows.step + i]


@inline_jit
def reduce_row(work, sizes, i, cross):
    """Row i of A = P - scaled · crossᵀ, into `product`; of what no later step reads nothing."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    for j in range(n):
        if j <= i or j < p or not leads:
            prior = work[rows.prior + i * n + j]
            left = rows.scaled + i * p, 1
            work[rows.product + i * n + j] = add_dot(prior, work, -1.0, left, (cross + j * p, 1), p)


@inline_jit
def correct_row(work, sizes, i, gain):
    """Row i of P = A + excess · gainᵀ, and the same column. The rows before i are done."""
    n, p, _ = sizes
    rows = rows_of(sizes)
    for j in range(i + 1):
        reduced = work[rows.product + i * n + j]
        found = add_dot(reduced, work, 1.0, (rows.excess + i * p, 1), (gain + j * p, 1), p)
        work[rows.covariance + i * n + j] = found
        work[rows.covariance + j * n + i] = found


@inline_jit
def _condition_row(work, sizes, i):
    """Gain K = w P Cᵀ T⁻¹, mean and covariance; see the module's page. The rows before `i` are done."""
    n, p, leads = sizes
    rows = rows_of(sizes)
    gain, scaled, product = rows.gain + i * p, rows.scaled + i * p, rows.product + i * n
    for a in range(p):
        work[gain + a] = work[rows.cross + i * p + a]
    solve(work, sizes, rows.weighted, gain)
    for a in range(p):
        work[scaled + a] = work[gain + a] * work[rows.weight]
    move_mean(work, sizes, i, rows.innovation)
    reduce_row(work, sizes, i, rows.cross)
    for a in range(p):
        excess = add_dot(0.0, work, 1.0, (gain, 1), (rows.seen_noise + a, p), p)
        if leads:
            excess -= work[product + a]
        else:
            excess = add_dot(excess, work, -1.0, (product, 1), (rows.matrix + a * n, 1), n)
        work[rows.excess + i * p + a] = excess
    correct_row(work, sizes, i, rows.scaled)


@source_inline_jit
def update(work, sizes, rule):
    """The posterior from the prediction and its innovation."""
    n, _, _ = sizes
    inverse_nu, inner, patience = rule
    rows = rows_of(sizes)
    _weigh(work, sizes, inverse_nu)
    for _ in range(inner - 1):
        _reweigh(work, sizes, inverse_nu)
    factor(work, sizes, rows.weighted, work[rows.weight])
    for i in range(n):
        _condition_row(work, sizes, i)
    if patience > 0:
        keep_rival(work, sizes)
