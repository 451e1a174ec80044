"""The linear filter in process, compiled: one stream as its observations come, or many recorded streams at once.

Equations: `dense.py` (capped rule, K passes, Joseph form, missing components) and `modes.py` (F and Q of a lag), in
float64 on a CPU core; the numbers are those of `LinearFilter` in float64, in the coordinates of the state.

    stream = LinearStream(config)
    mean, covariance, weight, nis = stream.step(t, [1.2, nan])      # NaN: this component was not seen
    result = filter_streams(config, times, observations)            # [N] or [B, N], and [B, N, P]

Layout: streams lie side by side as the last index ("lane") of one scratch array `work` `[rows, lanes]`, so every
operation of the filter is a loop over lanes that the compiler turns into vector instructions; one stream is one lane.
The first use compiles for some seconds, once per machine and for all sizes (the result is cached on disk).
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from model.linear_filter import LinearFilterConfig, stationary_covariance
from model.recurrence.modes import spectrum

try:
    import numba
except ImportError as error:
    raise ImportError("the compiled linear filter needs numba: pip install 'rfa-server[train]'") from error

Array = np.ndarray[Any, Any]

# Streams side by side: their scratch (a few kB per lane) stays in the first-level cache.
LANES = 64
# Lags whose F and Q are kept, and lags of one call worked on at a time.
KEPT_LAGS = 4096
LAGS_AT_ONCE = 1 << 17
# A term of the series of I_m below this adds nothing: the sum is not below 1e-7 (x >= -MAX_TERMS * 2).
SMALLEST_TERM = 1e-19

# Contraction to fused multiply-adds, and no other licence: missing values are NaN.
_options: dict[str, Any] = {"cache": True, "nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
_compiled = numba.njit(**_options)
# A call costs as much as a loop over lanes does.
_inlined = numba.njit(**_options, forceinline=True)


class StreamStep(NamedTuple):
    """After an observation, in coordinates of the state: mean `[n]`, covariance `[n, n]`, weight (share of the
    observation used) and nis r'S⁻¹r of the components seen."""

    mean: Array
    covariance: Array
    weight: float
    nis: float


class StreamState(NamedTuple):
    """What a stream goes on from: mean `[n]`, covariance `[n, n]` and time of its last observation; or of B streams,
    `[B, n]`, `[B, n, n]` and `[B]`."""

    mean: Array
    covariance: Array
    time: Any


class StreamsResult(NamedTuple):
    """mean `[B, N, n]`, weight and nis `[B, N]`, covariance `[B, N, n, n]` if asked for, and the state at the end."""

    mean: Array
    weight: Array
    nis: Array
    covariance: Array | None
    state: StreamState


class _Rows(NamedTuple):
    """Where things lie in `work`; a matrix takes a row an entry."""

    mean: int
    covariance: int
    f: int
    q: int
    temporary: int
    keep: int
    cross: int
    gain: int
    noisy_gain: int
    signal: int
    noise: int
    nominal: int
    weighted: int
    innovation: int
    solved: int
    present: int
    value: int
    scale: int
    weight: int
    gate: int
    nis: int
    seen: int
    residual: int
    end: int


@_inlined
def _rows(sizes):
    n, p = sizes
    mean = 0
    covariance = mean + n
    f = covariance + n * n
    q = f + n * n
    temporary = q + n * n
    keep = temporary + n * n
    cross = keep + n * n
    gain = cross + n * p
    noisy_gain = gain + n * p
    signal = noisy_gain + n * p
    noise = signal + p * p
    nominal = noise + p * p
    weighted = nominal + p * p
    innovation = weighted + p * p
    solved = innovation + p
    present = solved + p
    value = present + p
    scale = value + p
    weight = scale + 1
    gate = weight + 1
    nis = gate + 1
    seen = nis + 1
    residual = seen + 1
    return _Rows(
        mean, covariance, f, q, temporary, keep, cross, gain, noisy_gain, signal, noise, nominal, weighted,
        innovation, solved, present, value, scale, weight, gate, nis, seen, residual, residual + p,
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
    """F and Q of every lag, `[U, n, n]`."""
    n = len(rates)
    f, q = np.empty((len(lags), n, n)), np.empty((len(lags), n, n))
    for i in range(len(lags)):
        _transition(lags[i], rates, basis, dual, powers, noises, f[i], q[i])
    return f, q


# The filter over lanes. A row of `work` is one number of every stream.


@_inlined
def _weight(gate, count, inverse_nu):
    """The capped Student-t weight of an observation whose squared distance is `gate`."""
    return min(1.0, (1 + count * inverse_nu) / (1 + gate * inverse_nu))


@_inlined
def _set(work, out, value, width):
    for lane in range(width):
        work[out, lane] = value


@_inlined
def _copy(work, out, row, width):
    for lane in range(width):
        work[out, lane] = work[row, lane]


@_inlined
def _add_scaled(work, out, factor, row, width):
    """out += factor · row; most factors are entries of C, and most of those are 0."""
    if factor != 0:
        for lane in range(width):
            work[out, lane] += factor * work[row, lane]


@_inlined
def _add_dot(work, out, sign, a, a_step, b, b_step, count, width):
    """out += sign · sum_k row(a + k a_step) · row(b + k b_step), four terms a loop."""
    while count >= 4:
        a1, a2, a3 = a + a_step, a + 2 * a_step, a + 3 * a_step
        b1, b2, b3 = b + b_step, b + 2 * b_step, b + 3 * b_step
        for lane in range(width):
            work[out, lane] += sign * (
                (work[a, lane] * work[b, lane] + work[a1, lane] * work[b1, lane])
                + (work[a2, lane] * work[b2, lane] + work[a3, lane] * work[b3, lane])
            )
        a, b, count = a + 4 * a_step, b + 4 * b_step, count - 4
    if count >= 2:
        a1, b1 = a + a_step, b + b_step
        for lane in range(width):
            work[out, lane] += sign * (work[a, lane] * work[b, lane] + work[a1, lane] * work[b1, lane])
        a, b, count = a + 2 * a_step, b + 2 * b_step, count - 2
    if count == 1:
        for lane in range(width):
            work[out, lane] += sign * (work[a, lane] * work[b, lane])


@_compiled
def _predict(work, sizes, width):
    n, _ = sizes
    at = _rows(sizes)
    for i in range(n):
        _set(work, at.temporary + i, 0.0, width)
        _add_dot(work, at.temporary + i, 1.0, at.f + i * n, 1, at.mean, 1, n, width)
    for i in range(n):
        _copy(work, at.mean + i, at.temporary + i, width)
    for i in range(n):
        for j in range(n):
            out = at.temporary + i * n + j
            _set(work, out, 0.0, width)
            _add_dot(work, out, 1.0, at.f + i * n, 1, at.covariance + j, n, n, width)
    for i in range(n):
        for j in range(i, n):
            out = at.covariance + i * n + j
            _copy(work, out, at.q + i * n + j, width)
            _add_dot(work, out, 1.0, at.temporary + i * n, 1, at.f + j * n, 1, n, width)
            _copy(work, at.covariance + j * n + i, out, width)


@_compiled
def _observe(work, sizes, model, width):
    """Cross covariance, innovation, and the signal and noise parts of its covariance S; 0 and 1 where missing."""
    n, p = sizes
    at, offset, noise = _rows(sizes), p * n, p * n + p
    for i in range(n):
        for a in range(p):
            _set(work, at.cross + i * p + a, 0.0, width)
            for k in range(n):
                _add_scaled(work, at.cross + i * p + a, model[a * n + k], at.covariance + i * n + k, width)
    for a in range(p):
        out = at.innovation + a
        _set(work, out, -model[offset + a], width)
        for k in range(n):
            _add_scaled(work, out, -model[a * n + k], at.mean + k, width)
        for lane in range(width):
            work[out, lane] = work[at.present + a, lane] * (work[out, lane] + work[at.value + a, lane])
    for a in range(p):
        for b in range(p):
            out, absent = at.signal + a * p + b, 1.0 if a == b else 0.0
            _set(work, out, 0.0, width)
            for k in range(n):
                _add_scaled(work, out, model[a * n + k], at.cross + k * p + b, width)
            for lane in range(width):
                both = work[at.present + a, lane] * work[at.present + b, lane]
                work[out, lane] *= both
                work[at.noise + a * p + b, lane] = both * model[noise + a * p + b] * work[at.scale, lane] + absent * (
                    1 - both
                )


@_compiled
def _factor(work, sizes, target, width):
    """Cholesky factor of signal + noise / weight at row `target`; its diagonal is stored inverted."""
    _, p = sizes
    at = _rows(sizes)
    for j in range(p):
        diagonal = target + j * p + j
        for i in range(j, p):
            out = target + i * p + j
            for lane in range(width):
                work[out, lane] = (
                    work[at.signal + i * p + j, lane] + work[at.noise + i * p + j, lane] / work[at.weight, lane]
                )
            _add_dot(work, out, -1.0, target + i * p, 1, target + j * p, 1, j, width)
            for lane in range(width):
                work[out, lane] = 1 / math.sqrt(work[out, lane]) if i == j else work[out, lane] * work[diagonal, lane]


@_compiled
def _solve_lower(work, sizes, factor, x, width):
    """L⁻¹ x in place."""
    _, p = sizes
    for a in range(p):
        _add_dot(work, x + a, -1.0, factor + a * p, 1, x, 1, a, width)
        for lane in range(width):
            work[x + a, lane] *= work[factor + a * p + a, lane]


@_compiled
def _solve_upper(work, sizes, factor, x, width):
    """L⁻ᵀ x in place."""
    _, p = sizes
    for a in range(p - 1, -1, -1):
        _add_dot(work, x + a, -1.0, factor + (a + 1) * p + a, p, x + a + 1, 1, p - a - 1, width)
        for lane in range(width):
            work[x + a, lane] *= work[factor + a * p + a, lane]


@_compiled
def _reweight(work, sizes, inverse_nu, inner, width):
    """The K passes: weight and nis of every lane, and the factor of S at the final weight."""
    _, p = sizes
    at = _rows(sizes)
    _set(work, at.weight, 1.0, width)
    _factor(work, sizes, at.nominal, width)
    _set(work, at.seen, 0.0, width)
    for a in range(p):
        _add_scaled(work, at.seen, 1.0, at.present + a, width)
    for i in range(inner):
        for a in range(p):
            _copy(work, at.solved + a, at.innovation + a, width)
        if i > 0:
            # The posterior residual (R / w) S_w⁻¹ e.
            _solve_lower(work, sizes, at.weighted, at.solved, width)
            _solve_upper(work, sizes, at.weighted, at.solved, width)
            for a in range(p):
                _set(work, at.residual + a, 0.0, width)
                _add_dot(work, at.residual + a, 1.0, at.noise + a * p, 1, at.solved, 1, p, width)
            for a in range(p):
                for lane in range(width):
                    work[at.solved + a, lane] = work[at.residual + a, lane] / work[at.weight, lane]
        _solve_lower(work, sizes, at.nominal, at.solved, width)
        _set(work, at.gate, 0.0, width)
        _add_dot(work, at.gate, 1.0, at.solved, 1, at.solved, 1, p, width)
        if i == 0:
            _copy(work, at.nis, at.gate, width)
        for lane in range(width):
            work[at.weight, lane] = _weight(work[at.gate, lane], work[at.seen, lane], inverse_nu)
        _factor(work, sizes, at.weighted, width)


@_compiled
def _condition(work, sizes, model, width):
    """Mean and covariance (Joseph form) after the observation at its final weight."""
    n, p = sizes
    at = _rows(sizes)
    for i in range(n):
        row = at.gain + i * p
        for a in range(p):
            for lane in range(width):
                work[row + a, lane] = work[at.cross + i * p + a, lane] * work[at.present + a, lane]
        _solve_lower(work, sizes, at.weighted, row, width)
        _solve_upper(work, sizes, at.weighted, row, width)
        _add_dot(work, at.mean + i, 1.0, row, 1, at.innovation, 1, p, width)
        for a in range(p):
            out = at.noisy_gain + i * p + a
            _set(work, out, 0.0, width)
            _add_dot(work, out, 1.0, row, 1, at.noise + a, p, p, width)
            for lane in range(width):
                work[out, lane] /= work[at.weight, lane]
        for j in range(n):
            _set(work, at.keep + i * n + j, 1.0 if i == j else 0.0, width)
            for a in range(p):
                _add_scaled(work, at.keep + i * n + j, -model[a * n + j], row + a, width)
    for i in range(n):
        for j in range(n):
            out = at.temporary + i * n + j
            _set(work, out, 0.0, width)
            _add_dot(work, out, 1.0, at.keep + i * n, 1, at.covariance + j, n, n, width)
    for i in range(n):
        for j in range(i, n):
            out = at.covariance + i * n + j
            _set(work, out, 0.0, width)
            _add_dot(work, out, 1.0, at.temporary + i * n, 1, at.keep + j * n, 1, n, width)
            _add_dot(work, out, 1.0, at.noisy_gain + i * p, 1, at.gain + j * p, 1, p, width)
            _copy(work, at.covariance + j * n + i, out, width)


@_compiled
def _advance(work, sizes, model, inverse_nu, inner, width):
    """One observation of every lane; F, Q, value, present and scale are filled in."""
    _predict(work, sizes, width)
    _observe(work, sizes, model, width)
    _reweight(work, sizes, inverse_nu, inner, width)
    _condition(work, sizes, model, width)


@_compiled
def _step(work, sizes, model, inverse_nu, inner, moves, value, scale, out):
    """One observation of the stream in lane 0; `out` gets its mean and covariance. Weight -1: refused, not advanced."""
    n, p = sizes
    at = _rows(sizes)
    for a in range(p):
        if np.isinf(value[a]):
            return -1.0, 0.0
    for a in range(p):
        is_seen = not np.isnan(value[a])
        work[at.present + a, 0] = 1.0 if is_seen else 0.0
        work[at.value + a, 0] = value[a] if is_seen else 0.0
    work[at.scale, 0] = scale * scale
    for i in range(n):
        for j in range(n):
            work[at.f + i * n + j, 0] = moves[0, i, j]
            work[at.q + i * n + j, 0] = moves[1, i, j]
    _advance(work, sizes, model, inverse_nu, inner, 1)
    for i in range(n):
        out[0, i] = work[at.mean + i, 0]
        for j in range(n):
            out[1 + i, j] = work[at.covariance + i * n + j, 0]
    return work[at.weight, 0], work[at.nis, 0]


@_compiled
def _scan(sizes, model, inverse_nu, inner, streams, steps, inputs, moves, state, outputs):
    """Steps [steps[0], steps[1]) of streams [streams[0], streams[1]), `LANES` streams at a time."""
    n, p = sizes
    at = _rows(sizes)
    values, scales, index = inputs
    f, q = moves
    means, covariances = state
    out_mean, out_weight, out_nis, out_covariance = outputs
    work = np.empty((at.end, LANES))
    previous = np.empty(LANES, np.int64)
    for first in range(streams[0], streams[1], LANES):
        width = min(LANES, streams[1] - first)
        previous[:] = -1
        for lane in range(width):
            for i in range(n):
                work[at.mean + i, lane] = means[first + lane, i]
                for j in range(n):
                    work[at.covariance + i * n + j, lane] = covariances[first + lane, i, j]
        for t in range(steps[0], steps[1]):
            for lane in range(width):
                stream = first + lane
                row = index[stream if len(index) > 1 else 0, t - steps[0]]
                if row != previous[lane]:
                    previous[lane] = row
                    for i in range(n):
                        for j in range(n):
                            work[at.f + i * n + j, lane] = f[row, i, j]
                            work[at.q + i * n + j, lane] = q[row, i, j]
                for a in range(p):
                    value = values[stream, t, a]
                    is_seen = not np.isnan(value)
                    work[at.present + a, lane] = 1.0 if is_seen else 0.0
                    work[at.value + a, lane] = value if is_seen else 0.0
                scale = scales[stream if len(scales) > 1 else 0, t if scales.shape[1] > 1 else 0]
                work[at.scale, lane] = scale * scale
            _advance(work, sizes, model, inverse_nu, inner, width)
            for lane in range(width):
                stream = first + lane
                for i in range(n):
                    out_mean[stream, t, i] = work[at.mean + i, lane]
                out_weight[stream, t] = work[at.weight, lane]
                out_nis[stream, t] = work[at.nis, lane]
            if out_covariance.shape[1] > 0:
                for lane in range(width):
                    for i in range(n):
                        for j in range(n):
                            out_covariance[first + lane, t, i, j] = work[at.covariance + i * n + j, lane]
        for lane in range(width):
            for i in range(n):
                means[first + lane, i] = work[at.mean + i, lane]
                for j in range(n):
                    covariances[first + lane, i, j] = work[at.covariance + i * n + j, lane]


# The interface.


class _System:
    """What the compiled code needs of a config.

    Raises:
        ValueError: the config asks for what the compiled code does not have.
    """

    def __init__(self, config: LinearFilterConfig) -> None:
        if config.nu is not None and config.reacquire is not None:
            raise ValueError("the compiled filter follows no jumps: reacquire must be null, or nu null")
        if config.nu is not None and config.rule != "capped":
            raise ValueError("the compiled filter learns no noise: rule must be 'capped', or nu null")
        drift, noise = np.asarray(config.drift), np.asarray(config.measurement_noise)
        self.n, self.p = n, p = len(drift), len(noise)
        self.sizes = n, p
        matrix = np.eye(n) if config.observation is None else np.asarray(config.observation)
        offset = np.zeros(p) if config.offset is None else np.asarray(config.offset)
        self.model = np.concatenate([matrix.ravel(), offset, noise.ravel()])
        self.inverse_nu = 0.0 if config.nu is None else 1 / config.nu
        # Without robust weights every pass gives weight 1.
        self.inner = 1 if config.nu is None else config.inner
        found, process_noise = spectrum(drift), np.asarray(config.process_noise)
        parts = (found.rates, found.basis, found.dual, found.powers(), found.noises(process_noise))
        self.modes = tuple(np.ascontiguousarray(part, np.complex128) for part in parts)
        self.prior_mean = np.zeros(n) if config.initial_mean is None else np.asarray(config.initial_mean)
        given = config.initial_covariance
        self.prior_covariance = stationary_covariance(config) if given is None else np.asarray(given)

    def transitions(self, lags: Array) -> tuple[Array, Array]:
        return _transitions(lags, *self.modes)  # type: ignore[no-any-return]


class LinearStream:
    """A stream that is filtered as its observations come.

    Args:
        config: the system.
        state: where to go on, as another stream's `state` gave it; default the prior.
    """

    def __init__(self, config: LinearFilterConfig, *, state: StreamState | None = None) -> None:
        self._system = system = _System(config)
        self._arguments = system.sizes, system.model, system.inverse_nu, system.inner
        self._at = _rows.py_func(system.sizes)
        self._work = np.zeros((self._at.end, 1))
        self._value = np.empty(system.p)
        self._moves: dict[float, Array] = {}
        n = self._n = system.n
        mean = system.prior_mean if state is None else _checked("state.mean", state.mean, (n,))
        covariance = (
            system.prior_covariance if state is None else _checked("state.covariance", state.covariance, (n, n))
        )
        self._work[: self._at.f, 0] = np.concatenate([mean, covariance.ravel()])
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
        lag = 0.0 if self._time is None else t - self._time
        if not 0 <= lag < math.inf:
            raise ValueError(f"t must be finite and not before {self._time}, got {t}")
        if not 0 < noise < math.inf:
            raise ValueError(f"noise must be positive, got {noise}")
        if y is not None and len(y) != len(self._value):
            raise ValueError(f"y must have {len(self._value)} components, got {len(y)}")
        self._value[:] = y
        moves = self._moves.get(lag)
        if moves is None:
            moves = self._add_moves(lag)
        out = np.empty((self._n + 1, self._n))
        weight, nis = _step(self._work, *self._arguments, moves, self._value, noise, out)
        if weight < 0:
            raise ValueError("y must be finite, or NaN where a component was not seen")
        self._time = t
        return StreamStep(out[0], out[1:], weight, nis)

    def _add_moves(self, lag: float) -> Array:
        if len(self._moves) >= KEPT_LAGS:
            self._moves.clear()
        f, q = self._system.transitions(np.array([lag]))
        self._moves[lag] = moves = np.concatenate([f, q])
        return moves

    @property
    def state(self) -> StreamState:
        """What another stream can go on from.

        Raises:
            ValueError: before the first observation.
        """
        if self._time is None:
            raise ValueError("a stream has no state before its first observation")
        n, found = self._n, self._work[: self._at.f, 0].copy()
        return StreamState(found[:n], found[n:].reshape(n, n), self._time)


def _checked(name: str, value: Any, shape: tuple[int, ...]) -> Array:
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
    system = _System(config)
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
    clock = _checked("times", clock, (length,) if clock.ndim == 1 else (batch, length))[
        None if clock.ndim == 1 else ...
    ]
    scales = np.ones((1, 1)) if noise is None else _checked("noise", noise, (batch, length))
    if not (scales > 0).all():
        raise ValueError("noise must be positive")
    if state is None:
        means = np.tile(system.prior_mean, (batch, 1))
        spreads = np.tile(system.prior_covariance, (batch, 1, 1))
        origin = clock[:, :1]
    else:
        means = _checked("state.mean", state.mean, (batch, n))
        spreads = _checked("state.covariance", state.covariance, (batch, n, n))
        origin = _checked("state.time", state.time, (batch,))[:, None]
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
    _run(system, (values, scales, lags), (means, spreads), outputs, threads)
    end = StreamState(means, spreads, np.broadcast_to(clock[:, -1], batch).copy())
    return StreamsResult(*outputs[:3], outputs[3] if covariances else None, end)


def _lags(clock: Array, origin: Array) -> Array:
    """Lags `[B, N]` of common times after origins that differ."""
    return np.diff(np.broadcast_to(clock, (len(origin), clock.shape[1])), axis=1, prepend=origin)


def _run(
    system: _System,
    inputs: tuple[Array, Array, Array],
    state: tuple[Array, Array],
    outputs: tuple[Array, ...],
    threads: int,
) -> None:
    values, scales, lags = inputs
    batch, length = values.shape[:2]
    piece = max(1, LAGS_AT_ONCE // len(lags))
    blocks = -(-batch // LANES)
    edges = [min(batch, LANES * (blocks * i // threads)) for i in range(threads + 1)]
    shares = [pair for pair in itertools.pairwise(edges) if pair[0] < pair[1]]
    arguments = system.sizes, system.model, system.inverse_nu, system.inner
    with ThreadPoolExecutor(len(shares)) as pool:
        for start in range(0, length, piece):
            stop = min(start + piece, length)
            distinct, index = np.unique(lags[:, start:stop], return_inverse=True)
            rows = np.ascontiguousarray(index.reshape(len(lags), stop - start))
            moves = system.transitions(distinct)
            given = (*arguments, (values, scales, rows), moves, state, outputs)

            def scan(share: tuple[int, int], stop: int = stop, start: int = start, given: Any = given) -> None:
                _scan(*given[:4], share, (start, stop), *given[4:])

            list(pool.map(scan, shares))


__all__ = ["LinearStream", "StreamState", "StreamStep", "StreamsResult", "filter_streams"]
