"""Novelty of an observation. Calibration and runtime use these functions, which need only NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

# Rate of the running mean of the novelty, and the bound on the contribution of one observation.
NOVELTY_RATE = 0.2
NOVELTY_CAP = 4.0


def wilson_hilferty(nis: Any, count: Any) -> Any:
    """Convert a chi-square statistic to an approximately standard normal value (Wilson and Hilferty, 1931).

    Args:
        nis: Normalised innovation squared.
        count: Number of observed components, which is the number of degrees of freedom.
    """
    size = np.maximum(count, 1)
    return ((np.asarray(nis) / size) ** (1 / 3) - (1 - 2 / (9 * size))) / np.sqrt(2 / (9 * size))


def running_novelty(previous: Any, z: Any) -> Any:
    """Return the running mean of the novelty after an observation: an exponential moving average of bounded values.

    Args:
        previous: Running mean before the observation.
        z: Novelty of the observation.
    """
    bounded = np.clip(z, -NOVELTY_CAP, NOVELTY_CAP)
    return (1 - NOVELTY_RATE) * np.asarray(previous) + NOVELTY_RATE * bounded
