"""Outputs of a compiled filter for one observation, and its predictive density."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit

Array = np.ndarray[Any, Any]
_LOG_TAU = math.log(2 * math.pi)


class Observed(NamedTuple):
    """Outputs of one observation of one stream, for P components and a state of size n.

    Attributes:
        mean, covariance: Estimate in units of the observation, `[P]` and `[P, P]`.
        innovation: Innovation, `[P]`. It is 0 for missing components.
        innovation_covariance: Covariance of the innovation, `[P, P]`.
        transition: Transition matrix from the previous state, for smoothing, `[n, n]`.
        predicted_mean, predicted_covariance: Predicted state, for smoothing, `[n]` and `[n, n]`.
        scalars: Precision, weight, nis and log-likelihood, `[4]`.
    """

    mean: Array
    covariance: Array
    innovation: Array
    innovation_covariance: Array
    transition: Array
    predicted_mean: Array
    predicted_covariance: Array
    scalars: Array


PRECISION, WEIGHT, NIS, LOG_LIKELIHOOD = range(4)


def observed(p: int, n: int) -> Observed:
    """Allocate the outputs for an observation with `p` columns and a state of size `n`."""
    shapes = (p,), (p, p), (p,), (p, p), (n, n), (n,), (n, n), (4,)
    return Observed(*(np.zeros(shape) for shape in shapes))


@inline_jit
def predictive_log_density(nis, log_det, count, outliers):
    """Return the log density of an observation. It includes the outliers of the measurement model. See `dense.py`.

    Args:
        nis: Normalised innovation squared.
        log_det: Log determinant of the innovation covariance.
        count: Number of observed components.
        outliers: Fraction and scale of outliers.
    """
    share, scale = outliers
    base = -0.5 * (nis + log_det + count * _LOG_TAU)
    if share == 0 or count == 0:
        return base
    inlier = base + np.log1p(-share)
    outlier = base + 0.5 * nis * (1 - 1 / (scale * scale)) - count * np.log(scale) + np.log(share)
    return max(inlier, outlier) + np.log1p(np.exp(-abs(inlier - outlier)))
