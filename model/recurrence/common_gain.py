"""Kalman filters of many streams that share one covariance: what is the same for all of them is computed once.

Without robust weights, with common times and nothing missing, the covariance of a Kalman filter does not depend on what
was observed, so all streams of a system have the same gains:

    P⁻ = F P Fᵀ + Q      S = C P⁻ Cᵀ + R      K = P⁻ Cᵀ S⁻¹          once for every time
    m⁻ = F m             e = y - b - C m⁻     m = m⁻ + K e            for every stream, compiled

The covariances are those of one stream in `dense_numba.filter_streams`. A stream that must be weighed, that has gaps or
noises of its own, belongs there.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from model.linear_filter import LinearFilterConfig
from model.recurrence.dense_numba import (
    COMPILER_OPTIONS,
    Array,
    CompiledSystem,
    StreamState,
    checked,
    filter_streams,
)

# Streams side by side: enough that memory is written in order, and what is between two steps stays in the cache.
LANES = 1024
# Steps whose observations are laid out anew at a time: they stay in the second-level cache.
STEPS = 64


class CommonResult(NamedTuple):
    """mean `[B, N, n]` and nis `[B, N]` of every stream; covariance `[N, n, n]` of all; and the state at the end."""

    mean: Array
    nis: Array
    covariance: Array
    state: StreamState


@numba.njit(**COMPILER_OPTIONS)
def _add_product(out, matrix, x, sign, first, stop):
    """out += sign · matrix x, for streams first … stop."""
    for i in range(matrix.shape[0]):
        total = out[i, first:stop]
        for k in range(matrix.shape[1]):
            factor, row = sign * matrix[i, k], x[k, first:stop]
            # From 0, or the compiler takes a lane for one that may count from the end.
            for lane in range(stop - first):
                total[lane] += factor * row[lane]


@numba.njit(**COMPILER_OPTIONS)
def _means(error, moves, sensor, gains, inverse, start, mean, nis):
    """Means `[N, n, B]` and nis `[N, B]` of all streams, from their means before `[n, B]`.

    error: `[N, P, B]`, observations less their bias; becomes the innovations.
    """
    steps, p, streams = error.shape
    solved = np.empty((p, streams))
    for first in range(0, streams, LANES):
        stop = min(first + LANES, streams)
        before = start
        for t in range(steps):
            mean[t, :, first:stop] = 0.0
            _add_product(mean[t], moves[t], before, 1.0, first, stop)
            _add_product(error[t], sensor, mean[t], -1.0, first, stop)
            solved[:, first:stop] = 0.0
            _add_product(solved, inverse[t], error[t], 1.0, first, stop)
            nis[t, first:stop] = 0.0
            distance = nis[t, first:stop]
            for a in range(p):
                left, right = error[t, a, first:stop], solved[a, first:stop]
                for lane in range(stop - first):
                    distance[lane] += left[lane] * right[lane]
            _add_product(mean[t], gains[t], error[t], 1.0, first, stop)
            before = mean[t]


def _first_stream(state: StreamState) -> StreamState:
    """The state of one stream, if all share its covariance and time."""
    covariance, time = np.asarray(state.covariance, np.float64), np.asarray(state.time, np.float64)
    if not (covariance == covariance[:1]).all() or not (time == time[:1]).all():
        raise ValueError("state.covariance and state.time must be the same for all streams")
    return StreamState(np.asarray(state.mean, np.float64)[:1], covariance[:1], time[:1])


def _gains(system: CompiledSystem, noise: Array, lags: Array, covariance: Array) -> tuple[Array, Array, Array]:
    """F `[N, n, n]`, K `[N, n, P]` and S⁻¹ `[N, P, P]` of every step; covariance: before it, `[N, n, n]`."""
    n, p = system.n, system.p
    distinct, index = np.unique(lags, return_inverse=True)
    moves, process = system.transitions(distinct).reshape(-1, 2, n, n)[index].swapaxes(0, 1)
    sensor = system.sensor[: p * n].reshape(p, n)
    cross = (moves @ covariance @ moves.swapaxes(1, 2) + process) @ sensor.T
    inverse = np.linalg.inv(sensor @ cross + noise)
    return np.ascontiguousarray(moves), cross @ inverse, inverse


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
    moves, gains, inverse = _gains(system, noise, lags, np.concatenate([first, covariance[:-1]]))
    batch, length = values.shape[:2]
    sensor, offset = np.split(system.sensor[: -noise.size], [system.p * system.n])
    start = np.empty((batch, system.n))
    start[:] = system.prior_mean if state is None else checked("state.mean", state.mean, start.shape)
    # Time first and streams last, so that a step is a few loops over neighbours; the results are views of that.
    mean, nis = np.empty((length, system.n, batch)), np.empty((length, batch))
    before, sensor = np.ascontiguousarray(start.T), sensor.reshape(system.p, -1)
    for t in range(0, length, STEPS):
        part = slice(t, t + STEPS)
        error = np.subtract(values[:, part].transpose(1, 2, 0), offset[:, None], order="C")
        _means(error, moves[part], sensor, gains[part], inverse[part], before, mean[part], nis[part])
        before = mean[part][-1]
    # A distance is finite only if all values of its observation were.
    if not np.isfinite(nis.sum()):
        raise ValueError("observations must be finite; filter_streams takes those with gaps")
    end = StreamState(mean[-1].T.copy(), np.repeat(covariance[-1:], batch, 0), np.full(batch, clock[-1]))
    return CommonResult(mean.transpose(2, 0, 1), nis.T, covariance, end)
