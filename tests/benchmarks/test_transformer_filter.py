"""The Transformer filter beside filterpy's Kalman filter: the theorem's bound, and what happens without it."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch

from rfa.benchmarks.filters.transformer_model import (
    TransformerFilter,
    sufficient_beta,
)
from tests.model.oracles import filterpy_filter

TURN = 0.97 * np.array([[math.cos(0.4), -math.sin(0.4)], [math.sin(0.4), math.cos(0.4)]])
SYSTEMS = {
    "scalar": (np.array([[0.9]]), np.array([[0.3]]), np.eye(1), np.array([[0.5]])),
    "rotation": (TURN, 0.2 * np.eye(2), np.eye(2), np.array([[1.0, 0.3], [0.3, 0.7]])),
    # Undamped, and its speed is never observed.
    "constant velocity": (
        np.array([[1.0, 1.0], [0.0, 1.0]]),
        np.array([[0.02, 0.01], [0.01, 0.05]]),
        np.array([[1.0, 0.0]]),
        np.array([[2.0]]),
    ),
    "three states, two sensors": (
        np.array([[0.9, 0.2, 0.0], [-0.1, 0.8, 0.3], [0.0, 0.0, 0.95]]),
        np.diag([0.1, 0.2, 0.05]),
        np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]),
        np.diag([0.4, 0.8]),
    ),
}


def stationary(system):
    """Covariance of the prediction in the steady state, and the filter's gain there."""
    a, q, c, r = system
    covariance = scipy.linalg.solve_discrete_are(a.T, c.T, q, r)
    return covariance, covariance @ c.T @ np.linalg.inv(c @ covariance @ c.T + r)


def simulated(system, length=100, seed=0):
    a, q, c, r = system
    rng = np.random.default_rng(seed)
    state, rows = np.zeros(len(a)), []
    for _ in range(length):
        state = a @ state + rng.multivariate_normal(np.zeros(len(a)), q)
        rows.append(c @ state + rng.multivariate_normal(np.zeros(len(c)), r))
    return np.array(rows)


def kalman(system, y):
    """filterpy's filter from its steady state, so that its gain is constant."""
    a, q, c, r = system
    means, _ = filterpy_filter(
        np.arange(len(y)), y, np.ones_like(y, bool), lambda _: (a, q), c, r, stationary(system)[0]
    )
    return means


def filtering(system):
    """M and K of the filter."""
    a, _, c, _ = system
    gain = stationary(system)[1]
    return (np.eye(len(a)) - gain @ c) @ a, gain


def predicting(system):
    """M and K of the predictor, as in the source."""
    a, _, c, _ = system
    gain = a @ stationary(system)[1]
    return a - gain @ c, gain


def largest_distance(matrices, y, expected, *, window, beta):
    model = TransformerFilter(*(torch.from_numpy(x) for x in matrices), window=window, beta=beta)
    found = model(torch.from_numpy(y)[None])[0].numpy()
    return np.linalg.norm(found - expected, axis=1).max()


@pytest.mark.parametrize("epsilon", [0.3, 1e-2, 1e-4])
@pytest.mark.parametrize("window", [2, 9])
@pytest.mark.parametrize("form", ["filter", "predictor"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_theorem_holds(name, form, window, epsilon):
    system = SYSTEMS[name]
    y = simulated(system)
    filtered = kalman(system, y)
    matrices, expected = (
        (filtering(system), filtered) if form == "filter" else (predicting(system), filtered @ system[0].T)
    )
    beta = sufficient_beta(torch.from_numpy(matrices[0]), window=window, epsilon=epsilon)
    assert largest_distance(matrices, y, expected, window=window, beta=beta) <= epsilon
    assert largest_distance(matrices, y, expected, window=window, beta=min(1e-6 * beta, 1.0)) > epsilon


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_window_of_one_is_the_kalman_filter(name):
    system = SYSTEMS[name]
    y = simulated(system)
    assert largest_distance(filtering(system), y, kalman(system, y), window=1, beta=3.0) <= 1e-9


def test_the_sufficient_beta_is_the_formula_of_the_source():
    closed_loop = np.array([[0.5, 0.4], [0.0, -0.6]])
    rates, basis = np.linalg.eig(closed_loop)
    norms = np.linalg.norm(basis, 2) * np.linalg.norm(np.linalg.inv(basis), 2)
    expected = (7 * norms) ** 2 / (2 * math.e * 0.2**2 * (1 - np.abs(rates).max()) ** 2)
    assert sufficient_beta(torch.from_numpy(closed_loop), window=7, epsilon=0.2) == pytest.approx(expected, rel=1e-12)


def test_the_head_is_a_gaussian_kernel_smoother():
    """Against a loop that knows no features and no softmax, at a beta where every key of the window counts."""
    rng = np.random.default_rng(1)
    closed_loop, gain = 0.5 * rng.normal(size=(3, 3)), rng.normal(size=(3, 2))
    y, start = rng.normal(size=(2, 12, 2)), rng.normal(size=(2, 3))
    model = TransformerFilter(torch.from_numpy(closed_loop), torch.from_numpy(gain), window=4, beta=0.7)
    found = model(torch.from_numpy(y), torch.from_numpy(start)).numpy()
    for b in range(2):
        estimate, steps = start[b], []
        for i in range(12):
            steps.append(closed_loop @ estimate + gain @ y[b, i])
            seen = steps[-4:]
            weights = [math.exp(-0.7 * sum((x - z) ** 2 for x, z in zip(step, seen[-1], strict=True))) for step in seen]
            estimate = sum(w * step for w, step in zip(weights, seen, strict=True)) / sum(weights)
            assert np.abs(found[b, i] - estimate).max() <= 1e-12
