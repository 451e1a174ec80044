"""Exponential smoothing in constant memory: every member of a small grid at once, weighted by its own past errors.

Each member is a damped linear trend (Gardner and McKenzie 1985) of the deseasonalised values: level ℓ, trend b and
parameters (α, β, φ).

    e = y − p − (ℓ + φ b)        p the seasonal profile at this row; 0 in a member without a season
    ℓ ← ℓ + φ b + α e            α at least 1 / (n + 1), so that the first rows set the level
    b ← φ b + α β e
    forecast at lead h = ℓ + (φ + … + φ^h) b + p at row t + h

The profile is a running classical decomposition: the value half a season ago minus the mean of the season around it,
averaged over cycles with at least weight γ. It depends on no member, so one profile serves all members with that γ.
At each lead a member's weight is exp(−rate × loss); the loss is its discounted absolute error over the mean absolute
change of the series, plus half of its mean over the leads. One call with the logarithms of the values gives the
multiplicative form.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

import numba
import numpy as np

Array = np.ndarray
# Columns α, β, φ; no trend is β = 0.
MEMBERS: Final = np.array(
    [
        (alpha, beta, damping)
        for alpha in (0.05, 0.2, 0.5, 0.9)
        for beta in (0.0, 0.05, 0.2)
        for damping in ((1.0,) if beta == 0 else (0.9, 1.0))
    ]
)
# Least weight of the last cycle in each seasonal profile; the first set of members has none.
SEASON_WEIGHTS: Final = np.array([0.0, 0.2, 0.5])
DISCOUNT, RATE, LARGEST_LOSS = 0.99, 0.5, 20.0


def smooth(values: Array, season: int, leads: Array) -> Array:
    """Forecasts `[N, leads]` at each row of `values` `[N]` (NaN: missing); season in rows (1: none), leads in rows."""
    forecasts: Array = _smooth(values, season, leads, MEMBERS, SEASON_WEIGHTS if season > 1 else SEASON_WEIGHTS[:1])
    return forecasts


@numba.njit(cache=True)
def _smooth(values, season, leads, members, season_weights):
    rows, seasons, grid, count = len(values), len(season_weights), len(members), len(leads)
    level, trend = np.zeros((seasons, grid)), np.zeros((seasons, grid))
    profile, cycles = np.zeros((seasons, season)), np.zeros((seasons, season))
    forecasts, out = np.zeros((rows, count, seasons, grid)), np.zeros((rows, count))
    loss, first_weights = np.zeros((count, seasons, grid)), np.ones((seasons, grid))
    filled = np.zeros(rows)
    seen, change, changes, last = 0, 0.0, 0, 0.0
    for t in range(rows):
        value, is_seen = values[t], not np.isnan(values[t])
        if is_seen:
            scale = change / changes if changes > 0 and change > 0 else 1.0
            _score(forecasts, loss, leads, t, value, scale)
        expected, weight = 0.0, 0.0
        for s in range(seasons):
            shift = profile[s, t % season] if s > 0 else 0.0
            for g in range(grid):
                before = level[s, g] + members[g, 2] * trend[s, g]
                expected += first_weights[s, g] * (before + shift)
                weight += first_weights[s, g]
                error = value - shift - before if is_seen else 0.0
                alpha = max(members[g, 0], 1.0 / (seen + 1))
                beta = max(members[g, 1], 1.0 / (seen + 1)) if members[g, 1] > 0 and seen > 0 else 0.0
                level[s, g] = before + alpha * error
                trend[s, g] = members[g, 2] * trend[s, g] + alpha * beta * error
        filled[t] = value if is_seen else expected / weight
        _update_profiles(profile, cycles, season_weights, filled, t)
        if is_seen:
            if seen > 0:
                change += abs(value - last)
                changes += 1
            seen += 1
            last = value
        for j in range(count):
            out[t, j] = _forecast(forecasts, loss, j, leads[j], t, level, trend, profile, members, first_weights)
    return out


@numba.njit(cache=True)
def _score(forecasts, loss, leads, t, value, scale):
    """Add the errors of the forecasts that were for row t."""
    for j in range(len(leads)):
        origin = t - leads[j]
        if origin >= 0:
            for s in range(loss.shape[1]):
                for g in range(loss.shape[2]):
                    error = min(abs(forecasts[origin, j, s, g] - value) / scale, LARGEST_LOSS)
                    loss[j, s, g] = loss[j, s, g] * DISCOUNT + error


@numba.njit(cache=True)
def _update_profiles(profile, cycles, season_weights, filled, t):
    """Take the value half a season ago against the mean of the season around it."""
    season = profile.shape[1]
    if len(season_weights) == 1 or t < season:
        return
    centre, total = t - season // 2, 0.0
    for i in range(season):
        total += filled[t - i]
    if season % 2 == 0:  # half of each end, so that the window is centred
        total += 0.5 * (filled[t - season] - filled[t])
    phase, deviation = centre % season, filled[centre] - total / season
    for s in range(1, len(season_weights)):
        cycles[s, phase] += 1
        profile[s, phase] += max(season_weights[s], 1.0 / cycles[s, phase]) * (deviation - profile[s, phase])


@numba.njit(cache=True)
def _forecast(forecasts, loss, j, lead, t, level, trend, profile, members, first_weights):
    """The weighted forecast at one lead; keeps those of the members in `forecasts`."""
    seasons, grid, season = level.shape[0], level.shape[1], profile.shape[1]
    least = np.inf
    for s in range(seasons):
        for g in range(grid):
            damping = members[g, 2]
            steps = lead if damping == 1.0 else damping * (1 - damping**lead) / (1 - damping)
            shift = profile[s, (t + lead) % season] if s > 0 else 0.0
            forecasts[t, j, s, g] = level[s, g] + steps * trend[s, g] + shift
            least = min(least, loss[j, s, g] + 0.5 * loss[:, s, g].mean())
    total, mean = 0.0, 0.0
    for s in range(seasons):
        for g in range(grid):
            weight = np.exp(-RATE * (loss[j, s, g] + 0.5 * loss[:, s, g].mean() - least))
            total += weight
            mean += weight * forecasts[t, j, s, g]
            if j == 0:
                first_weights[s, g] = weight + 1e-9
    return mean / total
