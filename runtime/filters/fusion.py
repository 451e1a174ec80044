"""Posteriors of one state from several sensors, made one: by precision, or by intersection where errors may be shared.

    fuse        P⁻¹ = P0⁻¹ + sum_i (Pi⁻¹ - Qi⁻¹)        P⁻¹ m = P0⁻¹ m0 + sum_i (Pi⁻¹ mi - Qi⁻¹ qi)
    intersect   P⁻¹ = sum_i wi Pi⁻¹                     P⁻¹ m = sum_i wi Pi⁻¹ mi,        wi >= 0, sum_i wi = 1

(mi, Pi) is a posterior, (qi, Qi) the prior that it was made from, (m0, P0) what is known without any of them. With one
prior for all of them and two posteriors P⁻¹ = P1⁻¹ + P2⁻¹ - P0⁻¹: each brings its own evidence, the prior counts once.
Without any prior P⁻¹ = P1⁻¹ + P2⁻¹: whatever the posteriors were made from counts once for each of them.

`fuse` is exact (Bayes' rule) where the posteriors' observations are independent given this state: the sensors' errors
are independent, and no process noise came between the observations and the state. So fuse at every observation, with
the predictions as priors, or whenever you like where there is no process noise; filters that ran for a while on their
own share the process noise, and `fuse` would then be too sure. `intersect` (Julier and Uhlmann, American Control
Conference 1997) is never too sure, whatever the posteriors share; its weights make the fused covariance's determinant
least, which does not depend on the units of the state. It gains nothing from agreement, only from one posterior being
sharp where another is blunt.

Units: those of the state. Computed in float64; leading dimensions are a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# A posterior may say so much less than its prior, relative to it: the rounding of covariances in float32.
TOLERANCE = 1e-5
# Of the search for an intersection's weights: heights of its barrier in nats, when a height is done with, and at most.
BARRIERS = 10.0 ** -np.arange(10)
CLOSE, MOST_STEPS = 1e-3, 50


class Gaussian(NamedTuple):
    """mean `[..., n]`, covariance `[..., n, n]`."""

    mean: Array
    covariance: Array


def fuse(
    posteriors: Sequence[Gaussian], prior: Gaussian | None = None, own_priors: Sequence[Gaussian] | None = None
) -> Gaussian:
    """Everything that posteriors of sensors with independent errors say about a state.

    Args:
        posteriors: of the same state, each by its own sensor alone.
        prior: of the state without any of the sensors; None = nothing is known, and the posteriors share nothing.
        own_priors: what each posterior was made from; None = all from `prior`.

    Raises:
        ValueError: a covariance is not positive definite, shapes differ, or a posterior is less certain than the prior
            that it was made from, so that it cannot have been made from it.
    """
    if prior is None:
        if own_priors is not None:
            raise ValueError("own_priors need a prior: what is known without any of the posteriors")
        return _sum(posteriors)
    information, evidence = _information("prior", prior)
    shape = information.shape[-1:]
    for i, (posterior, own) in enumerate(_pairs(posteriors, prior, own_priors)):
        name = f"posteriors[{i}]"
        seen, weighted = _information(name, posterior, shape)
        known, expected = _information("prior" if own_priors is None else f"own_priors[{i}]", own, shape)
        _check_sharper(name, seen, own)
        information = information + (seen - known)
        evidence = evidence + (weighted - expected)
    return _gaussian(information, evidence)


def _sum(posteriors: Sequence[Gaussian]) -> Gaussian:
    information, evidence = _stacked(posteriors)
    return _gaussian(information.sum(0), evidence.sum(0))


def intersection_weights(posteriors: Sequence[Gaussian]) -> list[float]:
    """The weights of `intersect` that make the determinant least.

    Raises:
        ValueError: see there.
    """
    information, _ = _stacked(posteriors)
    if information.ndim != 3:
        raise ValueError(f"mean must be [n], got {list(np.shape(posteriors[0].mean))}")
    shares: list[float] = _least_determinant(information).tolist()
    return shares


def intersect(posteriors: Sequence[Gaussian], weights: Sequence[float] | None = None) -> Gaussian:
    """What posteriors say about a state together when nobody knows which errors they share (covariance intersection).

    Args:
        posteriors: of the same state, `[n]` and `[n, n]` each.
        weights: one per posterior, not negative, of sum 1; None = those of the least determinant.

    Raises:
        ValueError: a covariance is not positive definite, shapes differ, or the weights are not as above.
    """
    found = intersection_weights(posteriors) if weights is None else weights
    information, evidence = _stacked(posteriors)
    shares = _checked(found, len(posteriors))
    return _gaussian(np.tensordot(shares, information, 1), np.tensordot(shares, evidence, 1))


def _stacked(posteriors: Sequence[Gaussian]) -> tuple[Array, Array]:
    """P⁻¹ and P⁻¹ m of each."""
    if not posteriors:
        raise ValueError("posteriors must not be empty")
    shape = np.shape(posteriors[0].mean)[-1:]
    parts = [_information(f"posteriors[{i}]", posterior, shape) for i, posterior in enumerate(posteriors)]
    information, evidence = (np.stack(part) for part in zip(*parts, strict=True))
    return information, evidence


def _pairs(
    posteriors: Sequence[Gaussian], prior: Gaussian, own_priors: Sequence[Gaussian] | None
) -> list[tuple[Gaussian, Gaussian]]:
    owns = [prior] * len(posteriors) if own_priors is None else own_priors
    if len(owns) != len(posteriors):
        raise ValueError(f"own_priors must be one per posterior, got {len(owns)} for {len(posteriors)}")
    return list(zip(posteriors, owns, strict=True))


def _information(name: str, given: Gaussian, shape: tuple[int, ...] | None = None) -> tuple[Array, Array]:
    """P⁻¹ and P⁻¹ m.

    Raises:
        ValueError: naming what is wrong.
    """
    mean, covariance = np.asarray(given.mean, np.float64), np.asarray(given.covariance, np.float64)
    if covariance.shape != (*mean.shape, *mean.shape[-1:]) or (shape is not None and mean.shape[-1:] != shape):
        wanted = "[..., n] and [..., n, n]" if shape is None else f"[..., {shape[0]}] and [..., {shape[0]}, {shape[0]}]"
        raise ValueError(
            f"{name}: mean and covariance must be {wanted}, got {list(mean.shape)} and {list(covariance.shape)}"
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise ValueError(f"{name} must be finite")
    if not np.allclose(covariance, covariance.mT, rtol=TOLERANCE, atol=TOLERANCE * np.abs(covariance).max()):
        raise ValueError(f"{name}.covariance must be symmetric")
    try:
        root = np.linalg.inv(np.linalg.cholesky(covariance))
    except np.linalg.LinAlgError:
        raise ValueError(f"{name}.covariance must be positive definite") from None
    information = root.mT @ root
    return information, (information @ mean[..., None])[..., 0]


def _check_sharper(name: str, information: Array, own: Gaussian) -> None:
    """That a posterior is at least as certain as its prior in every direction: L'P⁻¹L >= 1 for a prior of LL'."""
    root = np.linalg.cholesky(np.asarray(own.covariance, np.float64))
    if np.linalg.eigvalsh(root.mT @ information @ root).min() < 1 - TOLERANCE:
        raise ValueError(
            f"{name} is less certain than the prior that it was made from; are they of the same instant? "
            "`intersect` needs no prior"
        )


def _gaussian(information: Array, evidence: Array) -> Gaussian:
    root = np.linalg.inv(np.linalg.cholesky(information))
    covariance = root.mT @ root
    return Gaussian((covariance @ evidence[..., None])[..., 0], covariance)


def _checked(weights: Sequence[float], count: int) -> Array:
    shares = np.asarray(weights, np.float64)
    if shares.shape != (count,) or not (shares >= 0).all() or not abs(shares.sum() - 1) <= 1e-9:
        raise ValueError(f"weights must be {count} numbers that are not negative and of sum 1")
    return shares


def _least_determinant(information: Array) -> Array:
    """Weights that make log det(sum wi Pi⁻¹) largest: a concave problem, by Newton's steps inside of a log barrier.

    The objective with the barrier, divided by the barrier's height, is self-concordant: steps damped by the decrement
    stay inside and cannot fail to converge (Nesterov and Nemirovski, 1994). What is left of the optimum at the end is
    at most the number of weights times the last height.
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


__all__ = ["Gaussian", "fuse", "intersect", "intersection_weights"]
