"""Simulated measurements: oscillators with outliers, gaps and missing components, rounded like the readings of a
sensor.
"""

from __future__ import annotations

import numpy as np

from rfa.training.simulate import Disturbance, simulate_oscillator

Row = list[float | None] | None

# Sums of binary fractions are exact: the start time of a stream changes no lag.
STEP = 0.125
ORIGIN_SPACING = 1024.0
DECIMALS = 4
OUTLIERS = 0.03
MISSING_ROWS = 0.03
MISSING_COMPONENTS = 0.03


def make_series(count: int, length: int, size: int, seed: int = 0) -> list[list[Row]]:
    """Return `count` series of `length` observations with `size` components. None is a missing component or row."""
    pairs = -(-size // 2)
    batch = simulate_oscillator(
        count * pairs, length, disturbance=Disturbance(outliers=OUTLIERS, missing=MISSING_ROWS), seed=seed
    )
    values = batch.observations.reshape(count, pairs, length, 2).swapaxes(1, 2).reshape(count, length, 2 * pairs)
    values = np.round(values[..., :size], DECIMALS)
    values[np.random.default_rng(seed + 1).random(values.shape) < MISSING_COMPONENTS] = np.nan
    return [[_row(observation) for observation in one] for one in values]


def _row(observation: np.ndarray) -> Row:
    if np.isnan(observation).all():
        return None
    return [None if np.isnan(value) else float(value) for value in observation]
