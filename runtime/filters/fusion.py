"""Combine posteriors of one state from several sensors: by precision or, if their errors may be correlated, by
covariance intersection.

    fuse        P⁻¹ = P0⁻¹ + sum_i (Pi⁻¹ - Qi⁻¹)        P⁻¹ m = P0⁻¹ m0 + sum_i (Pi⁻¹ mi - Qi⁻¹ qi)
    intersect   P⁻¹ = sum_i wi Pi⁻¹                     P⁻¹ m = sum_i wi Pi⁻¹ mi,        wi >= 0, sum_i wi = 1

(mi, Pi) is a posterior, (qi, Qi) its prior, and (m0, P0) the prior without any sensor. If two posteriors have the same
prior, P⁻¹ = P1⁻¹ + P2⁻¹ - P0⁻¹, so the prior is included once. If no prior is given, P⁻¹ = P1⁻¹ + P2⁻¹, so the prior of
each posterior is included.

`fuse` is exact (Bayes' rule) if the observations of the posteriors are independent given this state. This requires that
the errors of the sensors are independent, and that no process noise occurs between the observations and the state.
Therefore, fuse at every observation, with the predictions as priors, or at any time if there is no process noise.
Filters that run separately have common process noise, and `fuse` would be overconfident.

`intersect` (Julier and Uhlmann, American Control Conference 1997) is never overconfident. Its weights minimise the
determinant of the fused covariance, regardless of the units of the state. The result is more precise than each
posterior only if they are precise in different directions, not because they agree.

Results are in the units of the state and are computed in float64. Leading dimensions are a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# Relative tolerance when a posterior is compared with its prior, for covariances that were rounded to float32.
TOLERANCE = 1e-5
# Search for the weights of an intersection: heights of the barrier in nats, tolerance, and maximum number of steps per
# height.
BARRIERS = 10.0 ** -np.arange(10)
CLOSE, MOST_STEPS = 1e-3, 50


class Gaussian(NamedTuple):
    """A Gaussian distribution with mean `[..., n]` and covariance `[..., n, n]`."""

    mean: Array
    covariance: Array


def fuse(
    posteriors: Sequence[Gaussian], prior: Gaussian | None = None, own_priors: Sequence[Gaussian] | None = None
) -> Gaussian:
    """Return the posterior given all sensors, whose errors must be independent.

    Args:
        posteriors: Posteriors of the same state, each from one sensor.
        prior: Prior of the state without any of the sensors. If None, the posteriors are multiplied as if they were
            independent, so the prior of each posterior is included.
        own_priors: Prior of each posterior. By default, each is `prior`.

    Raises:
        ValueError: If a covariance is not positive definite, shapes differ, or a posterior is less certain than its
            prior.
    """
    if prior is None:
        if own_priors is not None:
            raise ValueError("own_priors requires prior; pass both, or neither")
        return _sum(posteriors)
    information, evidence = _information("prior", prior)
    shape = information.shape[-1:]
    for i, (posterior, own) in enumerate(_pairs(posteriors, prior, own_priors)):
        name = f"posteriors[{i}]"
        seen, weighted = _information(name, posterior, shape)
        prior_information, expected = _information("prior" if own_priors is None else f"own_priors[{i}]", own, shape)
        _check_sharper(name, seen, own)
        information = information + (seen - prior_information)
        evidence = evidence + (weighted - expected)
    return _gaussian(information, evidence)


def _sum(posteriors: Sequence[Gaussian]) -> Gaussian:
    information, evidence = _stacked(posteriors)
    return _gaussian(information.sum(0), evidence.sum(0))


def intersection_weights(posteriors: Sequence[Gaussian]) -> list[float]:
    """Return the weights for `intersect` that minimise the determinant of the fused covariance.

    Raises:
        ValueError: If a covariance is not positive definite, or shapes differ.
    """
    information, _ = _stacked(posteriors)
    if information.ndim != 3:
        raise ValueError(f"mean must be [n], got {list(np.shape(posteriors[0].mean))}")
    shares: list[float] = _least_determinant(information).tolist()
    return shares


def intersect(posteriors: Sequence[Gaussian], weights: Sequence[float] | None = None) -> Gaussian:
    """Return the posterior that combines posteriors whose errors may be correlated, by covariance intersection.

    Args:
        posteriors: Posteriors of the same state, with mean `[n]` and covariance `[n, n]` each.
        weights: One weight per posterior, non-negative, with sum 1. By default, those of `intersection_weights`.

    Raises:
        ValueError: If a covariance is not positive definite, shapes differ, or the weights are invalid.
    """
    found = intersection_weights(posteriors) if weights is None else weights
    information, evidence = _stacked(posteriors)
    shares = _checked(found, len(posteriors))
    return _gaussian(np.tensordot(shares, information, 1), np.tensordot(shares, evidence, 1))


def _stacked(posteriors: Sequence[Gaussian]) -> tuple[Array, Array]:
    """Return P⁻¹ and P⁻¹ m of each posterior."""
    if not posteriors:
        raise ValueError("posteriors must not be empty; pass at least one posterior")
    shape = np.shape(posteriors[0].mean)[-1:]
    parts = [_information(f"posteriors[{i}]", posterior, shape) for i, posterior in enumerate(posteriors)]
    information, evidence = (np.stack(part) for part in zip(*parts, strict=True))
    return information, evidence


def _pairs(
    posteriors: Sequence[Gaussian], prior: Gaussian, own_priors: Sequence[Gaussian] | None
) -> list[tuple[Gaussian, Gaussian]]:
    owns = [prior] * len(posteriors) if own_priors is None else own_priors
    if len(owns) != len(posteriors):
        raise ValueError(f"own_priors must contain one prior per posterior, got {len(owns)} for {len(posteriors)}")
    return list(zip(posteriors, owns, strict=True))


def _information(name: str, given: Gaussian, shape: tuple[int, ...] | None = None) -> tuple[Array, Array]:
    """Return P⁻¹ and P⁻¹ m."""
    mean, covariance = np.asarray(given.mean, np.float64), np.asarray(given.covariance, np.float64)
    if covariance.shape != (*mean.shape, *mean.shape[-1:]) or (shape is not None and mean.shape[-1:] != shape):
        n = "n" if shape is None else shape[0]
        raise ValueError(
            f"{name}: mean and covariance must be [..., {n}] and [..., {n}, {n}], "
            f"got {list(mean.shape)} and {list(covariance.shape)}"
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise ValueError(f"{name}: mean and covariance must be finite")
    if not np.allclose(covariance, covariance.mT, rtol=TOLERANCE, atol=TOLERANCE * np.abs(covariance).max()):
        raise ValueError(f"{name}.covariance must be symmetric")
    try:
        root = np.linalg.inv(np.linalg.cholesky(covariance))
    except np.linalg.LinAlgError:
        raise ValueError(f"{name}.covariance must be positive definite") from None
    information = root.mT @ root
    return information, (information @ mean[..., None])[..., 0]


def _check_sharper(name: str, information: Array, own: Gaussian) -> None:
    """Check that a posterior is at least as certain as its prior in every direction: LᵀP⁻¹L >= 1 for a prior LLᵀ."""
    root = np.linalg.cholesky(np.asarray(own.covariance, np.float64))
    if np.linalg.eigvalsh(root.mT @ information @ root).min() < 1 - TOLERANCE:
        raise ValueError(
            f"{name} is less certain than its prior; check that both are for the same time. `intersect` does not need "
            "a prior"
        )


def _gaussian(information: Array, evidence: Array) -> Gaussian:
    root = np.linalg.inv(np.linalg.cholesky(information))
    covariance = root.mT @ root
    return Gaussian((covariance @ evidence[..., None])[..., 0], covariance)


def _checked(weights: Sequence[float], count: int) -> Array:
    shares = np.asarray(weights, np.float64)
    if shares.shape != (count,) or not (shares >= 0).all() or not abs(shares.sum() - 1) <= 1e-9:
        raise ValueError(f"weights must be {count} non-negative numbers that sum to 1, got {shares.tolist()}")
    return shares


def _least_determinant(information: Array) -> Array:
    """Return the weights that maximise log det(sum wi Pi⁻¹). This concave problem is solved by Newton's method with a
    log barrier.

    The objective with the barrier, divided by its height, is self-concordant. Steps that are damped by the decrement
    therefore stay inside and converge (Nesterov and Nemirovski, 1994). The final gap is at most the number of weights
    times the last height.
    """
    count = len(information)
    shares = np.full(count, 1 / count)
    for height in BARRIERS:
        for _ in range(MOST_STEPS):
            mixed = np.linalg.inv(np.tensordot(shares, information, 1)) @ information
            slope = np.trace(mixed, axis1=1, axis2=2) + height / shares
            curvature = np.einsum("iab,jba->ij", mixed, mixed) + np.diag(height / shares**2)
            free, held = np.linalg.solve(curvature, np.stack([slope, np.ones(count)], axis=1)).T
            step = free - held * (free.sum() / held.sum())
            decrement = np.sqrt(max(float(slope @ step), 0.0) / height)
            shares = shares + step / (1 + decrement)
            if decrement < CLOSE:
                break
    return np.asarray(shares / shares.sum())
