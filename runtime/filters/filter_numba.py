"""One observation of a linear filter in compiled code, with every number that the graph of a filter tells.

Equations: those of `dense_numba.py` for a single stream, in float64; what is told is `FilterOutput` of
`state_filter.py`. A stream's numbers are the same bits in whatever company: nothing is computed beside it.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.compiling import cached_inline_jit, inline_jit, source_inline_jit
from rfa.runtime.filters import dense_numba, dense_numba_learned, noise_law
from rfa.runtime.filters.dense_numba import CompiledSystem, _rows, _transition
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.observed import LOG_LIKELIHOOD, NIS, PRECISION, WEIGHT, predictive_log_density

Array = np.ndarray[Any, Any]


class LinearSystem(NamedTuple):
    """What the compiled step needs of a system: sizes (n, P, C is the first rows of the identity), sensor (C, b, R in
    one row), its modes (rates, basis, dual, powers, noises), rule (1/nu, passes or factors, patience) and outliers
    (their share and size in the predictive density)."""

    sizes: tuple[int, int, bool]
    sensor: Array
    modes: tuple[Array, Array, Array, Array, Array]
    rule: tuple[float, int, int]
    outliers: tuple[float, float]

    @classmethod
    def of(cls, config: LinearFilterConfig, system: CompiledSystem) -> LinearSystem:
        """Of a config and what was made of it."""
        p, n = system.p, system.n
        leads = bool(p <= n and (system.sensor[: p * n].reshape(p, n) == np.eye(p, n)).all())
        inverse_nu, turns, patience = system.rule
        rule = float(inverse_nu), int(turns), int(patience or 0)
        outliers = float(config.contamination), float(config.outlier_scale)
        return cls((n, p, leads), system.sensor, system.modes, rule, outliers)  # type: ignore[arg-type]


@inline_jit
def _seen_through(sensor, sizes, covariance, out):
    """C P Cᵀ, where the state's covariance is a row of its entries."""
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
    """C m + b."""
    n, p, _ = sizes
    for a in range(p):
        total = sensor[p * n + a]
        for i in range(n):
            total += sensor[a * n + i] * mean[i]
        out[a] = total


@inline_jit
def load_sensor(system, work):
    """Put what does not change from one observation to the next where the step finds it."""
    at = _rows(system.sizes)
    for k in range(len(system.sensor)):
        work[at.matrix + k] = system.sensor[k]


@source_inline_jit
def _observe(update, beyond, system, work, state, value, lag, scale, out):
    """Condition the stream `[S]` in `state`, as `CompiledSystem.pack` has it, on values with NaN where missing.

    work: scratch whose F and Q are kept while the lag stays: its last number is theirs, below 0 at first.
    beyond: how many rows the rule adds to those of the state.
    """
    n, p, _ = system.sizes
    at = _rows(system.sizes)
    if work[-1] != lag:
        work[-1] = lag
        rates, basis, dual, powers, noises = system.modes
        f, q = work[at.f : at.q].reshape(n, n), work[at.q : at.matrix].reshape(n, n)
        _transition(lag, rates, basis, dual, powers, noises, f, q)
    for k in range(at.scale):
        work[k] = state[k]
    for k in range(beyond):
        work[at.end + k] = state[at.scale + k]
    for a in range(p):
        work[at.value + a] = value[a]
    work[at.scale] = scale
    dense_numba._foresee(work, system.sizes, (1, 1))
    log_det = 0.0
    for a in range(p):
        log_det -= np.log(work[at.nominal + a * p + a])
        out.innovation[a] = work[at.innovation + a]
    out.scalars[NIS] = work[at.nis]
    out.scalars[LOG_LIKELIHOOD] = predictive_log_density(work[at.nis], log_det, work[at.seen], system.outliers)
    _seen_through(system.sensor, system.sizes, work[at.prior :], out.innovation_covariance)
    for a in range(p):
        for b in range(p):
            out.innovation_covariance[a, b] += system.sensor[p * n + p + a * p + b] * (scale * scale)
    dense_numba._doubt(work, system.sizes, (1, 1), system.rule)
    for i in range(n):
        out.predicted_mean[i] = work[at.prior_mean + i]
        for j in range(n):
            out.transition[i, j] = work[at.f + i * n + j]
            out.predicted_covariance[i, j] = work[at.prior + i * n + j]
    update(work, system.sizes, (1, 1), system.rule)
    _seen_mean(system.sensor, system.sizes, work[at.mean :], out.mean)
    _seen_through(system.sensor, system.sizes, work[at.covariance :], out.covariance)
    trace = 0.0
    for a in range(p):
        trace += out.covariance[a, a]
    out.scalars[PRECISION] = p / trace
    out.scalars[WEIGHT] = work[at.weight]
    for k in range(at.scale):
        state[k] = work[k]
    for k in range(beyond):
        state[at.scale + k] = work[at.end + k]


# Kept, so that one process can have them ready while another compiles the rest of a kernel.
@cached_inline_jit(dense_numba, noise_law)
def observe_capped(system, work, state, value, lag, scale, out):
    """An observation under the capped rule."""
    _observe(dense_numba._update, 0, system, work, state, value, lag, scale, out)


@cached_inline_jit(dense_numba, dense_numba_learned, noise_law)
def observe_learned(system, work, state, value, lag, scale, out):
    """One under the rule that learns the noise."""
    _observe(
        dense_numba_learned._update, dense_numba_learned.FACTORS, system, work, state, value, lag, scale, out
    )  # fmt: skip


@inline_jit
def forecast(system, moves, state, work, mean, covariance):
    """Mean `[P]` and covariance `[P, P]` of an observation to come.

    Args:
        moves: F and Q of the time until then `[2, n, n]`.
        work: scratch `[n (n + 2)]`.
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
