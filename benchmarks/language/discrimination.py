"""How well a score tells right from wrong, with errors for items that come in blocks, as the tokens of a text do.

    AUROC = P(s+ > s-) + P(s+ = s-) / 2       s+, s-: scores of a right and of a wrong item  (Mann and Whitney 1947)

An AUROC's error comes from DeLong's placement values (DeLong et al. 1988), summed within blocks (Obuchowski 1997):
items of one block may depend on each other in any way, blocks may not. With one item a block it is DeLong's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

Reals = NDArray[np.float64]
Claims = NDArray[np.bool_]

# Standard errors from the middle of a 95 % interval to its ends.
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Auroc:
    """The value, and what each item moves it by `[n]`; these sum to 0, and to 0 over the right ones, too."""

    value: float
    influence: Reals


def auroc(score: NDArray[Any], is_right: Claims) -> Auroc:
    """AUROC of `score` `[n]`, higher where right.

    Raises:
        ValueError: all items are right, or all wrong.
    """
    right, wrong = int(is_right.sum()), int((~is_right).sum())
    if right == 0 or wrong == 0:
        raise ValueError(f"AUROC needs right and wrong items, got {right} right and {wrong} wrong")
    _, place = np.unique(score, return_inverse=True)
    right_at, wrong_at = np.bincount(place, is_right), np.bincount(place, ~is_right)
    wrong_below = (np.cumsum(wrong_at) - wrong_at / 2) / wrong
    right_above = (right - np.cumsum(right_at) + right_at / 2) / right
    placement = np.where(is_right, wrong_below[place], right_above[place])
    value = float(placement[is_right].mean())
    return Auroc(value, (placement - value) / np.where(is_right, right, wrong))


def with_interval(value: float, influence: Reals, block: NDArray[np.int64]) -> dict[str, Any]:
    """A value with its 95 % interval, from the influence of the items and the block of each."""
    sums = np.bincount(block, influence)
    count = len(sums)
    error = math.sqrt(float((sums**2).sum()) * count / (count - 1))
    return {"value": value, "interval": [value - NORMAL_95 * error, value + NORMAL_95 * error]}


@dataclass(frozen=True)
class Regression:
    """intercept + weights · (features - mean) / deviation: of a logistic one the log odds of being right."""

    mean: Reals
    deviation: Reals
    intercept: float
    weights: Reals

    def __call__(self, features: Reals) -> Reals:
        """Of features `[n, k]`: `[n]`."""
        return self.intercept + ((features - self.mean) / self.deviation) @ self.weights


def fit_logistic(features: Reals, is_right: Claims) -> Regression:
    """The logistic regression of most likelihood, features `[n, k]`."""
    mean, deviation = features.mean(0), features.std(0)
    design = np.column_stack([np.ones(len(features)), (features - mean) / deviation])
    sign = np.where(is_right, 1.0, -1.0)

    def loss(weights: Reals) -> tuple[float, Reals]:
        margin = sign * (design @ weights)
        slope = -(sign * expit(-margin)) @ design / len(design)
        return float(np.logaddexp(0, -margin).mean()), slope

    found = minimize(loss, np.zeros(design.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-7})
    return Regression(mean, deviation, float(found.x[0]), found.x[1:])


def fit_linear(features: Reals, values: Reals) -> Regression:
    """The linear regression of least squares of values `[n]` on features `[n, k]`."""
    mean, deviation = features.mean(0), features.std(0)
    design = np.column_stack([np.ones(len(features)), (features - mean) / deviation])
    found = np.linalg.lstsq(design, values, rcond=None)[0]
    return Regression(mean, deviation, float(found[0]), found[1:])
