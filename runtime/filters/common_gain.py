"""Kalman filters of many streams that share one covariance: what is the same for all of them is computed once.

Without robust weights, with common times and nothing missing, the covariance of a Kalman filter does not depend on what
was observed, so all streams of a system have the same gains, and a step of theirs is one matrix. With e = y - b - C F m
the innovation and L Lᵀ = S the factors of its covariance,

    P⁻ = F P Fᵀ + Q      S = C P⁻ Cᵀ + R      K = P⁻ Cᵀ S⁻¹      M = | F - K C F     K   |      once for every time
                                                                     | -L⁻¹ C F      L⁻¹ |
    (m, u) = M (m, y - b)      nis = e'S⁻¹e = u'u                                               for every stream

The covariances are those of one stream in `dense_numba.filter_streams`. A stream that must be weighed, that has gaps or
noises of its own, belongs there.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numba
import numpy as np

from rfa.runtime.filters.dense_numba import (
    COMPILER_OPTIONS,
    Array,
    CompiledSystem,
    StreamState,
    checked,
    filter_streams,
)
from rfa.runtime.filters.linear_config import LinearFilterConfig

# Streams side by side, and steps of them whose observations are laid out anew at a time: what lies between two steps
# stays in the first-level cache, and what a stream observed is read some cache lines at once.
LANES = 256
STEPS = 8


class CommonResult(NamedTuple):
    """mean `[B, N, n]` and nis `[B, N]` of every stream; covariance `[N, n, n]` of all; and the state at the end."""

    mean: Array
    nis: Array
    covariance: Array
    state: StreamState


@functools.cache
def _kernel(n: int, p: int) -> Any:
    """The steps of many streams, compiled for the sizes: a row of M is then one vector loop over streams.

    Rows of `work` are numbers of the filter, `LANES` streams each: (m, y - b) of `STEPS` steps and the mean after them,
    then u.
    """
    size = n + p
    whitened = (STEPS + 1) * size

    @numba.njit(**COMPILER_OPTIONS)
    def run(values, offset, steps, state, mean, nis):
        """Means `[N, n, B]` and nis `[N, B]`, by M `[N, n + P, n + P]`; state: the means before `[n, B]`, becomes those
        after."""
        streams, length, _ = values.shape
        # Lanes without a stream are worked on too, so that loops have a fixed length; nobody reads them.
        work = np.zeros((whitened + p) * LANES)
        for first in range(0, streams, LANES):
            own = min(LANES, streams - first)
            for i in range(n):
                for lane in range(own):
                    work[i * LANES + lane] = state[i, first + lane]
            for start in range(0, length, STEPS):
                count = min(STEPS, length - start)
                for lane in range(own):
                    for ahead in range(count):
                        for a in range(p):
                            observed = values[first + lane, start + ahead, a]
                            work[(ahead * size + n + a) * LANES + lane] = observed - offset[a]
                for ahead in range(count):
                    step, before = steps[start + ahead], ahead * size
                    for i in range(n):
                        for lane in range(LANES):
                            total = 0.0
                            for k in range(size):
                                total += step[i, k] * work[(before + k) * LANES + lane]
                            work[(before + size + i) * LANES + lane] = total
                    for a in range(p):
                        for lane in range(LANES):
                            total = 0.0
                            for k in range(size):
                                total += step[n + a, k] * work[(before + k) * LANES + lane]
                            work[(whitened + a) * LANES + lane] = total
                    for lane in range(own):
                        total = 0.0
                        for a in range(p):
                            total += work[(whitened + a) * LANES + lane] * work[(whitened + a) * LANES + lane]
                        nis[start + ahead, first + lane] = total
                    for i in range(n):
                        for lane in range(own):
                            mean[start + ahead, i, first + lane] = work[(before + size + i) * LANES + lane]
                for i in range(n):
                    for lane in range(own):
                        work[i * LANES + lane] = work[(count * size + i) * LANES + lane]
            for i in range(n):
                for lane in range(own):
                    state[i, first + lane] = work[i * LANES + lane]

    return run


def _first_stream(state: StreamState) -> StreamState:
    """The state of one stream, if all share its covariance and time."""
    covariance, time = np.asarray(state.covariance, np.float64), np.asarray(state.time, np.float64)
    if not (covariance == covariance[:1]).all() or not (time == time[:1]).all():
        raise ValueError("state.covariance and state.time must be the same for all streams")
    return StreamState(np.asarray(state.mean, np.float64)[:1], covariance[:1], time[:1])


def _steps(system: CompiledSystem, noise: Array, lags: Array, covariance: Array) -> Array:
    """M `[N, n + P, n + P]` of every step; covariance: before it, `[N, n, n]`."""
    n, p = system.n, system.p
    distinct, index = np.unique(lags, return_inverse=True)
    moves, process = system.transitions(distinct).reshape(-1, 2, n, n)[index].swapaxes(0, 1)
    sensor = system.sensor[: p * n].reshape(p, n)
    cross = (moves @ covariance @ moves.swapaxes(1, 2) + process) @ sensor.T
    whitening = np.linalg.inv(np.linalg.cholesky(sensor @ cross + noise))
    gain, expected = cross @ (whitening.swapaxes(1, 2) @ whitening), sensor @ moves
    return np.block([[moves - gain @ expected, gain], [-whitening @ expected, whitening]])


def filter_common(
    config: LinearFilterConfig, times: Array, observations: Array, *, state: StreamState | None = None
) -> CommonResult:
    """Filter many complete streams of one system with one covariance: the Kalman filter, nu null.

    Args:
        times: `[N]`, of all streams; not decreasing.
        observations: `[B, N, P]`, nothing missing.
        state: of all B streams, to go on from; their covariances and times are the same.

    Raises:
        ValueError: naming the argument.
    """
    if config.nu is not None:
        raise ValueError(f"nu must be null for streams that share a covariance, got {config.nu}")
    clock, values = np.asarray(times, np.float64), np.ascontiguousarray(observations, np.float64)
    if clock.ndim != 1:
        raise ValueError(f"times must be [steps], the same for all streams, got {list(clock.shape)}")
    system = CompiledSystem(config)
    alone = None if state is None else _first_stream(state)
    # The covariances of a Kalman filter do not depend on what was observed.
    one = filter_streams(config, clock, np.zeros_like(values[:1]), state=alone, covariances=True)
    assert one.covariance is not None
    covariance = one.covariance[0]
    first = system.prior_covariance[None] if alone is None else alone.covariance
    lags = np.diff(clock, prepend=clock[:1] if alone is None else alone.time)
    noise = np.asarray(config.measurement_noise, np.float64)
    steps = _steps(system, noise, lags, np.concatenate([first, covariance[:-1]]))
    batch, length = values.shape[:2]
    offset = system.sensor[system.p * system.n : -noise.size]
    start = np.empty((batch, system.n))
    start[:] = system.prior_mean if state is None else checked("state.mean", state.mean, start.shape)
    # Time first and streams last, in the order in which they are written; the results are views of that.
    mean, nis = np.empty((length, system.n, batch)), np.empty((length, batch))
    last = np.ascontiguousarray(start.T)
    _kernel(system.n, system.p)(values, offset, steps, last, mean, nis)
    # A distance is finite only if all values of its observation were.
    if not np.isfinite(nis.sum()):
        raise ValueError("observations must be finite; filter_streams takes those with gaps")
    end = StreamState(last.T.copy(), np.repeat(covariance[-1:], batch, 0), np.full(batch, clock[-1]))
    return CommonResult(mean.transpose(2, 0, 1), nis.T, covariance, end)
