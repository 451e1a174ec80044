"""The linear filter in process, compiled: one stream as its observations come, or many recorded streams at once.

Equations: `dense.py` (capped rule, K passes, missing components, re-acquisition after a jump) and `modes.py` (F and Q
of a lag), in float64 on a CPU core; the numbers are those of `LinearFilter` in float64, in the coordinates of the
state. The other rule, that learns the noise, is in `dense_numba_learned.py`.

    stream = LinearStream(config)
    mean, covariance, weight, nis = stream.step(t, [1.2, nan])      # NaN: this component was not seen
    result = filter_streams(config, times, observations)            # [N] or [B, N], and [B, N, P]

Two forms differ from `dense.py`, to save operations. With T = w C P Cᵀ + R, S_w⁻¹ = w T⁻¹ divides nothing by the weight
w; T and S are factored as L D Lᵀ, without roots. And with A = P - K C P Joseph's form (I - K C) P (I - K C)ᵀ + K R Kᵀ
/ w is

    A + (K R / w - A Cᵀ) Kᵀ

where the bracket is rounding alone: it takes the error of A along what was observed away again, as Joseph's form does.

Layout: streams lie side by side as lanes of one scratch array, `work[row * width + lane]`, a number of the filter a
row, so every operation is a loop over lanes that the compiler turns into vector instructions. One stream is one lane of
width 1, and the loops are gone. Small systems have kernels compiled for their sizes n and P, in which a row of a matrix
is one loop over lanes and not each of its entries; one pair of kernels does for all others. The first use of a size, or
of the kernels for all, compiles for 10 to 60 seconds, once per machine (the result is cached on disk).
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.filters.linear_config import LinearFilterConfig, stationary_covariance
from rfa.runtime.filters.noise_law import AGREEMENT, LARGEST_NIS, LEAST_SHARE, OPEN_NOISE, PRIOR_COUNTS
from rfa.runtime.filters.spectrum import spectrum

try:
    import numba
except ImportError as error:
    raise ImportError("the compiled linear filter needs numba: pip install 'rfa-server[fast]'") from error

Array = np.ndarray[Any, Any]

# Streams side by side: their scratch stays in the first-level cache.
LANES = 32
# Up to these sizes n and P the kernels are compiled for the sizes; one pair of kernels does for all beyond.
SMALL_STATE, SMALL_SENSOR = 4, 2
# Lags whose F and Q are kept, and lags of one call worked on at a time.
KEPT_LAGS = 4096
LAGS_AT_ONCE = 1 << 17
# A term of the series of I_m below this adds nothing: the sum is not below 1e-7 (x >= -MAX_TERMS * 2).
SMALLEST_TERM = 1e-19
# In the place of the weight, of an observation that is refused.
BAD_VALUE, BAD_NOISE = -1.0, -2.0

# Fused multiply-adds and zeros without a sign, and no other licence: missing values are NaN. Arrays may be made here,
# which has to be said: what a kernel calls is else compiled with that kernel's options, where it is the first to call.
COMPILER_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "fastmath": {"contract", "nsz"},
    "error_model": "numpy",
    "_nrt": True,
}
_compiled = numba.njit(**COMPILER_OPTIONS)
# Sizes are constants to the compiler only in code that is laid into the kernel compiled for them.
_inlined = numba.njit(**COMPILER_OPTIONS, forceinline=True)
# So is this, in Python already: what is large would be optimised once for itself, and again in each of its callers.
_merged = numba.njit(**COMPILER_OPTIONS, inline="always")


class StreamStep(NamedTuple):
    """After an observation, in coordinates of the state: mean `[n]`, covariance `[n, n]`, weight (share of the
    observation used) and nis r'S⁻¹r of the components seen."""

    mean: Array
    covariance: Array
    weight: float
    nis: float


class StreamState(NamedTuple):
    """What a stream goes on from: mean `[n]`, covariance `[n, n]` and time of its last observation; where the config
    follows jumps the suspicion of one, jump_offset `[n]` and jump_evidence; and where it learns the noise, how many
    observations were made with each factor on R, noise_counts `[K]`. Or of B streams, `[B, n]`, `[B, n, n]`, `[B]`,
    `[B, n]`, `[B]` and `[B, K]`. No suspicion given is none, and no counts are those of the prior."""

    mean: Array
    covariance: Array
    time: Any
    jump_offset: Array | None = None
    jump_evidence: Any = None
    noise_counts: Array | None = None


class StreamsResult(NamedTuple):
    """mean `[B, N, n]`, weight and nis `[B, N]`, covariance `[B, N, n, n]` if asked for, and the state at the end."""

    mean: Array
    weight: Array
    nis: Array
    covariance: Array | None
    state: StreamState


class _Rows(NamedTuple):
    """Where things lie in `work`; a matrix takes a row an entry.

    The state of a stream is rows 0 to `scale`, what an observation brings `scale` to `f`, F and Q of the lag to it `f`
    to `matrix`, the sensor (C, b, R) `matrix` to `prior_mean`; the rest is scratch.
    """

    mean: int
    covariance: int
    offset: int
    evidence: int
    scale: int
    value: int
    f: int
    q: int
    matrix: int
    bias: int
    noise: int
    prior_mean: int
    prior: int
    rival: int
    product: int
    cross: int
    gain: int
    scaled: int
    excess: int
    step: int
    signal: int
    seen_noise: int
    nominal: int
    weighted: int
    opened: int
    present: int
    innovation: int
    expected: int
    solved: int
    residual: int
    seen: int
    weight: int
    gate: int
    nis: int
    told: int
    growth: int
    ratio: int
    jump: int
    end: int


@_inlined
def _rows(sizes):
    n, p, _ = sizes
    mean = 0
    covariance = mean + n
    offset = covariance + n * n
    evidence = offset + n
    scale = evidence + 1
    value = scale + 1
    f = value + p
    q = f + n * n
    matrix = q + n * n
    bias = matrix + p * n
    noise = bias + p
    prior_mean = noise + p * p
    prior = prior_mean + n
    rival = prior + n * n
    product = rival + n
    cross = product + n * n
    gain = cross + n * p
    scaled = gain + n * p
    excess = scaled + n * p
    step = excess + n * p
    signal = step + n
    seen_noise = signal + p * p
    nominal = seen_noise + p * p
    weighted = nominal + p * p
    opened = weighted + p * p
    present = opened + p * p
    innovation = present + p
    expected = innovation + p
    solved = expected + p
    residual = solved + p
    seen = residual + p
    return _Rows(
        mean, covariance, offset, evidence, scale, value, f, q, matrix, bias, noise, prior_mean, prior, rival, product,
        cross, gain, scaled, excess, step, signal, seen_noise, nominal, weighted, opened, present, innovation, expected,
        solved, residual, seen, seen + 1, seen + 2, seen + 3, seen + 4, seen + 5, seen + 6, seen + 7, seen + 8,
    )  # fmt: skip


# F and Q of a lag.


@_compiled
def _decayed_power(rate, t, k):
    """t^k e^{rate t}, a product that does not overflow before it decays."""
    if k == 0:
        return np.exp(rate * t)
    root = t * np.exp(rate * t / k)
    power = root
    for _ in range(k - 1):
        power *= root
    return power


@_compiled
def _integrals(z, t, found):
    """I_m(z, t) for m < len(found); see `modes.py`. The series is enough in float64."""
    x = z * t
    if abs(x) <= max(len(found) - 1, 1):
        for m in range(len(found)):
            term, total, k = 1.0 + 0.0j, 0.0j, 0
            while abs(term) > SMALLEST_TERM:
                total += term / (m + k + 1)
                k += 1
                term *= x / k
            found[m] = t ** (m + 1) * total
        return
    found[0] = (np.exp(x) - 1) / z
    for m in range(1, len(found)):
        found[m] = (_decayed_power(z, t, m) - m * found[m - 1]) / z


@_compiled
def _transition(lag, rates, basis, dual, powers, noises, f, q):
    n = len(rates)
    inner = np.zeros((n, n), np.complex128)
    left = np.zeros((n, n), np.complex128)
    for j in range(n):
        for k in range(len(powers)):
            factor = _decayed_power(rates[j], lag, k)
            for i in range(n):
                inner[i, j] += powers[k, i, j] * factor
    for i in range(n):
        for j in range(n):
            total = 0.0j
            for k in range(n):
                total += basis[i, k] * inner[k, j]
            left[i, j] = total
    for i in range(n):
        for j in range(n):
            total = 0.0j
            for k in range(n):
                total += left[i, k] * dual[k, j]
            f[i, j] = total.real
    found = np.empty(len(noises), np.complex128)
    for i in range(n):
        for j in range(i, n):
            _integrals(rates[i] + np.conj(rates[j]), lag, found)
            total = 0.0j
            for m in range(len(noises)):
                total += noises[m, i, j] * found[m]
            inner[i, j] = total
            inner[j, i] = np.conj(total)
    for i in range(n):
        for j in range(n):
            total = 0.0j
            for k in range(n):
                total += basis[i, k] * inner[k, j]
            left[i, j] = total
    for i in range(n):
        for j in range(i, n):
            total = 0.0
            for k in range(n):
                total += (left[i, k] * np.conj(basis[j, k])).real
            q[i, j] = total
            q[j, i] = total


@_compiled
def _transitions(lags, rates, basis, dual, powers, noises):
    """F and Q of every lag, `[U, 2, n, n]`."""
    n = len(rates)
    moves = np.empty((len(lags), 2, n, n))
    for i in range(len(lags)):
        _transition(lags[i], rates, basis, dual, powers, noises, moves[i, 0], moves[i, 1])
    return moves


# Operations on rows. `lanes` is the width of `work` and the lanes to work on, from one to before another.


@_inlined
def _index(row, width, lane):
    """Unsigned, so that the compiler need not ask whether it counts from the end."""
    return np.uint64(row * width + lane)


@_inlined
def _set(work, out, value, lanes):
    width, first, stop = lanes
    for lane in range(first, stop):
        work[_index(out, width, lane)] = value


@_inlined
def _copy(work, out, row, lanes):
    width, first, stop = lanes
    for lane in range(first, stop):
        work[_index(out, width, lane)] = work[_index(row, width, lane)]


@_inlined
def _multiply(work, out, row, lanes):
    """out *= row."""
    width, first, stop = lanes
    for lane in range(first, stop):
        work[_index(out, width, lane)] *= work[_index(row, width, lane)]


@_inlined
def _add(work, out, row, lanes):
    width, first, stop = lanes
    for lane in range(first, stop):
        work[_index(out, width, lane)] += work[_index(row, width, lane)]


@_inlined
def _add_dot(work, out, sign, a, a_step, b, b_step, count, lanes):
    """out += sign · sum_k row(a + k a_step) · row(b + k b_step), four terms a loop."""
    width, first, stop = lanes
    while count >= 4:
        a1, a2, a3 = a + a_step, a + 2 * a_step, a + 3 * a_step
        b1, b2, b3 = b + b_step, b + 2 * b_step, b + 3 * b_step
        for lane in range(first, stop):
            total = work[_index(out, width, lane)] + sign * (
                work[_index(a, width, lane)] * work[_index(b, width, lane)]
            )
            total += sign * (work[_index(a1, width, lane)] * work[_index(b1, width, lane)])
            total += sign * (work[_index(a2, width, lane)] * work[_index(b2, width, lane)])
            work[_index(out, width, lane)] = total + sign * (
                work[_index(a3, width, lane)] * work[_index(b3, width, lane)]
            )
        a, b, count = a + 4 * a_step, b + 4 * b_step, count - 4
    for k in range(count):
        left, right = a + k * a_step, b + k * b_step
        for lane in range(first, stop):
            work[_index(out, width, lane)] += sign * (
                work[_index(left, width, lane)] * work[_index(right, width, lane)]
            )


@_inlined
def _factor(work, sizes, target, scale, lanes):
    """L D Lᵀ = scale · signal + noise, at row `target`: L below the diagonal, 1 / D on it, and D Lᵀ above."""
    _, p, _ = sizes
    at = _rows(sizes)
    width, first, stop = lanes
    for j in range(p):
        diagonal = target + j * p + j
        for i in range(j, p):
            upper, lower, entry = target + j * p + i, target + i * p + j, i * p + j
            for lane in range(first, stop):
                work[_index(upper, width, lane)] = (
                    work[_index(scale, width, lane)] * work[_index(at.signal + entry, width, lane)]
                    + work[_index(at.seen_noise + entry, width, lane)]
                )
            _add_dot(work, upper, -1.0, target + j * p, 1, target + i, p, j, lanes)
            if i == j:
                for lane in range(first, stop):
                    work[_index(diagonal, width, lane)] = 1 / work[_index(diagonal, width, lane)]
            else:
                for lane in range(first, stop):
                    work[_index(lower, width, lane)] = (
                        work[_index(upper, width, lane)] * work[_index(diagonal, width, lane)]
                    )


@_inlined
def _solve_lower(work, sizes, factor, x, lanes):
    """L⁻¹ x in place."""
    _, p, _ = sizes
    for a in range(1, p):
        _add_dot(work, x + a, -1.0, factor + a * p, 1, x, 1, a, lanes)


@_inlined
def _solve(work, sizes, factor, x, lanes):
    """(L D Lᵀ)⁻¹ x in place."""
    _, p, _ = sizes
    _solve_lower(work, sizes, factor, x, lanes)
    for back in range(p):
        a = p - 1 - back
        _multiply(work, x + a, factor + a * p + a, lanes)
        _add_dot(work, x + a, -1.0, factor + (a + 1) * p + a, p, x + a + 1, 1, back, lanes)


@_inlined
def _distance(work, sizes, out, factor, x, lanes):
    """out = x'(L D Lᵀ)⁻¹x; x becomes L⁻¹ x."""
    _, p, _ = sizes
    width, first, stop = lanes
    _solve_lower(work, sizes, factor, x, lanes)
    _set(work, out, 0.0, lanes)
    for a in range(p):
        for lane in range(first, stop):
            size = work[_index(x + a, width, lane)]
            work[_index(out, width, lane)] += size * size * work[_index(factor + a * p + a, width, lane)]


# The filter. The rows of a matrix are worked on one by one, `i`.


@_inlined
def _predict_row(work, sizes, i, lanes):
    """F m and F P."""
    n, _, _ = sizes
    at = _rows(sizes)
    _set(work, at.prior_mean + i, 0.0, lanes)
    _add_dot(work, at.prior_mean + i, 1.0, at.f + i * n, 1, at.mean, 1, n, lanes)
    for j in range(n):
        out = at.product + i * n + j
        _set(work, out, 0.0, lanes)
        _add_dot(work, out, 1.0, at.f + i * n, 1, at.covariance + j * n, 1, n, lanes)


@_inlined
def _spread_row(work, sizes, i, lanes):
    """F P Fᵀ + Q."""
    n, _, _ = sizes
    at = _rows(sizes)
    for j in range(i + 1):
        out = at.prior + i * n + j
        _copy(work, out, at.q + i * n + j, lanes)
        _add_dot(work, out, 1.0, at.product + i * n, 1, at.f + j * n, 1, n, lanes)
        _copy(work, at.prior + j * n + i, out, lanes)


@_inlined
def _see(work, sizes, lanes):
    """Which components were seen, and the noise of the observation; 0 and 1 where missing."""
    _, p, _ = sizes
    at = _rows(sizes)
    width, first, stop = lanes
    _set(work, at.seen, 0.0, lanes)
    for a in range(p):
        value, present = at.value + a, at.present + a
        for lane in range(first, stop):
            given = work[_index(value, width, lane)]
            is_seen = given == given
            work[_index(present, width, lane)] = 1.0 if is_seen else 0.0
            work[_index(value, width, lane)] = given if is_seen else 0.0
            work[_index(at.seen, width, lane)] += 1.0 if is_seen else 0.0
    for a in range(p):
        for b in range(p):
            absent, entry = 1.0 if a == b else 0.0, a * p + b
            for lane in range(first, stop):
                scale = work[_index(at.scale, width, lane)]
                both = work[_index(at.present + a, width, lane)] * work[_index(at.present + b, width, lane)]
                work[_index(at.seen_noise + entry, width, lane)] = both * work[
                    _index(at.noise + entry, width, lane)
                ] * (scale * scale) + absent * (1 - both)


@_inlined
def _cross_row(work, sizes, i, lanes):
    """P Cᵀ of the components seen."""
    n, p, leads = sizes
    at = _rows(sizes)
    for a in range(p):
        out = at.cross + i * p + a
        if leads:
            _copy(work, out, at.prior + i * n + a, lanes)
        else:
            _set(work, out, 0.0, lanes)
            _add_dot(work, out, 1.0, at.matrix + a * n, 1, at.prior + i * n, 1, n, lanes)
        _multiply(work, out, at.present + a, lanes)


@_inlined
def _observe(work, sizes, lanes):
    """Innovation e, its covariance S = signal + noise of what was seen, and e'S⁻¹e."""
    n, p, leads = sizes
    at = _rows(sizes)
    width, first, stop = lanes
    for a in range(p):
        out = at.innovation + a
        for lane in range(first, stop):
            work[_index(out, width, lane)] = (
                work[_index(at.value + a, width, lane)] - work[_index(at.bias + a, width, lane)]
            )
        if leads:
            for lane in range(first, stop):
                work[_index(out, width, lane)] -= work[_index(at.prior_mean + a, width, lane)]
        else:
            _add_dot(work, out, -1.0, at.matrix + a * n, 1, at.prior_mean, 1, n, lanes)
        _multiply(work, out, at.present + a, lanes)
        _copy(work, at.solved + a, out, lanes)
        for b in range(a + 1):
            out = at.signal + a * p + b
            if leads:
                _copy(work, out, at.cross + a * p + b, lanes)
            else:
                _set(work, out, 0.0, lanes)
                _add_dot(work, out, 1.0, at.matrix + a * n, 1, at.cross + b, p, n, lanes)
            _multiply(work, out, at.present + a, lanes)
    _set(work, at.weight, 1.0, lanes)
    _factor(work, sizes, at.nominal, at.weight, lanes)
    _distance(work, sizes, at.nis, at.nominal, at.solved, lanes)
    _copy(work, at.gate, at.nis, lanes)
    _set(work, at.jump, 0.0, lanes)


@_inlined
def _compare(work, sizes, inverse_nu, lanes):
    """The rival, carried to now, against the filter; and by how much a jump enlarges the prior. See `weigh_jump`."""
    n, p, leads = sizes
    at = _rows(sizes)
    width, first, stop = lanes
    for i in range(n):
        _set(work, at.rival + i, 0.0, lanes)
        _add_dot(work, at.rival + i, 1.0, at.f + i * n, 1, at.offset, 1, n, lanes)
    for a in range(p):
        out = at.expected + a
        if leads:
            _copy(work, out, at.rival + a, lanes)
        else:
            _set(work, out, 0.0, lanes)
            _add_dot(work, out, 1.0, at.matrix + a * n, 1, at.rival, 1, n, lanes)
        _multiply(work, out, at.present + a, lanes)
        _copy(work, at.residual + a, out, lanes)
        for lane in range(first, stop):
            work[_index(at.solved + a, width, lane)] = (
                work[_index(at.innovation + a, width, lane)] - work[_index(out, width, lane)]
            )
    _distance(work, sizes, at.told, at.nominal, at.solved, lanes)
    for lane in range(first, stop):
        own, other = (
            min(work[_index(at.nis, width, lane)], LARGEST_NIS),
            min(work[_index(at.told, width, lane)], LARGEST_NIS),
        )
        work[_index(at.ratio, width, lane)] = (1 + own * inverse_nu) / (1 + other * inverse_nu)
    _distance(work, sizes, at.told, at.nominal, at.residual, lanes)

    _set(work, at.growth, 0.0, lanes)
    for b in range(p):
        for a in range(p):
            _copy(work, at.solved + a, at.signal + max(a, b) * p + min(a, b), lanes)
        _solve(work, sizes, at.nominal, at.solved, lanes)
        for lane in range(first, stop):
            work[_index(at.growth, width, lane)] += work[_index(at.solved + b, width, lane)]
    for lane in range(first, stop):
        share = max(work[_index(at.growth, width, lane)] / max(work[_index(at.seen, width, lane)], 1.0), LEAST_SHARE)
        work[_index(at.growth, width, lane)] = max((1 - share) / (OPEN_NOISE * share), 1.0)
    _factor(work, sizes, at.opened, at.growth, lanes)


@_inlined
def _count_evidence(work, sizes, inverse_nu, lanes):
    """Logarithms are taken one by one, and seldom: no evidence stays none where the filter does better."""
    at = _rows(sizes)
    width, first, stop = lanes
    for lane in range(first, stop):
        evidence, ratio = work[_index(at.evidence, width, lane)], work[_index(at.ratio, width, lane)]
        if evidence > 0 or ratio > 1:
            nats = 0.5 * (1 / inverse_nu + work[_index(at.seen, width, lane)]) * math.log(ratio)
            work[_index(at.evidence, width, lane)] = max(evidence + min(nats / AGREEMENT, 1.0), 0.0)


@_inlined
def _follow(work, sizes, patience, lanes):
    """The rival goes to the observation, and the filter with it if it jumps."""
    n, p, _ = sizes
    at = _rows(sizes)
    width, first, stop = lanes
    for lane in range(first, stop):
        evidence = work[_index(at.evidence, width, lane)]
        work[_index(at.jump, width, lane)] = 1.0 if evidence >= patience - 1 else 0.0
        # One that was told from the filter's own prediction and did worse starts again from the filter.
        work[_index(at.told, width, lane)] = work[_index(at.told, width, lane)] if evidence <= 0 else 0.0
    for i in range(n):
        for lane in range(first, stop):
            kept = work[_index(at.rival + i, width, lane)]
            work[_index(at.rival + i, width, lane)] = 0.0 if work[_index(at.told, width, lane)] >= 1 else kept
    for a in range(p):
        for lane in range(first, stop):
            expected = work[_index(at.expected + a, width, lane)]
            expected = 0.0 if work[_index(at.told, width, lane)] >= 1 else expected
            work[_index(at.solved + a, width, lane)] = work[_index(at.innovation + a, width, lane)] - expected
    _solve(work, sizes, at.opened, at.solved, lanes)
    for a in range(p):
        _multiply(work, at.solved + a, at.growth, lanes)
    for i in range(n):
        _add_dot(work, at.rival + i, 1.0, at.cross + i * p, 1, at.solved, 1, p, lanes)


@_inlined
def _jump(work, sizes, lanes):
    """Enlarge the prior, so that the update starts again from the observation."""
    n, p, _ = sizes
    at = _rows(sizes)
    for row in range(n * n):
        _multiply(work, at.prior + row, at.growth, lanes)
    for row in range(n * p):
        _multiply(work, at.cross + row, at.growth, lanes)
    for a in range(p):
        _copy(work, at.solved + a, at.innovation + a, lanes)
        for b in range(a + 1):
            _multiply(work, at.signal + a * p + b, at.growth, lanes)
    for row in range(p * p):
        _copy(work, at.nominal + row, at.opened + row, lanes)
    _distance(work, sizes, at.gate, at.nominal, at.solved, lanes)


@_inlined
def _weigh(work, sizes, inverse_nu, lanes):
    """The capped Student-t weight of an observation whose squared distance is the gate."""
    at = _rows(sizes)
    width, first, stop = lanes
    for lane in range(first, stop):
        count, gate = work[_index(at.seen, width, lane)], work[_index(at.gate, width, lane)]
        work[_index(at.weight, width, lane)] = min((1 + count * inverse_nu) / (1 + gate * inverse_nu), 1.0)


@_inlined
def _reweigh(work, sizes, inverse_nu, lanes):
    """A pass after the first: by the posterior residual (R / w) S_w⁻¹ e = R T⁻¹ e."""
    _, p, _ = sizes
    at = _rows(sizes)
    _factor(work, sizes, at.weighted, at.weight, lanes)
    for a in range(p):
        _copy(work, at.solved + a, at.innovation + a, lanes)
    _solve(work, sizes, at.weighted, at.solved, lanes)
    for a in range(p):
        _set(work, at.residual + a, 0.0, lanes)
        _add_dot(work, at.residual + a, 1.0, at.seen_noise + a * p, 1, at.solved, 1, p, lanes)
    _distance(work, sizes, at.gate, at.nominal, at.residual, lanes)
    _weigh(work, sizes, inverse_nu, lanes)


@_inlined
def _condition_row(work, sizes, i, lanes):
    """Gain K = w P Cᵀ T⁻¹, mean and covariance; see the module's page. The rows before `i` are done."""
    n, p, leads = sizes
    at = _rows(sizes)
    width, first, stop = lanes
    gain, scaled, excess, product = at.gain + i * p, at.scaled + i * p, at.excess + i * p, at.product + i * n
    for a in range(p):
        _copy(work, gain + a, at.cross + i * p + a, lanes)
    _solve(work, sizes, at.weighted, gain, lanes)
    for a in range(p):
        _copy(work, scaled + a, gain + a, lanes)
        _multiply(work, scaled + a, at.weight, lanes)
    _set(work, at.step + i, 0.0, lanes)
    _add_dot(work, at.step + i, 1.0, scaled, 1, at.innovation, 1, p, lanes)
    _copy(work, at.mean + i, at.prior_mean + i, lanes)
    _add(work, at.mean + i, at.step + i, lanes)
    for j in range(n):
        if j <= i or j < p or not leads:
            _copy(work, product + j, at.prior + i * n + j, lanes)
            _add_dot(work, product + j, -1.0, scaled, 1, at.cross + j * p, 1, p, lanes)
    for a in range(p):
        _set(work, excess + a, 0.0, lanes)
        _add_dot(work, excess + a, 1.0, gain, 1, at.seen_noise + a, p, p, lanes)
        if leads:
            for lane in range(first, stop):
                work[_index(excess + a, width, lane)] -= work[_index(product + a, width, lane)]
        else:
            _add_dot(work, excess + a, -1.0, product, 1, at.matrix + a * n, 1, n, lanes)
    for j in range(i + 1):
        out = at.covariance + i * n + j
        _copy(work, out, product + j, lanes)
        _add_dot(work, out, 1.0, excess, 1, at.scaled + j * p, 1, p, lanes)
        _copy(work, at.covariance + j * n + i, out, lanes)


@_inlined
def _settle(work, sizes, lanes):
    """The suspicion after the filter's own step; none once it has jumped."""
    n, _, _ = sizes
    at = _rows(sizes)
    width, first, stop = lanes
    for i in range(n):
        for lane in range(first, stop):
            left = work[_index(at.rival + i, width, lane)] - work[_index(at.step + i, width, lane)]
            work[_index(at.offset + i, width, lane)] = 0.0 if work[_index(at.jump, width, lane)] > 0 else left
    for lane in range(first, stop):
        evidence = work[_index(at.evidence, width, lane)]
        work[_index(at.evidence, width, lane)] = 0.0 if work[_index(at.jump, width, lane)] > 0 else evidence


@_merged
def _foresee(work, sizes, shape):
    """The prediction of every lane, and its innovation."""
    n, _, _ = sizes
    width, block = shape
    for i in range(n):
        for lane in range(0, width, block):
            _predict_row(work, sizes, i, (width, lane, lane + block))
    for i in range(n):
        for lane in range(0, width, block):
            _spread_row(work, sizes, i, (width, lane, lane + block))
    for lane in range(0, width, block):
        _see(work, sizes, (width, lane, lane + block))
    for i in range(n):
        for lane in range(0, width, block):
            _cross_row(work, sizes, i, (width, lane, lane + block))
    for lane in range(0, width, block):
        _observe(work, sizes, (width, lane, lane + block))


@_merged
def _doubt(work, sizes, shape, rule):
    """Whether the state of a lane jumped: its prior is enlarged then."""
    width, block = shape
    inverse_nu, _, patience = rule
    at = _rows(sizes)
    if patience > 0:
        for lane in range(0, width, block):
            _compare(work, sizes, inverse_nu, (width, lane, lane + block))
        _count_evidence(work, sizes, inverse_nu, (width, 0, width))
        for lane in range(0, width, block):
            _follow(work, sizes, patience, (width, lane, lane + block))
        for lane in range(width):
            if work[_index(at.jump, width, lane)] > 0:
                _jump(work, sizes, (width, lane, lane + 1))


@_merged
def _update(work, sizes, shape, rule):
    """The posterior of every lane from its prediction and innovation."""
    n, _, _ = sizes
    width, block = shape
    inverse_nu, inner, patience = rule
    at = _rows(sizes)
    for lane in range(0, width, block):
        _weigh(work, sizes, inverse_nu, (width, lane, lane + block))
    for _ in range(inner - 1):
        for lane in range(0, width, block):
            _reweigh(work, sizes, inverse_nu, (width, lane, lane + block))
    for lane in range(0, width, block):
        _factor(work, sizes, at.weighted, at.weight, (width, lane, lane + block))
    for i in range(n):
        for lane in range(0, width, block):
            _condition_row(work, sizes, i, (width, lane, lane + block))
    if patience > 0:
        for lane in range(0, width, block):
            _settle(work, sizes, (width, lane, lane + block))


@_merged
def _advance(work, sizes, shape, rule):
    """One observation of every lane; what it brings, F and Q are filled in."""
    _foresee(work, sizes, shape)
    _doubt(work, sizes, shape, rule)
    _update(work, sizes, shape, rule)


@_merged
def _step(advance, work, sizes, moves, rule):
    """One observation of the stream in `work`, of width 1: its weight and nis, or why it was refused.

    advance: the rule's; see `_advance`.
    """
    n, p, _ = sizes
    at = _rows(sizes)
    if not 0 < work[at.scale] < math.inf:
        return BAD_NOISE, 0.0
    for a in range(p):
        if abs(work[at.value + a]) == math.inf:
            return BAD_VALUE, 0.0
    for k in range(2 * n * n):
        work[at.f + k] = moves[k]
    advance(work, sizes, (1, 1), rule)
    return work[at.weight], work[at.nis]


@_merged
def _scan(advance, sizes, shape, beyond, sensor, rule, streams, steps, inputs, moves, state, outputs):
    """Steps [steps[0], steps[1]) of streams [streams[0], streams[1]), a width of them at a time.

    Lanes beyond the last stream repeat it, and nobody reads them. beyond: how many rows the rule adds after those of
    `_rows`, and how many of them, the first, are part of the state.
    """
    n, p, _ = sizes
    width, _ = shape
    added, kept = beyond
    at = _rows(sizes)
    values, scales, index = inputs
    out_mean, out_weight, out_nis, out_covariance = outputs
    work = np.empty((at.end + added) * width)
    previous = np.empty(width, np.int64)
    last = streams[1] - 1
    has_common_lags, has_scales = len(index) == 1, len(scales) > 1 or scales.shape[1] > 1
    for k in range(len(sensor)):
        _set(work, at.matrix + k, sensor[k], (width, 0, width))
    _set(work, at.scale, 1.0, (width, 0, width))
    for first in range(streams[0], streams[1], width):
        own = min(width, streams[1] - first)
        previous[:] = -1
        for lane in range(width):
            for k in range(at.scale):
                work[_index(k, width, lane)] = state[min(first + lane, last), k]
            for k in range(kept):
                work[_index(at.end + k, width, lane)] = state[min(first + lane, last), at.scale + k]
        for t in range(steps[0], steps[1]):
            if has_common_lags:
                row = index[0, t - steps[0]]
                if row != previous[0]:
                    previous[0] = row
                    for k in range(2 * n * n):
                        _set(work, at.f + k, moves[row, k], (width, 0, width))
            else:
                for lane in range(width):
                    row = index[min(first + lane, last), t - steps[0]]
                    if row != previous[lane]:
                        previous[lane] = row
                        for k in range(2 * n * n):
                            work[_index(at.f + k, width, lane)] = moves[row, k]
            for lane in range(width):
                for a in range(p):
                    work[_index(at.value + a, width, lane)] = values[min(first + lane, last), t, a]
            if has_scales:
                for lane in range(width):
                    work[_index(at.scale, width, lane)] = scales[min(first + lane, last), t]
            advance(work, sizes, shape, rule)
            for lane in range(own):
                for i in range(n):
                    out_mean[first + lane, t, i] = work[_index(at.mean + i, width, lane)]
                out_weight[first + lane, t] = work[_index(at.weight, width, lane)]
                out_nis[first + lane, t] = work[_index(at.nis, width, lane)]
            if out_covariance.shape[1] > 0:
                for lane in range(own):
                    for i in range(n):
                        for j in range(n):
                            out_covariance[first + lane, t, i, j] = work[_index(at.covariance + i * n + j, width, lane)]
        for lane in range(own):
            for k in range(at.scale):
                state[first + lane, k] = work[_index(k, width, lane)]
            for k in range(kept):
                state[first + lane, at.scale + k] = work[_index(at.end + k, width, lane)]


@_compiled
def _step_any(n, p, leads, work, moves, inverse_nu, inner, patience):
    return _step(_advance, work, (n, p, leads), moves, (inverse_nu, inner, patience))


@_compiled
def _scan_any(n, p, leads, sensor, rule, streams, steps, inputs, moves, state, outputs):
    _scan(_advance, (n, p, leads), (LANES, LANES), (0, 0), sensor, rule, streams, steps, inputs, moves, state, outputs)


@functools.cache
def _kernels(n: int, p: int, leads: bool) -> tuple[Any, Any]:
    """The step of one stream and the scan of many; leads: C is the first rows of the identity."""
    if n > SMALL_STATE or p > SMALL_SENSOR:
        return functools.partial(_step_any, n, p, leads), functools.partial(_scan_any, n, p, leads)
    shape = LANES, 1

    @_compiled
    def step(work, moves, inverse_nu, inner, patience):
        return _step(_advance, work, (n, p, leads), moves, (inverse_nu, inner, patience))

    @_compiled
    def scan(sensor, rule, streams, steps, inputs, moves, state, outputs):
        _scan(_advance, (n, p, leads), shape, (0, 0), sensor, rule, streams, steps, inputs, moves, state, outputs)

    return step, scan


# The interface.


class CompiledSystem:
    """What the compiled code needs of a config."""

    def __init__(self, config: LinearFilterConfig) -> None:
        drift, noise = np.asarray(config.drift), np.asarray(config.measurement_noise)
        self.n, self.p = n, p = len(drift), len(noise)
        matrix = np.eye(n) if config.observation is None else np.asarray(config.observation)
        offset = np.zeros(p) if config.offset is None else np.asarray(config.offset)
        self.sensor = np.concatenate([matrix.ravel(), offset, noise.ravel()])
        leads = bool(p <= n and (matrix == np.eye(p, n)).all())
        self.rows = _rows.py_func((n, p, leads))
        # Where a stream's state lies in its rows, of which there are `size`.
        self.kept, self.size = np.arange(self.rows.scale), self.rows.end
        self.learns = config.nu is not None and config.rule == "learned"
        if self.learns:
            # Not above: it is made of the functions of this file, and few have a use for it.
            from rfa.runtime.filters.dense_numba_learned import kernels, size

            self.kept = np.append(self.kept, self.rows.end + np.arange(len(PRIOR_COUNTS)))
            self.size = size(n, p)
            self.step, self.scan = kernels(n, p, leads)
        else:
            self.step, self.scan = _kernels(n, p, leads)
        # Without robust weights every pass gives weight 1, and there is no jump that is not followed.
        self.follows = config.nu is not None and config.reacquire is not None
        inner = 1 if config.nu is None else config.inner
        patience = config.reacquire if self.follows else 0
        # What is learned takes a factor each for the passes.
        turns = len(PRIOR_COUNTS) if self.learns else inner
        self.rule = 0.0 if config.nu is None else 1 / config.nu, turns, patience
        found, process_noise = spectrum(drift), np.asarray(config.process_noise)
        parts = (found.rates, found.basis, found.dual, found.powers(), found.noises(process_noise))
        self.modes = tuple(np.ascontiguousarray(part, np.complex128) for part in parts)
        self.prior_mean = np.zeros(n) if config.initial_mean is None else np.asarray(config.initial_mean)
        given = config.initial_covariance
        self.prior_covariance = stationary_covariance(config) if given is None else np.asarray(given)

    def transitions(self, lags: Array) -> Array:
        """F and Q `[U, 2 n n]`."""
        return _transitions(lags, *self.modes).reshape(len(lags), 2 * self.n * self.n)  # type: ignore[no-any-return]

    def pack(self, state: StreamState | None, *batch: int) -> Array:
        """The rows `[*batch, S]` of a state, default the prior."""
        rows, n = self.rows, self.n
        packed = np.zeros((*batch, len(self.kept)))
        if self.learns:
            packed[..., rows.scale :] = PRIOR_COUNTS
        if state is None:
            packed[..., : rows.covariance] = self.prior_mean
            packed[..., rows.covariance : rows.offset] = self.prior_covariance.ravel()
            return packed
        packed[..., : rows.covariance] = checked("state.mean", state.mean, (*batch, n))
        covariance = checked("state.covariance", state.covariance, (*batch, n, n))
        packed[..., rows.covariance : rows.offset] = covariance.reshape(*batch, -1)
        if state.jump_offset is not None or state.jump_evidence is not None:
            if not self.follows:
                raise ValueError(
                    "state.jump_offset must be null: this filter follows no jumps (nu or reacquire is null)"
                )
            packed[..., rows.offset : rows.evidence] = checked("state.jump_offset", state.jump_offset, (*batch, n))
            packed[..., rows.evidence] = checked("state.jump_evidence", state.jump_evidence, batch)
        if state.noise_counts is not None:
            packed[..., rows.scale :] = self._checked_counts(state.noise_counts, batch)
        return packed

    def _checked_counts(self, given: Any, batch: tuple[int, ...]) -> Array:
        if not self.learns:
            raise ValueError(
                "state.noise_counts must be null: this filter learns no noise (rule is 'capped', or nu null)"
            )
        counts = checked("state.noise_counts", given, (*batch, len(PRIOR_COUNTS)))
        if not ((counts >= 0).all() and (counts.sum(-1) > 0).all()):
            raise ValueError("state.noise_counts must not be negative, and not all zero")
        return counts

    def unpack(self, packed: Array, time: Any) -> StreamState:
        """The state in rows `[..., S]`; its arrays are views."""
        rows, n = self.rows, self.n
        covariance = packed[..., rows.covariance : rows.offset].reshape(*packed.shape[:-1], n, n)
        suspicion: tuple[Any, Any] = None, None
        if self.follows:
            suspicion = packed[..., rows.offset : rows.evidence], packed[..., rows.evidence]
        counts = packed[..., rows.scale :] if self.learns else None
        return StreamState(packed[..., : rows.covariance], covariance, time, *suspicion, counts)


class LinearStream:
    """A stream that is filtered as its observations come. It can be copied and pickled.

    Args:
        config: the system.
        state: where to go on, as another stream's `state` gave it; default the prior.
    """

    def __init__(self, config: LinearFilterConfig, *, state: StreamState | None = None) -> None:
        self._config = config
        self._system = system = CompiledSystem(config)
        rows, n, p = system.rows, system.n, system.p
        # One memory, seen as numbers by the compiled code and as bytes by `pack_into`, which is quicker than numpy.
        self._memory = bytearray(8 * system.size)
        self._work = np.frombuffer(self._memory)
        self._work[system.kept] = system.pack(state)
        self._work[rows.matrix : rows.prior_mean] = system.sensor
        self._result = self._work[: rows.offset].reshape(n + 1, n)
        self._pack_into, self._place = struct.Struct(f"={p + 1}d").pack_into, 8 * rows.scale
        self._step, self._rule = system.step, system.rule
        self._moves: dict[float, Array] = {}
        self._time: float | None = None if state is None else float(state.time)

    def step(self, t: float, y: Sequence[float | None] | Array | None, noise: float = 1.0) -> StreamStep:
        """Condition on an observation.

        Args:
            t: its time, not before the last one's.
            y: P values; NaN or None where a component was not seen, or None if nothing was.
            noise: factor on the standard deviation of its measurement noise.

        Raises:
            ValueError: naming the argument. The stream is as it was before.
        """
        try:
            self._pack_into(self._memory, self._place, noise, *y)  # type: ignore[misc]
            moves = self._moves[t - self._time]  # type: ignore[operator]
        except (KeyError, TypeError, struct.error):
            moves = self._prepare(t, y, noise)
        weight, nis = self._step(self._work, moves, *self._rule)
        if weight < 0:
            if weight == BAD_NOISE:
                raise ValueError(f"noise must be positive, got {noise}")
            raise ValueError("y must be finite, or NaN where a component was not seen")
        self._time = t
        found = self._result.copy()
        return StreamStep(found[0], found[1:], weight, nis)

    def _prepare(self, t: float, y: Sequence[float | None] | Array | None, noise: float) -> Array:
        """What is not the usual: a missing component given as None, a lag that was not seen before, a bad argument."""
        lag = 0.0 if self._time is None else t - self._time
        if not 0 <= lag < math.inf or not math.isfinite(t):
            raise ValueError(f"t must be finite and not before {self._time}, got {t}")
        size = self._system.p
        values = [math.nan] * size if y is None else [math.nan if value is None else value for value in y]
        if len(values) != size:
            raise ValueError(f"y must have {size} components, got {len(values)}")
        try:
            self._pack_into(self._memory, self._place, noise, *values)
        except struct.error:
            raise ValueError(f"y and noise must be numbers, got {y} and {noise}") from None
        moves = self._moves.get(lag)
        if moves is None:
            if len(self._moves) >= KEPT_LAGS:
                self._moves.clear()
            self._moves[lag] = moves = self._system.transitions(np.array([lag], np.float64))[0]
        return moves

    @property
    def state(self) -> StreamState:
        """What another stream can go on from.

        Raises:
            ValueError: before the first observation.
        """
        if self._time is None:
            raise ValueError("a stream has no state before its first observation")
        return self._system.unpack(self._work[self._system.kept], self._time)

    def __reduce__(self) -> tuple[Any, ...]:
        return _resumed, (self._config, None if self._time is None else self.state)


def _resumed(config: LinearFilterConfig, state: StreamState | None) -> LinearStream:
    return LinearStream(config, state=state)


def checked(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = np.array(value, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    return array


def filter_streams(
    config: LinearFilterConfig,
    times: Array,
    observations: Array,
    *,
    noise: Array | None = None,
    state: StreamState | None = None,
    covariances: bool = False,
    threads: int = 1,
) -> StreamsResult:
    """Filter many streams of one system.

    Args:
        times: `[N]` of all streams, or `[B, N]`; not decreasing.
        observations: `[B, N, P]`; NaN where a component was not seen.
        noise: `[B, N]`, factors on the standard deviation of the measurement noise.
        state: of all B streams, to go on from.
        covariances: keep those of every step.
        threads: cores to use; the numbers do not depend on it.

    Raises:
        ValueError: naming the argument.
    """
    system = CompiledSystem(config)
    values = np.ascontiguousarray(observations, np.float64)
    if values.ndim != 3 or values.shape[2] != system.p or not values.size:
        raise ValueError(f"observations must be [streams, steps, {system.p}] and not empty, got {list(values.shape)}")
    if np.isinf(values).any():
        raise ValueError("observations must be finite, or NaN where a component was not seen")
    if threads < 1:
        raise ValueError(f"threads must be >= 1, got {threads}")
    batch, length = values.shape[:2]
    n = system.n
    clock = np.asarray(times, np.float64)
    clock = checked("times", clock, (length,) if clock.ndim == 1 else (batch, length))[None if clock.ndim == 1 else ...]
    scales = np.ones((1, 1)) if noise is None else checked("noise", noise, (batch, length))
    if not (scales > 0).all():
        raise ValueError("noise must be positive")
    packed = system.pack(state, batch)
    origin = clock[:, :1]
    if state is not None:
        origin = checked("state.time", state.time, (batch,))[:, None]
        if len(clock) == 1 and (origin == origin[0]).all():
            origin = origin[:1]
    lags = np.diff(clock, axis=1, prepend=origin) if len(origin) == len(clock) else _lags(clock, origin)
    if (lags < 0).any():
        raise ValueError("times must not decrease")
    outputs = (
        np.empty((batch, length, n)),
        np.empty((batch, length)),
        np.empty((batch, length)),
        np.empty((batch, length if covariances else 0, n, n)),
    )
    _run(system, (values, scales, lags), packed, outputs, threads)
    end = system.unpack(packed, np.broadcast_to(clock[:, -1], batch).copy())
    return StreamsResult(*outputs[:3], outputs[3] if covariances else None, end)


def _lags(clock: Array, origin: Array) -> Array:
    """Lags `[B, N]` of common times after origins that differ."""
    return np.diff(np.broadcast_to(clock, (len(origin), clock.shape[1])), axis=1, prepend=origin)


def _run(
    system: CompiledSystem,
    inputs: tuple[Array, Array, Array],
    packed: Array,
    outputs: tuple[Array, ...],
    threads: int,
) -> None:
    values, scales, lags = inputs
    batch, length = values.shape[:2]
    piece = max(1, LAGS_AT_ONCE // len(lags))
    blocks = -(-batch // LANES)
    edges = [min(batch, LANES * (blocks * i // threads)) for i in range(threads + 1)]
    shares = [pair for pair in itertools.pairwise(edges) if pair[0] < pair[1]]
    with ThreadPoolExecutor(len(shares)) as pool:
        for start in range(0, length, piece):
            stop = min(start + piece, length)
            distinct, index = np.unique(lags[:, start:stop], return_inverse=True)
            rows = np.ascontiguousarray(index.reshape(len(lags), stop - start))
            moves = system.transitions(distinct)
            given = (values, scales, rows), moves, packed, outputs

            def scan(share: tuple[int, int], stop: int = stop, start: int = start, given: Any = given) -> None:
                system.scan(system.sensor, system.rule, share, (start, stop), *given)

            list(pool.map(scan, shares))


__all__ = ["LinearStream", "StreamState", "StreamStep", "StreamsResult", "filter_streams"]
