"""Structural models, their parameters and data for the tests of fitting."""

import numpy as np

from rfa.fitting.maximum_likelihood import (
    Column,
    Limits,
)
from rfa.fitting.scan import SEGMENT
from rfa.fitting.structural_model import (
    Structure,
    matrices,
    raw_bounds,
)

RICH = Structure(has_trend=True, seasons=((24.0, 2), (60.0, 1)), relaxations=1, cycles=1)
DAMPED = Structure(level="damped", relaxations=2)
LIMITS = Limits(harmonics=2, free_modes=1, iterations=60, inner=3)


def random_raw(structure, seed=0):
    """Raw parameters inside the bounds, away from the edges."""
    rng = np.random.default_rng(seed)
    low, high = np.array(raw_bounds(structure)).T
    return low + (high - low) * rng.uniform(0.35, 0.65, len(low))


def system(structure, raw):
    return matrices(structure, raw, step=1.0, center=0.0, spread=1.0)


# Rows of several segments of the gradient, the last not full.
ROWS = 2 * SEGMENT + 16


def irregular(n=ROWS, seed=1):
    """Times, values with gaps."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0, n))
    y = np.cumsum(rng.normal(size=n)) / 3
    y[rng.random(n) < 0.2] = np.nan
    return times, y


def column(y, times=None):
    """A column to train on as a whole, not normalised: center 0 and spread 1."""
    times = np.arange(len(y), dtype=float) if times is None else times
    lags, step = np.unique(np.diff(times, prepend=times[0]), return_inverse=True)
    return Column("y", y, step, lags, len(y), 0.0, 1.0, 1.0)
