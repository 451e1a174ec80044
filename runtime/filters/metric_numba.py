"""One observation of a metric filter in compiled code; equations and names are those of `metric_filter.py`, float64."""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rfa.runtime.compiling import part
from rfa.runtime.filters.observed import LOG_LIKELIHOOD, NIS, PRECISION, WEIGHT, predictive_log_density

# As in metric_filter.py, which needs torch; a test holds them together.
DIFFUSE, FIRST_GUESS = 100.0, 0.1
BOUND, TRUSTED, DOUBT = 9.0, 20.0, 0.95
RESOLUTION, TINY = 1e-6, 1e-18
MEAN, COVARIANCE, VARIANCE, COUNT, LAG = range(5)
FIRST_STATE = (0.0, DIFFUSE, 1.0, 0.0, 0.0)


class MetricSystem(NamedTuple):
    """process q, memory, 1/nu, passes K, and outliers (their share and size in the predictive density)."""

    process: float
    memory: float
    inverse_nu: float
    inner: int
    outliers: tuple[float, float]


@part
def _bounded(value, least, most):
    return min(max(value, least), most)


@part
def observe(system, _, state, value, lag, scale, out):
    """Condition the stream `[5]` in `state` on a value, NaN where missing."""
    y = value[0]
    is_seen = y == y
    count, typical = state[COUNT], state[LAG]
    mean, covariance, variance = state[MEAN], state[COVARIANCE], state[VARIANCE]
    if is_seen and count == 0:
        variance = max((FIRST_GUESS * y) ** 2, TINY)
        mean, covariance = y, DIFFUSE * variance
    unit = typical if typical > 0 else (lag if lag > 0 else 1.0)
    prior = covariance + system.process * (lag / unit) * variance
    noise = variance * (scale * scale)
    innovation = y - mean if is_seen else 0.0
    spread = prior + noise
    nis = innovation * innovation / spread
    out.transition[0, 0], out.predicted_mean[0], out.predicted_covariance[0, 0] = 1.0, mean, prior
    out.innovation[0], out.innovation_covariance[0, 0] = innovation, spread
    out.scalars[LOG_LIKELIHOOD] = 0.0
    if is_seen and count > 0:
        out.scalars[LOG_LIKELIHOOD] = predictive_log_density(nis, np.log(spread), 1.0, system.outliers)

    weight, least = 1.0, max((RESOLUTION * mean) ** 2, TINY)
    if is_seen:
        gate = nis
        for turn in range(system.inner):
            if turn > 0:
                residual = noise / (weight * prior + noise) * innovation
                gate = residual * residual / spread
            weight = min((1 + system.inverse_nu) / (1 + gate * system.inverse_nu), 1.0)
        total = weight * prior + noise
        mean += weight * prior / total * innovation
        covariance = prior * noise / total
        is_bounded = nis > BOUND and count > TRUSTED
        after = max(DOUBT * count, TRUSTED) if is_bounded else min(count + 1, system.memory)
        rate = 1 / max(after - 1, 1.0) if count > 0 else 0.0
        learned = max(variance * (1 + rate * (min(nis, BOUND) - 1 if is_bounded else nis - 1)), least)
        covariance *= learned / variance
        if lag > 0:
            state[LAG] = unit + (_bounded(lag, unit / 2, 2 * unit) - unit) / (count + 1)
        variance, count = learned, after
    else:
        covariance = prior
    out.mean[0], out.covariance[0, 0] = mean, covariance
    out.scalars[PRECISION], out.scalars[WEIGHT], out.scalars[NIS] = 1 / covariance, weight, nis
    state[MEAN], state[COVARIANCE], state[VARIANCE], state[COUNT] = mean, covariance, variance, count


@part
def forecast(system, horizon, state, _, mean, covariance):
    """Mean `[1]` and covariance `[1, 1]` of an observation to come after `horizon`."""
    unit = state[LAG] if state[LAG] > 0 else 1.0
    mean[0] = state[MEAN]
    covariance[0, 0] = state[COVARIANCE] + (system.process * (horizon / unit) + 1) * state[VARIANCE]
