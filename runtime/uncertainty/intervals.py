"""Calibrated intervals of forecasts, and the comparison of the one-step forecast with its observation."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.filters.student import stretched
from rfa.runtime.uncertainty.adaptive import adapt_half_widths, score_step
from rfa.runtime.uncertainty.anomaly import LEAST_VARIANCE
from rfa.runtime.uncertainty.calibration import SHORTEST
from rfa.runtime.uncertainty.forecast_checks import tally


@inline_jit
def _combine(widths, columns, weights, level):
    """Return the half-width of a level as a weighted sum of two calibrated half-widths."""
    other = level + len(columns) // 2
    return widths[columns[level]] * weights[level] + widths[columns[other]] * weights[other]


@inline_jit
def _multipliers_at(tables, lag, out):
    """Compute the calibrated multipliers at a lag, `[levels]`."""
    position = np.log(max(lag, SHORTEST))
    line, last = 0, len(tables.log_horizons) - 1
    while line < last and tables.log_horizons[line + 1] <= position:
        line += 1
    share = 0.0
    if line < last and position > tables.log_horizons[0]:
        share = (position - tables.log_horizons[line]) / (tables.log_horizons[line + 1] - tables.log_horizons[line])
    for level in range(len(out)):
        out[level] = tables.lines[line, 0, level] + share * tables.lines[line, 1, level]


@inline_jit
def check_step(scorer, lag, posterior, weighted_nis, sums):
    """Score the forecast of this observation, and write its tally to `sums`."""
    tables, work = scorer.tables, scorer.work
    _multipliers_at(tables, lag, work.multipliers)
    for a in range(len(work.scores)):
        innovation = posterior.innovation[a]
        work.is_above[a] = innovation > 0
        work.scores[a] = abs(innovation) / np.sqrt(max(posterior.innovation_covariance[a, a], LEAST_VARIANCE))
        adapt_half_widths(work.multipliers, work.shift[0, a], work.widths[a])
        inverse_dof = posterior.inverse_dof[0, a]
        for edge in range(work.edges.shape[1]):
            width = _combine(work.widths[a], tables.pit_columns, tables.pit_weights, edge)
            work.edges[a, edge] = width * stretched(tables.pit_squares[edge], inverse_dof)
        for level in range(work.widths.shape[1]):
            work.widths[a, level] *= stretched(tables.squares[level], inverse_dof)
        if work.is_scored[a]:
            score_step(work.shift[0, a], work.widths[a], work.scores[a], tables.miss_rates)
    tally(work, weighted_nis, sums)


@inline_jit
def forecast_intervals(scorer, posterior, moments, bands):
    """Compute the mean, std and median `[H, 3, P]` and the intervals `[H, levels, P, 2]` of the forecasts. Return the
    sum of all results, which is not finite if one of them is not."""
    spec, work, total = scorer.spec, scorer.work, 0.0
    for h in range(len(spec.horizon)):
        for a in range(len(work.scores)):
            mean, variance = posterior.forecast_mean[h, a], posterior.forecast_covariance[h, a, a]
            deviation = np.sqrt(max(variance, 0.0))
            moments[h, 0, a] = moments[h, 2, a] = mean
            moments[h, 1, a] = deviation * spec.scale[h]
            if posterior.half_widths.shape[2] > 0:
                total += _two_sided(scorer, posterior, bands[h], h, a)
            else:
                total += _symmetric(scorer, posterior, bands[h], h, a)
            total += mean + variance
    return total


@inline_jit
def _symmetric(scorer, posterior, bands, h, a):
    """Compute the intervals of a forecast from its covariance. Return their sum."""
    spec, work, total = scorer.spec, scorer.work, 0.0
    mean, deviation = posterior.forecast_mean[h, a], np.sqrt(max(posterior.forecast_covariance[h, a, a], 0.0))
    inverse_dof = posterior.forecast_inverse_dof[h, a]
    adapt_half_widths(spec.multipliers[h], work.shift[work.horizon_index[h], a], work.radius[h, a])
    for level in range(bands.shape[0]):
        half = deviation * _combine(work.radius[h, a], spec.columns, spec.weights[h], level)
        half *= stretched(spec.squares[level], inverse_dof)
        bands[level, a, 0] = mean - half
        bands[level, a, 1] = mean + half
        total += half
    for level in range(work.radius.shape[2]):
        work.radius[h, a, level] *= deviation * stretched(scorer.tables.squares[level], inverse_dof)
    return total


@inline_jit
def _two_sided(scorer, posterior, bands, h, a):
    """Compute the intervals of a forecast from half-widths below and above its mean. Return their sum."""
    spec, work = scorer.spec, scorer.work
    mean, total = posterior.forecast_mean[h, a], 0.0
    calibrated = work.shift.shape[2]
    for side in range(2):
        for level in range(calibrated):
            work.multipliers[level] = posterior.half_widths[h, a, side * calibrated + level]
        adapt_half_widths(work.multipliers, work.shift[work.horizon_index[h], a], work.side)
        for level in range(calibrated):
            work.radius[h, a, side * calibrated + level] = work.side[level]
        for level in range(bands.shape[0]):
            half = _combine(work.side, spec.columns, spec.weights[h], level)
            bands[level, a, side] = mean + (half if side else -half)
            total += half
    return total
