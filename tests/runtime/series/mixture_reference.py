"""The mixture of forecasts in NumPy, for one regular series of one season at one lead; see `mixture_numba.py`.

It keeps all values, computes seasonal profiles from them at every cell, and shares no code with the compiled mixture.
"""

import itertools

import numpy as np

GRID = [
    (alpha, beta, damping)
    for alpha, beta in itertools.product((0.05, 0.2, 0.5, 0.9), (0.0, 0.05, 0.2))
    for damping in ((1.0,) if beta == 0 else (0.9, 1.0))
]
GAMMAS = (0.0, 0.2, 0.5)
PRIOR = np.array([0.5, 0.2, 0.15, 0.05, 0.05, 0.05, 0.05, 0.05])


def profile(values, season, gamma):
    """The seasonal profile by phase of the cells 1, 2, …, from `values`: averages of the centred deviations."""
    found, cycles = np.zeros(season), np.zeros(season)
    if gamma == 0 or season < 2:
        return np.zeros(max(season, 1))
    half = season // 2
    for end in range(season, len(values)):
        window = values[end - season : end + 1]
        ends = 0.5 * (window[0] + window[-1]) if season % 2 == 0 else window[-1]
        mean = (window[1:-1].sum() + ends) / season
        phase = (end - half + 1) % season
        cycles[phase] += 1
        found[phase] += max(gamma, 1 / cycles[phase]) * (values[end - half] - mean - found[phase])
    return found


def member_states(values, season, gamma):
    """Levels and trends of the grid after all values."""
    level, trend = np.zeros(len(GRID)), np.zeros(len(GRID))
    alpha, beta, damping = np.array(GRID).T
    for t, value in enumerate(values):
        shift = profile(values[:t], season, gamma)[(t + 1) % season] if t else 0.0
        first = 1 / (t + 1)
        rate = np.maximum(alpha, first)
        slope = np.where((beta > 0) & (t > 0), np.maximum(beta, first), 0.0)
        before = level + damping * trend
        error = value - shift - before
        level, trend = before + rate * error, damping * trend + rate * slope * error
    return level, trend


def member_forecasts(values, season, gamma, lead):
    """Forecasts of the grid at a lead after the last value."""
    level, trend = member_states(values, season, gamma)
    reach = np.array([sum(damping**k for k in range(1, lead + 1)) for _, _, damping in GRID])
    shift = profile(values, season, gamma)[(len(values) + lead) % season]
    return level + reach * trend + shift


class Weights:
    """Bernstein online aggregation of experts at one lead."""

    def __init__(self):
        self.regret, self.squares = np.zeros(len(PRIOR)), np.zeros(len(PRIOR))
        self.own, self.error, self.count = np.zeros(len(PRIOR)), 0.0, 0

    def rates(self):
        return np.minimum(0.5, 0.5 * np.sqrt(np.log(1 / PRIOR) / (1 + self.squares)))

    def now(self):
        weights = PRIOR * self.rates() * np.exp(-self.rates() * self.regret)
        weights[1:] *= self.own[1:] > 0
        found = np.minimum(self.own / max(4, np.sqrt(self.count)), 1) * weights / weights.sum()
        found[0] = 1 - found[1:].sum()
        return found

    def score(self, forecasts, mixed, value):
        self.count += 1
        share = max(1 / self.count, 0.01)
        self.error += share * (abs(mixed - value) - self.error)
        is_own = ~np.isnan(forecasts)
        away = np.where(is_own, forecasts - mixed, 0.0)
        losses = np.clip(np.sign(mixed - value) * away / self.error, -10, 10)
        self.regret += losses * (1 + self.rates() * losses)
        self.squares += losses**2
        self.own += is_own
