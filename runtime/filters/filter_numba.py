"""Compiled step of a linear filter. It processes one observation and computes all outputs of the filter.

The equations are those of `dense_numba.py`, computed in float64. The outputs are those of `FilterOutput` in
`state_filter.py`. The bits of a stream's results do not depend on the other streams of a call.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.compiling import cached_inline_jit, inline_jit, source_inline_jit
from rfa.runtime.filters import dense_numba, dense_numba_learned, linear_rows, robust_constants, transition_numba
from rfa.runtime.filters.dense_numba_learned import FACTORS
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.linear_rows import rows_of
from rfa.runtime.filters.observed import LOG_LIKELIHOOD, NIS, PRECISION, WEIGHT, predictive_log_density
from rfa.runtime.filters.spectrum import spectrum
from rfa.runtime.filters.transition_numba import transition

Array = np.ndarray[Any, Any]


class LinearSystem(NamedTuple):
    """Parameters of a system for the compiled step.

    Args:
        sizes: Numbers n and P, and whether C is the first rows of the identity.
        sensor: C, b and R in one row.
        modes: Rates, basis, dual, powers and noises of the modes.
        rule: 1/nu, number of passes or factors, and patience.
        outliers: Fraction and scale of outliers in the predictive density.
    """

    sizes: tuple[int, int, bool]
    sensor: Array
    modes: tuple[Array, ...]
    rule: tuple[float, int, int]
    outliers: tuple[float, float]

    @classmethod
    def of(cls, config: LinearFilterConfig) -> LinearSystem:
        """Compute the parameters of the compiled step from the configuration of a filter."""
        drift, noise = np.asarray(config.drift), np.asarray(config.measurement_noise)
        n, p = len(drift), len(noise)
        matrix = np.eye(n) if config.observation is None else np.asarray(config.observation)
        offset = np.zeros(p) if config.offset is None else np.asarray(config.offset)
        leads = bool(p <= n and (matrix == np.eye(p, n)).all())
        found, process_noise = spectrum(drift), np.asarray(config.process_noise)
        parts = (found.rates, found.basis, found.dual, found.powers(), found.noises(process_noise))
        # Without robust weights, every pass gives weight 1, and the filter follows every jump.
        rule = 0.0, 1, 0
        if config.nu is not None:
            rule = 1 / config.nu, FACTORS if learns_noise(config) else config.inner, config.reacquire or 0
        return cls(
            (n, p, leads), np.concatenate([matrix.ravel(), offset, noise.ravel()]),
            tuple(np.ascontiguousarray(part, np.complex128) for part in parts), rule,
            (float(config.contamination), float(config.outlier_scale)),
        )  # fmt: skip


def learns_noise(config: LinearFilterConfig) -> bool:
    """Return whether the filter learns the noise."""
    return config.nu is not None and config.rule == "learned"


@inline_jit
def _seen_through(sensor, sizes, covariance, out):
    """Compute C P Cᵀ from the row of elements of the state covariance."""
    n, p, _ = sizes
    for a in range(p):
        for b in range(a + 1):
            total = 0.0
            for i in range(n):
                inner = 0.0
                for j in range(n):
                    inner += covariance[i * n + j] * sensor[b * n + j]
                total += sensor[a * n + i] * inner
            out[a, b] = total
            out[b, a] = total


@inline_jit
def _seen_mean(sensor, sizes, mean, out):
    """Compute C m + b."""
    n, p, _ = sizes
    for a in range(p):
        total = sensor[p * n + a]
        for i in range(n):
            total += sensor[a * n + i] * mean[i]
        out[a] = total


@inline_jit
def load_sensor(system, work):
    """Copy C, b and R to `work`. They stay there for all observations."""
    rows = rows_of(system.sizes)
    for k in range(len(system.sensor)):
        work[rows.matrix + k] = system.sensor[k]


@source_inline_jit
def _observe(update, beyond, system, work, state, value, lag, scale, out):
    """Update the state `[S]` of a stream with values. Missing values are NaN.

    This is one function, because dividing it would change which products are fused with additions.

    Args:
        update: Function that computes the posterior.
        beyond: Number of values of the state after those of `linear_rows`.
        work: Scratch. F and Q are reused while the lag is unchanged. Its last value is that lag, initially negative.
    """
    n, p, _ = system.sizes
    rows = rows_of(system.sizes)
    if work[-1] != lag:
        work[-1] = lag
        f, q = work[rows.f : rows.q].reshape(n, n), work[rows.q : rows.matrix].reshape(n, n)
        transition(lag, system.modes, f, q)
    for k in range(rows.scale):
        work[k] = state[k]
    for k in range(beyond):
        work[rows.end + k] = state[rows.scale + k]
    for a in range(p):
        work[rows.value + a] = value[a]
    work[rows.scale] = scale
    dense_numba.predict(work, system.sizes)
    log_det = 0.0
    for a in range(p):
        log_det -= np.log(work[rows.nominal + a * p + a])
        out.innovation[a] = work[rows.innovation + a]
    out.scalars[NIS] = work[rows.nis]
    out.scalars[LOG_LIKELIHOOD] = predictive_log_density(work[rows.nis], log_det, work[rows.seen], system.outliers)
    _seen_through(system.sensor, system.sizes, work[rows.prior :], out.innovation_covariance)
    for a in range(p):
        for b in range(p):
            out.innovation_covariance[a, b] += system.sensor[p * n + p + a * p + b] * (scale * scale)
    dense_numba.detect_jump(work, system.sizes, system.rule)
    for i in range(n):
        out.predicted_mean[i] = work[rows.prior_mean + i]
        for j in range(n):
            out.transition[i, j] = work[rows.f + i * n + j]
            out.predicted_covariance[i, j] = work[rows.prior + i * n + j]
    update(work, system.sizes, system.rule)
    _seen_mean(system.sensor, system.sizes, work[rows.mean :], out.mean)
    _seen_through(system.sensor, system.sizes, work[rows.covariance :], out.covariance)
    trace = 0.0
    for a in range(p):
        trace += out.covariance[a, a]
    out.scalars[PRECISION] = p / trace
    out.scalars[WEIGHT] = work[rows.weight]
    for k in range(rows.scale):
        state[k] = work[k]
    for k in range(beyond):
        state[rows.scale + k] = work[rows.end + k]


# Cached separately, so that one process can compile them while another one compiles the rest of a kernel.
@cached_inline_jit(dense_numba, linear_rows, robust_constants, transition_numba)
def observe_capped(system, work, state, value, lag, scale, out):
    """Process an observation under the capped rule."""
    _observe(dense_numba.update, 0, system, work, state, value, lag, scale, out)


@cached_inline_jit(dense_numba, dense_numba_learned, linear_rows, robust_constants, transition_numba)
def observe_learned(system, work, state, value, lag, scale, out):
    """Process an observation under the rule that learns the noise."""
    _observe(dense_numba_learned.update, FACTORS, system, work, state, value, lag, scale, out)


@inline_jit
def forecast(system, moves, state, work, mean, covariance):
    """Compute the mean `[P]` and the covariance `[P, P]` of a future observation.

    Args:
        system: Parameters of the system.
        moves: F and Q over the horizon, `[2, n, n]`.
        state: State of the stream, `[S]`.
        work: Scratch, `[n (n + 2)]`.
        mean, covariance: Outputs.
    """
    n, p, _ = system.sizes
    moved, inner, spread = work[:n], work[n : 2 * n], work[2 * n :]
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += moves[0, i, j] * state[j]
        moved[i] = total
        for k in range(n):
            total = 0.0
            for m in range(n):
                total += moves[0, i, m] * state[n + m * n + k]
            inner[k] = total
        for j in range(n):
            total = moves[1, i, j]
            for k in range(n):
                total += inner[k] * moves[0, j, k]
            spread[i * n + j] = total
    _seen_mean(system.sensor, system.sizes, moved, mean)
    _seen_through(system.sensor, system.sizes, spread, covariance)
    for a in range(p):
        for b in range(p):
            covariance[a, b] += system.sensor[p * n + p + a * p + b]
