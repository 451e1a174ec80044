"""Denoising and inpainting of scikit-image's pictures by the filters of grids and by scikit-image's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rfa.benchmarks.papers.grid.field import Field, axis_correlation, smooth
from rfa.benchmarks.papers.grid.neighbours import Neighbourhood, weighted_mean

SIZE, NOISE, MISSING = 128, 0.1, 0.5
# Parameters are chosen by the first picture and scored on the others.
TUNED_ON, PICTURES = "coins", ("camera", "astronaut", "chelsea", "moon", "coffee")
Z90 = 1.6449


class Case(NamedTuple):
    """A picture `[M, N]`, its measurement with NaN where missing, and the field that is fitted to the measurement."""

    truth: np.ndarray
    pixels: np.ndarray
    field: Field
    level: float


class Estimate(NamedTuple):
    """Means, and standard deviations if the method has them."""

    mean: np.ndarray
    deviation: np.ndarray | None = None


def shipped(name: str) -> np.ndarray:
    """Return a picture of scikit-image in grey, reduced to SIZE², from 0 to 1."""
    from skimage import color, data, transform, util

    picture = util.img_as_float(getattr(data, name)())
    grey = color.rgb2gray(picture) if picture.ndim == 3 else picture
    side = min(grey.shape)
    reduced: np.ndarray = transform.resize(grey[:side, :side], (SIZE, SIZE), anti_aliasing=True)
    return reduced


def drawn(field: Field, rng: np.random.Generator) -> np.ndarray:
    """Draw a sample of a field with mean 0.5. The filter of the field is optimal for it."""
    index = np.arange(SIZE)
    roots = [
        np.linalg.cholesky(axis_correlation(field, axis, index[:, None] - index) + 1e-9 * np.eye(SIZE))
        for axis in (0, 1)
    ]
    sample: np.ndarray = 0.5 + math.sqrt(field.power) * roots[0] @ rng.normal(size=(SIZE, SIZE)) @ roots[1].T
    return sample


def fitted(pixels: np.ndarray) -> tuple[Field, float]:
    """Return the field whose variance and correlation of neighbours are those of noisy pixels, and their mean."""
    level = float(np.nanmean(pixels))
    centred = pixels - level
    power = float(np.nanmean(centred**2)) - NOISE**2
    pairs = (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1])
    shares = [min(max(float(np.nanmean(pair)) / power, 0.01), 0.999) for pair in pairs]
    return Field(power, (-math.log(shares[0]), -math.log(shares[1]))), level


def measured(truth: np.ndarray, rng: np.random.Generator, missing: float) -> Case:
    """Return a noisy picture without a fraction of its pixels."""
    pixels = truth + NOISE * rng.normal(size=truth.shape)
    pixels[rng.random(truth.shape) < missing] = np.nan
    return Case(truth, pixels, *fitted(pixels))


def exact(case: Case, _: float = 0.0) -> Estimate:
    mean, variance = smooth(case.field, case.pixels - case.level, np.array(NOISE**2))
    return Estimate(mean + case.level, np.sqrt(variance))


def neighbourhood(case: Case, nu: float) -> Estimate:
    options = Neighbourhood(case.field.power, case.field.decay, NOISE**2, nu=math.inf)
    if math.isfinite(nu):  # patches tell like from unlike: distance matters less
        options = replace(options, nu=nu, decay=(0.0, 0.0), gamma2=NOISE**2)
    present = np.isfinite(case.pixels)
    mean, variance = weighted_mean(np.where(present, case.pixels, 0.0), options, present)
    return Estimate(mean, np.sqrt(variance))


def filled(case: Case) -> np.ndarray:
    """Return the pixels, missing ones by scikit-image's biharmonic inpainting."""
    from skimage.restoration import inpaint_biharmonic

    missing = np.isnan(case.pixels)
    found: np.ndarray = (
        inpaint_biharmonic(np.where(missing, 0.0, case.pixels), missing) if missing.any() else case.pixels
    )
    return found


def total_variation(case: Case, weight: float) -> Estimate:
    from skimage.restoration import denoise_tv_chambolle

    return Estimate(denoise_tv_chambolle(filled(case), weight=weight))


def non_local_means(case: Case, share: float) -> Estimate:
    from skimage.restoration import denoise_nl_means

    options: dict[str, Any] = {"patch_size": 5, "patch_distance": 7, "fast_mode": True}
    return Estimate(denoise_nl_means(filled(case), h=share * NOISE, sigma=NOISE, **options))


# name → (method, values of its parameter of which one is chosen)
METHODS: dict[str, tuple[Callable[[Case, float], Estimate], tuple[float, ...]]] = {
    "measured": (lambda case, _: Estimate(filled(case)), (0.0,)),
    "field": (exact, (0.0,)),
    "neighbourhood": (neighbourhood, (math.inf,)),
    "robust neighbourhood": (neighbourhood, (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)),
    "total variation": (total_variation, (0.05, 0.08, 0.12, 0.17, 0.25)),
    "non-local means": (non_local_means, (0.4, 0.6, 0.8, 1.0, 1.3)),
}


def decibels(case: Case, found: Estimate) -> float:
    """Return the peak signal-to-noise ratio of a picture from 0 to 1."""
    return float(-10 * np.log10(np.mean((found.mean - case.truth) ** 2)))


def coverage(case: Case, found: Estimate) -> float | None:
    """Return the fraction of pixels within the 90 % intervals, or None without deviations."""
    if found.deviation is None:
        return None
    return float(np.mean(np.abs(found.mean - case.truth) <= Z90 * found.deviation))
