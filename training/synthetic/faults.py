"""Add faults to observations: outliers, stuck sensors, missing values and short histories."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import choose, log_uniform

OUTLIERS, STUCK, FLAT, MISSING, SHORT = 0.15, 0.03, 0.01, 0.2, 0.35
HOW_MISSING = {"single": 40, "blocks": 40, "periodic": 20}
# Minimum number of values in a short history.
SHORTEST = 24


def disturb(rng: np.random.Generator, values: np.ndarray) -> None:
    """Add outliers and stuck sensors to `values` `[B, N]`, in place.

    Outliers are single values or runs of up to 12 values. Their number is between one and about a fiftieth of the
    length. They are shifted by 1 to 30 standard deviations. In a third of the series, they are instead replaced by 0,
    or by one number up to 100 standard deviations above the maximum. A stuck sensor repeats a value for up to a quarter
    of the series. Constant series deviate temporarily or not at all.
    """
    count, length = values.shape
    spread = values.std(axis=1)
    for row in np.flatnonzero(rng.random(count) < OUTLIERS):
        number = int(log_uniform(rng, 1, max(2, length / 50), ()))
        at = rng.integers(0, length, number)
        if rng.random() < 0.25:
            long = int(rng.integers(2, 13))
            at = np.unique(np.minimum((at[: 1 + number // long, None] + np.arange(long)).ravel(), length - 1))
        if rng.random() < 1 / 3:
            values[row, at] = rng.choice([0.0, values[row].max() + spread[row] * log_uniform(rng, 1, 100, ())])
        else:
            sign = rng.choice([-1.0, 1.0], at.shape) if rng.random() < 0.5 else rng.choice([-1.0, 1.0, 1.0])
            values[row, at] += sign * spread[row] * log_uniform(rng, 3, 30, ()) * rng.uniform(0.3, 1, at.shape)
    for row in np.flatnonzero(rng.random(count) < STUCK):
        for _ in range(int(rng.integers(1, 4))):
            begin = int(rng.integers(0, length))
            end = begin + int(log_uniform(rng, 4, length / 4, ()))
            values[row, begin:end] = values[row, begin]
    for row in np.flatnonzero(rng.random(count) < FLAT):
        begin = int(rng.integers(0, length))
        end = begin + int(log_uniform(rng, 1, length / 4, ()))
        values[row, :begin] = values[row, begin]
        values[row, end:] = values[row, begin]


def lose(rng: np.random.Generator, values: np.ndarray, clock: Clock) -> None:
    """Replace some of `values` `[B, N]` by NaN, in place.

    In a fifth of the series, single values (0.2 to 30 %), one to five blocks of up to an eighth of the series, or a
    part of every cycle, such as nights and weekends, are missing. In a third of the series, only the last 24 or more
    values are present.
    """
    count, length = values.shape
    rows = np.flatnonzero(rng.random(count) < MISSING)
    kind = choose(rng, HOW_MISSING, len(rows))
    period, share = clock[rows].periods(rng), rng.uniform(0.05, 0.5, len(rows))
    for i, row in enumerate(rows):
        if kind[i] == "single":
            is_lost = rng.random(length) < log_uniform(rng, 0.002, 0.3, ())
        elif kind[i] == "periodic":
            is_lost = (clock.steps[row] / period[i] + rng.random()) % 1 < share[i]
        else:
            is_lost = np.zeros(length, bool)
            for begin in rng.integers(0, length, rng.integers(1, 6)):
                is_lost[begin : begin + int(log_uniform(rng, 2, length / 8, ()))] = True
        values[row, is_lost] = np.nan
    for row in np.flatnonzero(rng.random(count) < SHORT):
        values[row, : rng.integers(0, max(1, length - SHORTEST))] = np.nan
