"""Divide recorded series for training into chronological splits and windows."""

from __future__ import annotations

import numpy as np

from rfa.data import Series
from rfa.model.batch import Batch

# Fractions of training and validation data, in chronological order. The rest is for tests.
SPLIT = (0.6, 0.2)
# Calibration also filters windows of the validation part in attention mode. These are limits on the total cost of all
# windows (states² · rows² each), and on the total memory of a step (states² · rows each).
WINDOW_WORK, WINDOW_NUMBERS = 2e9, 2e7
MIN_WINDOW = 96


def split(series: Series) -> tuple[Series, Series, Series]:
    """Split a series by time. Return the training part, the validation part and the test part."""
    n = len(series.times)
    first, second = int(SPLIT[0] * n), int((SPLIT[0] + SPLIT[1]) * n)
    bounds = (slice(0, first), slice(first, second), slice(second, n))
    train, validation, test = (Series(series.times[b], series.values[b], series.names) for b in bounds)
    return train, validation, test


def windows(series: Series, length: int) -> Batch:
    """Return a batch of windows that overlap by half. A series that is shorter than `length` gives one window."""
    n = len(series.times)
    if n < 2:
        raise ValueError(f"a part (training, validation or test) of the series has {n} rows, but at least 2 are needed")
    length = min(length, n)
    starts = range(0, n - length + 1, max(1, length // 2))
    return Batch(
        np.stack([series.times[s : s + length] for s in starts]),
        np.stack([series.values[s : s + length] for s in starts]),
    )


def calibration_windows(validation: Series, states: int, longest: float) -> Batch:
    """Return windows of the validation part for the calibration. A window covers twice the longest period. The number
    of windows is limited by the cost and the memory of the calibration.

    Args:
        validation: Validation part of a series.
        states: Number of states of the filter.
        longest: Longest period in steps, or 0 without a season.
    """
    rows = len(validation.times)
    length = min(rows, max(MIN_WINDOW, 2 * round(longest)))
    starts = np.arange(0, rows - length + 1, max(1, length // 2))
    affordable = min(WINDOW_WORK / (states**2 * length**2), WINDOW_NUMBERS / (states**2 * length))
    most = max(2, int(affordable))
    if len(starts) > most:
        starts = starts[np.linspace(0, len(starts) - 1, most).round().astype(int)]
    return Batch(
        np.stack([validation.times[s : s + length] for s in starts]),
        np.stack([validation.values[s : s + length] for s in starts]),
    )
