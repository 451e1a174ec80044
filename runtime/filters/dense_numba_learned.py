"""The compiled linear filter where the law of the noise is learned (rule "learned").

Equations: "Learned noise" in `dense.py`. They are a Kalman update for each factor s_k on R, and the moments of their
mixture by shares g_k. Here all factors are had at the price of one, in coordinates of the observation in which R is the
identity and C P Cᵀ diagonal: with T R Tᵀ = I, T C P Cᵀ Tᵀ = diag(v), innovation z = T e and Z = P Cᵀ Tᵀ

    r_ik = 1 / (v_i + s_k)         N(e; 0, C P Cᵀ + s_k R) ∝ prod_i r_ik^½ exp(-z_i² r_ik / 2)
    h_i = sum_k g_k r_ik           mean + Z diag(h) z

Joseph's form of the covariance, for the gain Z diag(h) T and what the gains Z diag(r_k) T of the factors differ by, is

    A - A Cᵀ Tᵀ diag(h) Zᵀ + Z D Zᵀ,     A = P - Z diag(h) Zᵀ
    D = sum_k g_k [diag((r_k - h)² v + s_k r_k²) + d_k d_kᵀ],     d_k = (r_k - h) z

where D is a sum of what is positive, and A is corrected along what was observed as in `dense_numba.py`.

T is found by a factorisation of R and Jacobi's rotations: one for two components, which is exact, and sweeps of them
for more. A component that was not seen has v = 0, is apart from the others and takes no part.

The layout is that of `dense_numba.py`, with the rows below after its own; the counts are the first of them.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

import functools
import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from rfa.runtime.filters import dense_numba, noise_law
from rfa.runtime.filters.dense_numba import (
    COMPILER_OPTIONS,
    LANES,
    SMALL_SENSOR,
    SMALL_STATE,
    _add,
    _add_dot,
    _compiled,
    _copy,
    _doubt,
    _factor,
    _foresee,
    _index,
    _multiply,
    _rows,
    _scan,
    _set,
    _settle,
    _step,
)
from rfa.runtime.filters.noise_law import KEPT_PRIOR, LARGEST_FACTOR, LARGEST_NIS, MEMORY, NOISE_FACTORS, PRIOR_COUNTS

FACTORS, WIDEST = len(NOISE_FACTORS), max(NOISE_FACTORS)
_SIZES, _KEPT = np.array(NOISE_FACTORS), KEPT_PRIOR * np.array(PRIOR_COUNTS)
# A rotation that would turn by less than the rounding of what it turns is left out.
LEAST_TURN = 2.0**-52
# Sweeps of Jacobi's rotations, of which a handful are enough.
MOST_SWEEPS = 30
# Densities below it are counted apart, so that a product of many does not vanish.
LEAST_DENSITY = 1e-150

# The compiler's cache on disk asks of a kernel whether its own file is stale, and these are made of functions and
# constants of others too: what is in those files is a constant of the kernels, and nothing but the kernels is kept.
_OTHERS = (Path(str(module.__file__)).read_bytes() for module in (dense_numba, noise_law))
_SHARED = hashlib.sha256(b"".join(_OTHERS)).hexdigest()
_inlined = numba.njit(**{**COMPILER_OPTIONS, "cache": False}, forceinline=True)
_merged = numba.njit(**{**COMPILER_OPTIONS, "cache": False}, inline="always")


class _Beyond(NamedTuple):
    """Rows beyond those of `dense_numba`: counts, shares and half the squared distances of the K factors, the r of each
    factor, T, C P Cᵀ in its coordinates, D, v, z and h, and room for one row of the state."""

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


@_inlined
def _beyond(sizes):
    _, p, _ = sizes
    counts = _rows(sizes).end
    share = counts + FACTORS
    penalty = share + FACTORS
    response = penalty + FACTORS
    modes = response + FACTORS * p
    half = modes + p * p
    core = half + p * p
    spread = core + p * p
    variance = spread + p * p
    signal = variance + p
    mean_response = signal + p
    seen = mean_response + p
    peak = seen + p
    return _Beyond(
        counts, share, penalty, response, modes, half, core, spread, variance, signal, mean_response, seen, peak,
        peak + 1, peak + 2,
    )  # fmt: skip


def size(n: int, p: int) -> int:
    """How many rows there are, with those of `dense_numba`."""
    return int(_beyond.py_func((n, p, False)).end)


@_inlined
def _add_product(work, out, row, other, lanes):
    """out += row · other."""
    width, first, stop = lanes
    for lane in range(first, stop):
        work[_index(out, width, lane)] += work[_index(row, width, lane)] * work[_index(other, width, lane)]


# The coordinates of the observation.


@_inlined
def _whiten(work, sizes, lanes):
    """T with T R Tᵀ = I, and C P Cᵀ in its coordinates."""
    _, p, _ = sizes
    at, beyond = _rows(sizes), _beyond(sizes)
    width, first, stop = lanes
    # Of R alone: nothing of the state is in it.
    _set(work, at.weight, 0.0, lanes)
    _factor(work, sizes, at.weighted, at.weight, lanes)
    for i in range(p):
        for a in range(p):
            _set(work, beyond.modes + i * p + a, 1.0 if a == i else 0.0, lanes)
        for a in range(i):
            row = beyond.modes + a * p + a
            _add_dot(work, beyond.modes + i * p + a, -1.0, at.weighted + i * p + a, 1, row, p, i - a, lanes)
    for i in range(p):
        for a in range(i + 1):
            for lane in range(first, stop):
                root = math.sqrt(work[_index(at.weighted + i * p + i, width, lane)])
                work[_index(beyond.modes + i * p + a, width, lane)] *= root
    for i in range(p):
        for b in range(p):
            out = beyond.half + i * p + b
            _set(work, out, 0.0, lanes)
            for a in range(i + 1):
                _add_product(work, out, beyond.modes + i * p + a, at.signal + max(a, b) * p + min(a, b), lanes)
    for i in range(p):
        for j in range(i + 1):
            out = beyond.core + i * p + j
            _set(work, out, 0.0, lanes)
            _add_dot(work, out, 1.0, beyond.half + i * p, 1, beyond.modes + j * p, 1, j + 1, lanes)


@_inlined
def _turn(work, row, other, cosine, sine, width, lane):
    left, right = work[_index(row, width, lane)], work[_index(other, width, lane)]
    work[_index(row, width, lane)] = cosine * left - sine * right
    work[_index(other, width, lane)] = sine * left + cosine * right


@_inlined
def _rotate(work, sizes, a, b, lanes):
    """Jacobi's rotation of the coordinates a < b; in how many lanes there was need of it."""
    _, p, _ = sizes
    beyond = _beyond(sizes)
    width, first, stop = lanes
    own, other, between = beyond.core + a * p + a, beyond.core + b * p + b, beyond.core + b * p + a
    turned = 0
    for lane in range(first, stop):
        x, y, c = work[_index(own, width, lane)], work[_index(other, width, lane)], work[_index(between, width, lane)]
        is_needed = abs(c) > LEAST_TURN * math.sqrt((abs(x) + 1) * (abs(y) + 1))
        ratio = (y - x) / (2 * c)
        tangent = (1.0 if ratio >= 0 else -1.0) / (abs(ratio) + math.sqrt(1 + ratio * ratio))
        tangent = tangent if is_needed else 0.0
        turned += 1 if is_needed else 0
        cosine = 1 / math.sqrt(1 + tangent * tangent)
        sine = tangent * cosine
        work[_index(own, width, lane)] = x - tangent * c
        work[_index(other, width, lane)] = y + tangent * c
        work[_index(between, width, lane)] = 0.0 if is_needed else c
        for k in range(p):
            if k != a and k != b:
                _turn(
                    work, beyond.core + max(a, k) * p + min(a, k), beyond.core + max(b, k) * p + min(b, k), cosine,
                    sine, width, lane,
                )  # fmt: skip
            _turn(work, beyond.modes + a * p + k, beyond.modes + b * p + k, cosine, sine, width, lane)
    return turned


@_inlined
def _diagonalise(work, sizes, lanes):
    """One lane's last sweeps do not change another, whose rotations are none by then."""
    _, p, _ = sizes
    for _ in range(MOST_SWEEPS if p > 2 else 1):
        turned = 0
        for b in range(1, p):
            for a in range(b):
                turned += _rotate(work, sizes, a, b, lanes)
        if turned == 0:
            break


@_inlined
def _project(work, sizes, lanes):
    """v and z."""
    _, p, _ = sizes
    at, beyond = _rows(sizes), _beyond(sizes)
    width, first, stop = lanes
    for i in range(p):
        for lane in range(first, stop):
            work[_index(beyond.variance + i, width, lane)] = max(
                work[_index(beyond.core + i * p + i, width, lane)], 0.0
            )
        _set(work, beyond.signal + i, 0.0, lanes)
        _add_dot(work, beyond.signal + i, 1.0, beyond.modes + i * p, 1, at.innovation, 1, p, lanes)


# The shares of the factors.


@_inlined
def _size(work, sizes, least, width, lane):
    """s_k: the widest is at least e'S⁻¹e."""
    reach = min(work[_index(_rows(sizes).gate, width, lane)], LARGEST_FACTOR)
    return max(least, reach if least == WIDEST else 0.0)


@_inlined
def _answer(work, sizes, k, lanes):
    """r of factor k, and its count times its density: a product of what is not exponential, and half the exponent."""
    _, p, _ = sizes
    at, beyond = _rows(sizes), _beyond(sizes)
    width, first, stop = lanes
    share, penalty, least = beyond.share + k, beyond.penalty + k, _SIZES[k]
    _copy(work, share, beyond.counts + k, lanes)
    _set(work, penalty, 0.0, lanes)
    for i in range(p):
        for lane in range(first, stop):
            variance, signal = (
                work[_index(beyond.variance + i, width, lane)],
                work[_index(beyond.signal + i, width, lane)],
            )
            response = 1 / (variance + _size(work, sizes, least, width, lane))
            work[_index(beyond.response + k * p + i, width, lane)] = response
            density = work[_index(share, width, lane)]
            is_small = density < LEAST_DENSITY
            # Beside that of noise as it is said to be, which all have in common.
            ratio = math.sqrt((variance + 1) * response) if work[_index(at.present + i, width, lane)] > 0 else 1.0
            work[_index(share, width, lane)] = density * (1 / LEAST_DENSITY if is_small else 1.0) * ratio
            work[_index(penalty, width, lane)] += 0.5 * (min(signal * signal, LARGEST_NIS) * response) - (
                math.log(LEAST_DENSITY) if is_small else 0.0
            )


@_inlined
def _compete(work, sizes, factors, lanes):
    """Logarithms and exponentials are taken one by one."""
    beyond = _beyond(sizes)
    width, first, stop = lanes
    _set(work, beyond.peak, -math.inf, lanes)
    _set(work, beyond.total, 0.0, lanes)
    for k in range(factors):
        for lane in range(first, stop):
            score = (
                math.log(work[_index(beyond.share + k, width, lane)]) - work[_index(beyond.penalty + k, width, lane)]
            )
            work[_index(beyond.share + k, width, lane)] = score
            work[_index(beyond.peak, width, lane)] = max(work[_index(beyond.peak, width, lane)], score)
    for k in range(factors):
        for lane in range(first, stop):
            share = math.exp(work[_index(beyond.share + k, width, lane)] - work[_index(beyond.peak, width, lane)])
            work[_index(beyond.share + k, width, lane)] = share
            work[_index(beyond.total, width, lane)] += share


@_inlined
def _clear(work, sizes, lanes):
    at, beyond = _rows(sizes), _beyond(sizes)
    _, p, _ = sizes
    _set(work, at.weight, 0.0, lanes)
    for i in range(p):
        _set(work, beyond.mean_response + i, 0.0, lanes)
        for j in range(p):
            _set(work, beyond.spread + i * p + j, 0.0, lanes)


@_inlined
def _weigh(work, sizes, k, lanes):
    """Share of factor k, and its part in the weight and in h; what completes a jump is taken with R as it is."""
    _, p, _ = sizes
    at, beyond = _rows(sizes), _beyond(sizes)
    width, first, stop = lanes
    least = _SIZES[k]
    for lane in range(first, stop):
        share = work[_index(beyond.share + k, width, lane)] / work[_index(beyond.total, width, lane)]
        share = (1.0 if least == 1 else 0.0) if work[_index(at.jump, width, lane)] > 0 else share
        work[_index(beyond.share + k, width, lane)] = share
        work[_index(at.weight, width, lane)] += share / _size(work, sizes, least, width, lane)
    for i in range(p):
        _add_product(work, beyond.mean_response + i, beyond.share + k, beyond.response + k * p + i, lanes)


@_inlined
def _fade(work, sizes, factors, lanes):
    """The counts, which remember so many observations beside what is kept of the prior; a weight is at most 1."""
    at, beyond = _rows(sizes), _beyond(sizes)
    width, first, stop = lanes
    _set(work, beyond.total, 0.0, lanes)
    for k in range(factors):
        for lane in range(first, stop):
            count = work[_index(beyond.counts + k, width, lane)] + work[_index(beyond.share + k, width, lane)]
            work[_index(beyond.total, width, lane)] += max(count - _KEPT[k], 0.0)
    for lane in range(first, stop):
        work[_index(beyond.total, width, lane)] = min(MEMORY / work[_index(beyond.total, width, lane)], 1.0)
        work[_index(at.weight, width, lane)] = min(work[_index(at.weight, width, lane)], 1.0)
    for k in range(factors):
        for lane in range(first, stop):
            count = work[_index(beyond.counts + k, width, lane)]
            learned = max(count + work[_index(beyond.share + k, width, lane)] - _KEPT[k], 0.0)
            after = _KEPT[k] + learned * work[_index(beyond.total, width, lane)]
            is_seen = work[_index(at.seen, width, lane)] > 0
            work[_index(beyond.counts + k, width, lane)] = after if is_seen else count


# The moments of the mixture.


@_inlined
def _spread(work, sizes, k, lanes):
    """The part of factor k in D."""
    _, p, _ = sizes
    beyond = _beyond(sizes)
    width, first, stop = lanes
    least = _SIZES[k]
    for i in range(p):
        for j in range(i + 1):
            out, mirrored = beyond.spread + i * p + j, beyond.spread + j * p + i
            for lane in range(first, stop):
                share = work[_index(beyond.share + k, width, lane)]
                response = work[_index(beyond.response + k * p + i, width, lane)]
                left = response - work[_index(beyond.mean_response + i, width, lane)]
                right = (
                    work[_index(beyond.response + k * p + j, width, lane)]
                    - work[_index(beyond.mean_response + j, width, lane)]
                )
                # By the share first: a distance may be beyond all measure where the share is none.
                part = (share * left * work[_index(beyond.signal + i, width, lane)]) * (
                    right * work[_index(beyond.signal + j, width, lane)]
                )
                if i == j:
                    part += share * (
                        left * left * work[_index(beyond.variance + i, width, lane)]
                        + _size(work, sizes, least, width, lane) * (response * response)
                    )
                work[_index(out, width, lane)] += part
                work[_index(mirrored, width, lane)] = work[_index(out, width, lane)]


@_inlined
def _gain_row(work, sizes, i, lanes):
    """Z, and Z diag(h)."""
    _, p, _ = sizes
    at, beyond = _rows(sizes), _beyond(sizes)
    for m in range(p):
        gain, scaled = at.gain + i * p + m, at.scaled + i * p + m
        _set(work, gain, 0.0, lanes)
        _add_dot(work, gain, 1.0, at.cross + i * p, 1, beyond.modes + m * p, 1, p, lanes)
        _copy(work, scaled, gain, lanes)
        _multiply(work, scaled, beyond.mean_response + m, lanes)


@_inlined
def _mix_row(work, sizes, i, lanes):
    """Mean and covariance; see the module's page."""
    n, p, leads = sizes
    at, beyond = _rows(sizes), _beyond(sizes)
    gain, scaled, excess, product = at.gain + i * p, at.scaled + i * p, at.excess + i * p, at.product + i * n
    _set(work, at.step + i, 0.0, lanes)
    _add_dot(work, at.step + i, 1.0, scaled, 1, beyond.signal, 1, p, lanes)
    _copy(work, at.mean + i, at.prior_mean + i, lanes)
    _add(work, at.mean + i, at.step + i, lanes)
    for j in range(n):
        if j <= i or j < p or not leads:
            _copy(work, product + j, at.prior + i * n + j, lanes)
            _add_dot(work, product + j, -1.0, scaled, 1, at.gain + j * p, 1, p, lanes)
    for a in range(p):
        if leads:
            _copy(work, beyond.seen + a, product + a, lanes)
        else:
            _set(work, beyond.seen + a, 0.0, lanes)
            _add_dot(work, beyond.seen + a, 1.0, product, 1, at.matrix + a * n, 1, n, lanes)
    for m in range(p):
        out = excess + m
        _set(work, out, 0.0, lanes)
        _add_dot(work, out, -1.0, beyond.modes + m * p, 1, beyond.seen, 1, p, lanes)
        _multiply(work, out, beyond.mean_response + m, lanes)
        _add_dot(work, out, 1.0, gain, 1, beyond.spread + m * p, 1, p, lanes)
    for j in range(i + 1):
        out = at.covariance + i * n + j
        _copy(work, out, product + j, lanes)
        _add_dot(work, out, 1.0, excess, 1, at.gain + j * p, 1, p, lanes)
        _copy(work, at.covariance + j * n + i, out, lanes)


@_merged
def _update(work, sizes, shape, rule):
    """The posterior of every lane from its prediction and innovation. `rule` has no passes to make here."""
    n, _, _ = sizes
    width, block = shape
    _, factors, patience = rule
    for lane in range(0, width, block):
        _whiten(work, sizes, (width, lane, lane + block))
    for lane in range(0, width, block):
        _diagonalise(work, sizes, (width, lane, lane + block))
    for lane in range(0, width, block):
        _project(work, sizes, (width, lane, lane + block))
    for k in range(factors):
        for lane in range(0, width, block):
            _answer(work, sizes, k, (width, lane, lane + block))
    _compete(work, sizes, factors, (width, 0, width))
    for lane in range(0, width, block):
        _clear(work, sizes, (width, lane, lane + block))
    for k in range(factors):
        for lane in range(0, width, block):
            _weigh(work, sizes, k, (width, lane, lane + block))
    for lane in range(0, width, block):
        _fade(work, sizes, factors, (width, lane, lane + block))
    for k in range(factors):
        for lane in range(0, width, block):
            _spread(work, sizes, k, (width, lane, lane + block))
    for i in range(n):
        for lane in range(0, width, block):
            _gain_row(work, sizes, i, (width, lane, lane + block))
    for i in range(n):
        for lane in range(0, width, block):
            _mix_row(work, sizes, i, (width, lane, lane + block))
    if patience > 0:
        for lane in range(0, width, block):
            _settle(work, sizes, (width, lane, lane + block))


@_merged
def _advance(work, sizes, shape, rule):
    """One observation of every lane; what it brings, F and Q are filled in."""
    _foresee(work, sizes, shape)
    _doubt(work, sizes, shape, rule)
    _update(work, sizes, shape, rule)


@functools.cache
def _kernels_of_any() -> tuple[Any, Any]:
    """As those of `kernels`, with the sizes as arguments."""
    shared = _SHARED

    @_compiled
    def step(n, p, leads, work, moves, inverse_nu, factors, patience):
        _ = shared
        return _step(_advance, work, (n, p, leads), moves, (inverse_nu, factors, patience))

    @_compiled
    def scan(n, p, leads, sensor, rule, streams, steps, inputs, moves, state, outputs):
        _ = shared
        sizes = n, p, leads
        beyond = _beyond(sizes).end - _rows(sizes).end, FACTORS
        _scan(_advance, sizes, (LANES, LANES), beyond, sensor, rule, streams, steps, inputs, moves, state, outputs)

    return step, scan


@functools.cache
def kernels(n: int, p: int, leads: bool) -> tuple[Any, Any]:
    """The step of one stream and the scan of many, as `dense_numba._kernels`; in the place of the passes in their rule
    they take the number of the factors, as a variable, so that the loops over them are loops."""
    if n > SMALL_STATE or p > SMALL_SENSOR:
        return tuple(functools.partial(kernel, n, p, leads) for kernel in _kernels_of_any())  # type: ignore[return-value]
    shape, shared = (LANES, 1), _SHARED

    @_compiled
    def step(work, moves, inverse_nu, factors, patience):
        _ = shared
        return _step(_advance, work, (n, p, leads), moves, (inverse_nu, factors, patience))

    @_compiled
    def scan(sensor, rule, streams, steps, inputs, moves, state, outputs):
        _ = shared
        sizes = n, p, leads
        beyond = _beyond(sizes).end - _rows(sizes).end, FACTORS
        _scan(_advance, sizes, shape, beyond, sensor, rule, streams, steps, inputs, moves, state, outputs)

    return step, scan
