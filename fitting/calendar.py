"""Fit the weekly pattern of a series by least squares with a smooth prior, robust against unusual days.

    y = X β + z              X: interpolation between nodes of the week (`Days.nodes`)
    β ~ N(0, K)              K = a_day K_day + a_week K_week, plus a_holiday K_holiday if there are holidays

The prior makes the pattern smooth over the day (the part that all days have in common) and over the week (the
differences between days). A holiday is modelled as a Sunday plus a smooth difference. The scales a maximise the
marginal likelihood.

Residuals are correlated within a day. A day therefore has the weight of a few observations, regardless of its number of
rows. Each day has one Student-t weight, which is computed from the mean squared residual of the day. The structural
model is then fitted to the residuals.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from rfa.runtime.filters.calendar import DAY_SECONDS, WEEKDAYS, Days, Nodes, is_moment

# Maximum number of nodes per day: half-hours, and hours when the scales are estimated.
MOST_NODES, SCALE_NODES = 48, 24
# Minimum number of days in the training part.
LEAST_DAYS = 3 * WEEKDAYS
# Correlation lengths in hours of the common pattern, of the differences between days (a short and a long one), and of
# the difference between a holiday and a Sunday.
DAY_HOURS, WEEK_HOURS, HOLIDAY_HOURS = 2.0, (3.0, 24.0), 6.0
# Initial values of the scales in squared spreads, and the half-width of the range of their logarithms.
SCALES, SCALE_RANGE = (0.5, 0.1, 0.1), 7.0
# Added to the diagonal so that the prior covariance is invertible.
JITTER = 1e-6
# Maximum number of independent observations per day, degrees of freedom of the weight of a day, and reweighting passes.
DAY_OBSERVATIONS, NU, PASSES = 4.0, 4.0, 6
SUNDAY = 6


def _matern(distance: np.ndarray, hours: float) -> np.ndarray:
    """Return the Matérn correlation of order 3/2 at distances in hours."""
    x = np.sqrt(3.0) * distance / hours
    found: np.ndarray = (1 + x) * np.exp(-x)
    return found


class Prior:
    """Terms of the prior covariance, `[3, K, K]`: those of the pattern that all days have in common, of the differences
    between days, and of holidays."""

    def __init__(self, days: Days) -> None:
        slots, week = days.slots, WEEKDAYS * days.slots
        hours = np.arange(week) * (24.0 / slots)
        # A holiday has the pattern of a Sunday plus its own difference.
        of_week = np.concatenate([np.arange(week), SUNDAY * slots + np.arange(slots)])[: days.types * slots]
        apart = np.abs(hours[:, None] - hours)
        # Distances are chords of the circles of a day and a week, because arc lengths do not give a valid covariance.
        around_day, around_week = (
            span / np.pi * np.abs(np.sin(np.pi * apart / span)) for span in (24.0, 24.0 * WEEKDAYS)
        )
        day = _matern(around_day, DAY_HOURS)
        differences = np.mean([_matern(around_week, span) for span in WEEK_HOURS], axis=0)
        own = np.zeros((len(of_week), len(of_week)))
        if days.holidays:
            own[week:, week:] = _matern(around_day[:slots, :slots], HOLIDAY_HOURS)
        self.parts = np.stack([day[np.ix_(of_week, of_week)], differences[np.ix_(of_week, of_week)], own])
        self.count = 2 + bool(days.holidays)

    def covariance(self, scales: np.ndarray) -> np.ndarray:
        """Return the prior covariance `[K, K]` for the logarithms of the scales."""
        found: np.ndarray = np.tensordot(np.exp(scales), self.parts[: self.count], axes=1)
        found[np.diag_indices_from(found)] += JITTER * np.exp(scales).sum()
        return found


def pattern_at(pattern: np.ndarray, nodes: Nodes) -> np.ndarray:
    """Return the values of the pattern at the rows, X β, `[N]`."""
    found: np.ndarray = pattern[nodes.before] * (1 - nodes.share) + pattern[nodes.after] * nodes.share
    return found


def fit_pattern(times: np.ndarray, y: np.ndarray, days: Days) -> np.ndarray:
    """Fit and return the pattern β `[K]`, which concatenates the patterns of all types of day.

    Args:
        times: Seconds since 1970, `[N]`.
        y: Values `[N]` with median about 0 and spread about 1. Missing values are NaN.
        days: Types of day, and nodes of the pattern.
    """
    seen = np.isfinite(y)
    nodes, y = days.nodes(times[seen]), y[seen]
    prior, size = Prior(days), days.types * days.slots
    _, day, count = np.unique(days.dates(times[seen]), return_inverse=True, return_counts=True)
    typical = float(np.median(count))
    scales = np.log(np.array(SCALES[: prior.count]))
    pattern = _first(y, nodes, size)
    for step in range(PASSES):
        rest = np.bincount(day, (y - pattern_at(pattern, nodes)) ** 2) / count
        # A series that repeats exactly has no residuals.
        spread = max(float(np.median(rest)), 1e-12)
        weight = np.minimum((NU + 1) / (NU + rest / spread), 1.0)
        variance = max(float((weight * rest).sum() / weight.sum()), 1e-12)
        per_row = weight[day] * min(DAY_OBSERVATIONS, typical) / (typical * variance)
        information, evidence = _normal(y, nodes, per_row, size)
        if step == 1:
            scales = _scales(times[seen], y, per_row, days, scales)
        pattern, _ = _posterior(prior, information, evidence, scales)
    return pattern


def _first(y: np.ndarray, nodes: Nodes, size: int) -> np.ndarray:
    """Return the initial pattern. It is the median of the values nearest to each node. At a node without values, it is
    the median of all values."""
    nearest = np.where(nodes.share < 0.5, nodes.before, nodes.after)
    order = np.argsort(nearest, kind="stable")
    bounds = np.searchsorted(nearest[order], np.arange(size + 1))
    middle = float(np.median(y))
    parts = (y[order[low:high]] for low, high in itertools.pairwise(bounds))
    return np.array([np.median(part) if len(part) else middle for part in parts])


def _normal(y: np.ndarray, nodes: Nodes, weight: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Xᵀ W X and Xᵀ W y of the weighted least squares problem."""
    information, evidence = np.zeros((size, size)), np.zeros(size)
    ends = (nodes.before, 1 - nodes.share), (nodes.after, nodes.share)
    for node, share in ends:
        evidence += np.bincount(node, weight * share * y, size)
        for other, other_share in ends:
            product = np.bincount(node * size + other, weight * share * other_share, size * size)
            information += product.reshape(size, size)
    return information, evidence


def _posterior(
    prior: Prior, information: np.ndarray, evidence: np.ndarray, scales: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the posterior mean β = L (I + Lᵀ information L)⁻¹ Lᵀ evidence, where K = L Lᵀ. Also return the log
    marginal likelihood, multiplied by -2."""
    root = np.linalg.cholesky(prior.covariance(scales))
    inner = root.T @ information @ root
    inner[np.diag_indices_from(inner)] += 1.0
    factor = cho_factor(inner, lower=True)
    seen = root.T @ evidence
    solved = cho_solve(factor, seen)
    return root @ solved, 2 * float(np.log(np.diag(factor[0])).sum()) - float(seen @ solved)


def _scales(times: np.ndarray, y: np.ndarray, weight: np.ndarray, days: Days, start: np.ndarray) -> np.ndarray:
    """Return the logarithms of the scales of the prior that maximise the marginal likelihood of an hourly pattern. With
    a half-hourly pattern, this would take eight times as long."""
    hourly = Days(days.zone, min(days.slots, SCALE_NODES), days.holidays)
    prior, size = Prior(hourly), hourly.types * hourly.slots
    information, evidence = _normal(y, hourly.nodes(times), weight, size)
    bounds = [(math.log(x) - SCALE_RANGE, math.log(x) + SCALE_RANGE) for x in SCALES[: prior.count]]
    found: np.ndarray = minimize(
        lambda x: _posterior(prior, information, evidence, x)[1], start, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": 12, "ftol": 1e-5},
    ).x  # fmt: skip
    return found


def days_for(times: np.ndarray, fitted: int, zone: str, holidays: tuple[str, ...]) -> Days | None:
    """Return the calendar days of a series, or None if a calendar cannot be used for the series.

    A calendar cannot be used if the rows are more than a day apart, a time is outside the range of calendars, or the
    first rows cover fewer than `LEAST_DAYS` days. Holidays are used if one of the first rows falls on a holiday.

    Args:
        times: Seconds since 1970, `[N]`.
        fitted: Number of the first rows to which the pattern is fitted.
        zone: Time zone of the days.
        holidays: Dates of holidays, such as "2026-12-24".
    """
    lags = np.diff(times)
    step = float(np.median(lags[lags > 0])) if (lags > 0).any() else math.inf
    if step > DAY_SECONDS * 1.01 or not is_moment(times).all():
        return None
    days = Days(zone, int(np.clip(round(DAY_SECONDS / step), 1, MOST_NODES)), holidays)
    dates = np.unique(days.dates(times[:fitted]))
    if len(dates) < LEAST_DAYS:
        return None
    return days if days.is_holiday(dates).any() else Days(zone, days.slots)
