"""Filters of grids, against a dense Gaussian field and a loop over pixels."""

import math

import numpy as np
import pytest

from rfa.benchmarks.papers.grid.field import Field, smooth
from rfa.benchmarks.papers.grid.neighbours import Neighbourhood, weighted_mean

FIELDS = [Field(2.0, (0.3, 0.6)), Field(0.5, (0.2, 0.1), (0.9, 0.0)), Field(1.0, (0.4, 0.3), (0.7, 1.1))]


def picture(seed=0, shape=(6, 5)):
    return np.random.default_rng(seed).normal(size=shape)


def dense(field, pixels, noise):
    """Condition the whole field on its pixels: one matrix of all pairs of pixels."""
    places = [(i, j) for i in range(pixels.shape[0]) for j in range(pixels.shape[1])]
    seen = [n for n, place in enumerate(places) if not math.isnan(pixels[place])]

    def axis(k, lag):
        return math.exp(-field.decay[k] * abs(lag)) * math.cos(field.frequency[k] * lag)

    prior = np.array([[field.power * axis(0, i - k) * axis(1, j - m) for k, m in places] for i, j in places])
    measured = prior[np.ix_(seen, seen)] + np.diag([noise[places[n]] for n in seen])
    gain = prior[:, seen] @ np.linalg.inv(measured)
    mean = gain @ np.array([pixels[places[n]] for n in seen])
    variance = np.diag(prior - gain @ prior[seen])
    return mean.reshape(pixels.shape), variance.reshape(pixels.shape)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_the_field_is_that_of_a_dense_solution(field, missing):
    rng = np.random.default_rng(1)
    pixels, noise = picture(), rng.uniform(0.1, 1.0, (6, 5))
    pixels[rng.random(pixels.shape) < missing] = np.nan
    if missing:
        pixels[2] = np.nan  # a whole row, and a corner
        pixels[0, 0] = np.nan
    for found, expected in zip(smooth(field, pixels, noise), dense(field, pixels, noise), strict=True):
        assert np.abs(found - expected).max() <= 1e-12


def test_rows_and_columns_are_alike():
    field, pixels = FIELDS[0], picture()
    turned = field._replace(decay=field.decay[::-1])
    for found, expected in zip(
        smooth(turned, pixels.T, np.array(0.3)), smooth(field, pixels, np.array(0.3)), strict=True
    ):
        assert np.abs(found.T - expected).max() <= 1e-12


def test_error_bars_are_those_of_the_errors():
    """Over draws of the field itself: squared errors over their variances are 1 on average."""
    rng, field, size = np.random.default_rng(2), FIELDS[0], 8
    index = np.arange(size)
    axes = [np.exp(-decay * np.abs(index[:, None] - index)) for decay in field.decay]
    roots = [np.linalg.cholesky(axis) for axis in axes]
    ratios = []
    for _ in range(200):
        truth = math.sqrt(field.power) * roots[0] @ rng.normal(size=(size, size)) @ roots[1].T
        pixels = truth + math.sqrt(0.5) * rng.normal(size=truth.shape)
        pixels[rng.random(pixels.shape) < 0.3] = np.nan
        mean, variance = smooth(field, pixels, np.array(0.5))
        ratios.append(np.mean((mean - truth) ** 2 / variance))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.05)


OPTIONS = Neighbourhood(1.5, (0.2, 0.1), 0.4, gamma2=0.1, radius=2, patch=1)


def loop(pixels, options, present):
    """Every pair of pixels and of their patches."""
    rows, columns = pixels.shape
    level = np.mean(pixels[present])
    mean, spread = np.zeros(pixels.shape), np.zeros(pixels.shape)

    def at(i, j):
        inside = 0 <= i < rows and 0 <= j < columns
        return pixels[i, j] - level if inside and present[i, j] else None

    near = range(-options.radius, options.radius + 1)
    for i, j in np.ndindex(rows, columns):
        weights = []
        for u in near:
            for v in near:
                other = at(i + u, j + v)
                if other is None:
                    continue
                e = math.exp(-options.decay[0] * abs(u) - options.decay[1] * abs(v))
                variance = options.power * (1 - e * e) + options.eta2 * e * e + options.gamma2
                weight = 1 / variance
                if math.isfinite(options.nu):
                    differences = []
                    for p in range(-options.patch, options.patch + 1):
                        for q in range(-options.patch, options.patch + 1):
                            one, two = at(i + p, j + q), at(i + u + p, j + v + q)
                            if one is not None and two is not None:
                                differences.append((e * two - one) ** 2)
                    noise = (1 + e * e) * options.eta2 if (u, v) != (0, 0) else 0.0
                    excess = max(0.0, (sum(differences) / len(differences) if differences else 0.0) - noise)
                    weight *= (1 + excess / (variance * options.nu)) ** -options.kappa
                weights.append((weight, e * other, variance))
        total = sum(w for w, _, _ in weights)
        mean[i, j] = level + sum(w * x for w, x, _ in weights) / total
        spread[i, j] = sum(w * w * s for w, _, s in weights) / total**2
    return mean, spread


@pytest.mark.parametrize("nu", [2.0, math.inf])
def test_the_neighbourhood_is_its_loop(nu):
    pixels = picture(3, (7, 6))
    present = np.random.default_rng(4).random(pixels.shape) < 0.7
    options = Neighbourhood(**{**vars(OPTIONS), "nu": nu})
    for found, expected in zip(weighted_mean(pixels, options, present), loop(pixels, options, present), strict=True):
        assert np.abs(found - expected).max() <= 1e-12
    whole = np.ones(pixels.shape, bool)
    assert np.abs(weighted_mean(pixels, options)[0] - loop(pixels, options, whole)[0]).max() <= 1e-12


def test_without_the_robust_weight_it_is_a_convolution():
    """Pictures add up, around their levels."""
    options = Neighbourhood(**{**vars(OPTIONS), "nu": math.inf})
    one, two = picture(5, (9, 9)), picture(6, (9, 9))
    total = weighted_mean(one + two, options)[0]
    assert np.abs(weighted_mean(one, options)[0] + weighted_mean(two, options)[0] - total).max() <= 1e-12


def test_an_edge_stays_sharp():
    pixels = np.where(np.arange(20) < 10, 0.0, 1.0) * np.ones((20, 1)) + 0.05 * picture(7, (20, 20))
    options = Neighbourhood(0.1, (0.05, 0.05), 0.0025, radius=4, patch=1, nu=1.0)
    step = [
        np.diff(weighted_mean(pixels, o)[0][5:15].mean(0))[9]
        for o in (options, Neighbourhood(**{**vars(options), "nu": math.inf}))
    ]
    assert step[0] > 0.9
    assert step[1] < 0.5
