"""The paper's 2-D filter: a precision-weighted mean over a neighbourhood, robust by the likeness of patches.

Source: Racioppo, Attention as an Adaptive Filter, B.6, with the Student-t weight of RFA §3. A pixel at the offset
(u, v), carried to the centre by e^{-a|u| - b|v|}, has the variance

    V(u, v) = power (1 - E²) + eta2 E² + gamma2,     E = e^{-a|u| - b|v|}
    L = log P - kappa log(1 + P R²/nu),  P = 1 / V,  R² the mean squared difference of the patches around both pixels
    mean = Σ softmax(L) E x + (1 - Σ softmax(L) E) level

The paper multiplies what accumulates along both axes, so that pixels of one row accumulate nothing; this is the
variance of the field of `field.py`. With nu = inf the weights are fixed: a convolution. The mean of R² under noise
alone, (1 + E²) eta2, is subtracted, as in non-local means. `level` is the mean of the picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Neighbourhood:
    """Sizes in pixels: offsets up to `radius`, patches up to `patch` around a pixel; nu degrees of freedom.

    Attributes:
        power, decay: Of the field: variance of a pixel around `level`, decay (down the rows, along a row).
        eta2, gamma2: Measurement noise of a pixel; of the centre's patch.
    """

    power: float
    decay: tuple[float, float]
    eta2: float
    gamma2: float = 0.0
    nu: float = 4.0
    kappa: float = 2.0
    radius: int = 7
    patch: int = 2


def weighted_mean(
    pixels: np.ndarray, options: Neighbourhood, present: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances `[M, N]` of a picture; pixels that are not `present` are not read.

    The variance is that of the weighted mean of independent pixels, Σ w² V: pixels of a field are not independent.
    """
    mask = np.ones(pixels.shape) if present is None else present.astype(float)
    level = float(np.sum(pixels * mask) / mask.sum())
    centred = np.where(mask > 0, pixels - level, 0.0)
    total, mean, spread = (np.zeros(pixels.shape) for _ in range(3))
    reach = options.radius
    for u in range(-reach, reach + 1):
        for v in range(-reach, reach + 1):
            kept = float(np.exp(-options.decay[0] * abs(u) - options.decay[1] * abs(v)))
            variance = options.power * (1 - kept**2) + options.eta2 * kept**2 + options.gamma2
            other, there = _shifted(centred, u, v), _shifted(mask, u, v)
            weight = there / variance
            if np.isfinite(options.nu):
                both = mask * there
                difference2 = _box(both * (kept * other - centred) ** 2, options.patch)
                count = _box(both, options.patch)
                excess = difference2 / np.maximum(count, 1.0) - (1 + kept**2) * options.eta2 * ((u, v) != (0, 0))
                weight = weight * (1 + np.maximum(excess, 0.0) / (variance * options.nu)) ** -options.kappa
            total += weight
            mean += weight * kept * other
            spread += weight**2 * variance
    total = np.maximum(total, 1e-300)
    return level + mean / total, spread / total**2


def _shifted(x: np.ndarray, u: int, v: int) -> np.ndarray:
    """Return x at the offset (u, v) of each pixel; 0 outside."""
    rows, columns = x.shape
    found = np.zeros_like(x)
    to = np.s_[max(0, -u) : rows - max(0, u), max(0, -v) : columns - max(0, v)]
    found[to] = x[max(0, u) : rows - max(0, -u), max(0, v) : columns - max(0, -v)]
    return found


def _box(x: np.ndarray, reach: int) -> np.ndarray:
    """Sum over squares of 2 reach + 1 pixels."""
    for axis in (0, 1):
        padding = [(0, 0), (0, 0)]
        padding[axis] = (reach + 1, reach)
        sums = np.cumsum(np.pad(x, padding), axis=axis)
        width = 2 * reach + 1
        x = np.take(sums, range(width, sums.shape[axis]), axis) - np.take(sums, range(sums.shape[axis] - width), axis)
    return x
