"""A constant input of a linear system, as the equilibrium that it holds the system at.

    dx = (A x + u) dt + dw          y = C x + b + e

Where A x* = -u has a solution, z = x - x* is the same system without an input:

    dz = A z dt + dw          y = C z + (b + C x*) + e          z_0 = x_0 - x*

so an input is a bias, as one of the measurement is (docs/MATH.md §3), and every filter of a `LinearFilterConfig` takes
it, exactly. A stable A is invertible: it has an equilibrium for every u. One with an undamped mode has it where u does
not drive that mode; else the mean grows for ever, and u belongs into the state, where it is learned, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rfa.model.linear_config import LinearFilterConfig

# |A x* + u| up to this share of |A| |x*| + |u| is rounding.
TOLERANCE = 1e-9


class Centred(NamedTuple):
    """A system without an input, and what its states are short of those of the system with one, `[n]`."""

    config: LinearFilterConfig
    equilibrium: np.ndarray


def without_input(config: LinearFilterConfig, u: np.ndarray | tuple[float, ...]) -> Centred:
    """The system of `config` with the constant input u `[n]` per unit time, as one without.

    `initial_mean` is that of x; null, the prior is around the equilibrium, the one nearest to zero if there are more.
    The predictions of observations are those with the input; to states the equilibrium must be added.

    Raises:
        ValueError: u has another shape or is not finite, or there is no equilibrium.
    """
    drift, u = np.asarray(config.drift), np.asarray(u, np.float64)
    n = len(drift)
    if u.shape != (n,) or not np.isfinite(u).all():
        raise ValueError(f"input must be {n} finite numbers, one for each state, got {u.tolist()}")
    equilibrium = np.linalg.lstsq(drift, -u, rcond=None)[0]
    left, size = np.linalg.norm(drift @ equilibrium + u), np.linalg.norm(u)
    if left > TOLERANCE * (np.linalg.norm(drift, 2) * np.linalg.norm(equilibrium) + size):
        raise ValueError(
            f"input drives an undamped mode of drift, which has no equilibrium then ({left:.3g} of {size:.3g} is left "
            "over): give the system a state more, whose rate is zero and which drives that mode"
        )
    p = len(config.measurement_noise)
    matrix = np.eye(n) if config.observation is None else np.asarray(config.observation)
    offset = np.zeros(p) if config.offset is None else np.asarray(config.offset)
    mean = config.initial_mean
    centred = replace(
        config,
        offset=tuple((offset + matrix @ equilibrium).tolist()),
        initial_mean=None if mean is None else tuple((np.asarray(mean) - equilibrium).tolist()),
    )
    return Centred(centred, equilibrium)


__all__ = ["Centred", "without_input"]
