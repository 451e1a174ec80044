"""Smoothing, fixed lag and drawn paths of every kind of linear system against conditioning of the joint Gaussian."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import scipy.linalg
import torch

from rfa.model.linear_filter import LinearFilter
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.uncertainty import smoothing
from rfa.runtime.uncertainty.smoothing import Traces, draw_paths, fixed_lag, smooth
from tests.model.joint_gaussian import System, path_posterior
from tests.model.oracles import float64_filter

COUNT = 14
VELOCITY = np.array([[0.0, 1.0], [0.0, 0.0]])


def semidefinite(n: int, seed: int, rank: int | None = None) -> np.ndarray:
    factor = np.random.default_rng(seed).normal(size=(n, rank or n))
    return factor @ factor.T


# Dense Q and R throughout, observations of fewer components than states, biases and means that are not zero.
SYSTEMS = {
    "dense, diagonalisable": System(
        np.array([[0.9, -2.0], [1.0, -1.1]]), semidefinite(2, 1), np.eye(2), np.array([3.0, -1.0]),
        np.array([[0.5, 0.1], [0.1, 0.7]]), np.array([1.0, 2.0]), np.array([[4.0, 0.5], [0.5, 3.0]]),
    ),
    "constant velocity in a plane": System(
        np.kron(VELOCITY, np.eye(2)), scipy.linalg.block_diag(np.zeros((2, 2)), semidefinite(2, 2)),
        np.array([[1.0, 0.0, 0.0, 0.0], [0.3, 1.0, 0.0, 0.0]]), np.array([-2.0, 0.5]),
        np.array([[0.5, 0.1], [0.1, 0.7]]), np.array([1.0, -1.0, 0.5, 0.2]), np.diag([4.0, 4.0, 2.0, 2.0]),
    ),
    "damped chain and a decay, one sensor": System(
        scipy.linalg.block_diag([[-0.7, 1.0], [0.0, -0.7]], [[-2.0]]), semidefinite(3, 3), np.array([[1.0, 0.4, -0.6]]),
        np.array([10.0]), np.array([[0.3]]), np.array([0.5, 0.0, -0.5]), semidefinite(3, 4) + np.eye(3),
    ),
    "no process noise": System(
        np.kron(VELOCITY, np.eye(1)), np.zeros((2, 2)), np.array([[1.0, 0.0]]), np.array([0.0]), np.array([[0.4]]),
        np.array([0.0, 1.0]), np.diag([9.0, 1.0]),
    ),
}  # fmt: skip


def build(system: System, **changes) -> LinearFilter:
    values = {
        "drift": system.drift, "process_noise": system.process_noise, "observation": system.sensor,
        "offset": system.offset, "measurement_noise": system.noise, "initial_mean": system.initial_mean,
        "initial_covariance": system.initial_covariance,
    }  # fmt: skip
    lists = {name: value.tolist() for name, value in values.items()}
    return float64_filter(LinearFilterConfig.from_dict({**lists, "nu": None, **changes}))


def make_data(system: System, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Irregular times with a long gap and two at once; missing components, nothing seen once; noise factors."""
    rng = np.random.default_rng(seed)
    lags = rng.exponential(0.3, COUNT)
    lags[COUNT // 2], lags[3] = 6.0, 0.0
    y = system.offset + rng.normal(size=(COUNT, len(system.noise))).cumsum(0)
    seen = rng.random(y.shape) > 0.3
    seen[COUNT // 3] = False
    return np.cumsum(lags), y, seen, np.where(rng.random(COUNT) < 0.6, 1.0, rng.uniform(0.3, 3.0, COUNT))


def traces_of(model: LinearFilter, times, y, seen, scale) -> tuple[Traces, np.ndarray]:
    """What the filter leaves behind, and the weights of its observations."""
    output, _ = model(*(torch.from_numpy(x)[None] for x in (y, seen * 1.0, times, scale)))
    fields = (output.transition, output.predicted_mean, output.predicted_covariance,
              output.state_mean, output.state_covariance)  # fmt: skip
    return Traces(*(field[0].numpy() for field in fields)), output.weight[0].numpy()


def blocks(mean: np.ndarray, covariance: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Per step."""
    count = len(mean) // n
    parts = covariance.reshape(count, n, count, n)
    return mean.reshape(count, n), np.stack([parts[i, :, i] for i in range(count)])


def smoothed(traces: Traces) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances of all steps, in order."""
    means, covariances = zip(*list(smooth(traces))[::-1], strict=True)
    return np.concatenate(means), np.concatenate(covariances)


@pytest.fixture(params=[1, 5, 128], autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps are taken at a time."""
    monkeypatch.setattr(smoothing, "BLOCK", request.param)


# The joint covariances have a condition of about 1e5 here: conditioning keeps 1e-11 of entries, which are below 100.
CLOSE = 1e-8


@pytest.mark.parametrize("name", SYSTEMS)
def test_smoothed_states_are_the_posterior_of_the_path(name: str) -> None:
    system = SYSTEMS[name]
    times, y, seen, scale = make_data(system)
    traces, _ = traces_of(build(system), times, y, seen, scale)
    means, covariances = blocks(*path_posterior(system, times, y, seen, scale**2), len(system.drift))
    found = smoothed(traces)
    assert np.abs(found[0] - means).max() <= CLOSE
    assert np.abs(found[1] - covariances).max() <= CLOSE


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_robust_filter_is_smoothed_with_the_trust_that_it_had(name: str) -> None:
    system = SYSTEMS[name]
    times, y, seen, scale = make_data(system)
    y[5], seen[5] = system.offset + 200.0, True
    traces, weights = traces_of(build(system, nu=4.0, reacquire=None), times, y, seen, scale)
    assert weights[5] < 0.1
    means, covariances = blocks(*path_posterior(system, times, y, seen, scale**2 / weights), len(system.drift))
    found = smoothed(traces)
    assert np.abs(found[0] - means).max() <= CLOSE
    assert np.abs(found[1] - covariances).max() <= CLOSE


@pytest.mark.parametrize("name", SYSTEMS)
def test_drawn_paths_have_the_law_of_the_posterior(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without chance: a path is affine in its normal numbers, so one path per unit vector of them gives the matrix that
    multiplies them, and its square is the covariance of the whole path, neighbours with neighbours."""
    system = SYSTEMS[name]
    n = len(system.drift)
    times, y, seen, scale = make_data(system)
    traces, _ = traces_of(build(system), times, y, seen, scale)
    first, size = 40, COUNT * n

    def draw(
        means: np.ndarray, covariances: np.ndarray, samples: int, seeds: Sequence[int], indices: Sequence[int]
    ) -> np.ndarray:
        assert samples == size and set(seeds) == {7}
        normal = np.zeros((len(means), size, n))
        for row, index in enumerate(indices):
            place = (index - first) * n
            normal[row, place : place + n] = np.eye(n)
        values, vectors = np.linalg.eigh((covariances + covariances.swapaxes(1, 2)) / 2)
        assert values.min() >= -CLOSE
        weights = normal * np.sqrt(np.maximum(values, 0.0))[:, None]
        return means[:, None] + weights @ vectors.swapaxes(1, 2)

    monkeypatch.setattr(smoothing, "draw", draw)
    mean, covariance = path_posterior(system, times, y, seen, scale**2)
    for spread in (1.0, 1.5):
        paths = np.concatenate(list(draw_paths(traces, spread, size, 7, first))[::-1])
        paths = paths.swapaxes(0, 1).reshape(size, size)
        weights = (paths - mean) / spread
        # Square roots of variances that are zero to rounding are not: sqrt(1e-16) of each.
        assert np.abs(weights.T @ weights - covariance).max() <= CLOSE


@pytest.mark.parametrize("lag", [0, 1, 5, COUNT - 1, COUNT + 3])
@pytest.mark.parametrize("name", ["dense, diagonalisable", "constant velocity in a plane"])
def test_a_fixed_lag_is_the_posterior_given_so_many_later_observations(name: str, lag: int) -> None:
    system = SYSTEMS[name]
    times, y, seen, scale = make_data(system)
    traces, _ = traces_of(build(system), times, y, seen, scale)
    found = [np.concatenate(column) for column in zip(*fixed_lag(traces, lag), strict=True)]
    assert len(found[0]) == len(found[1]) == COUNT
    for i, (mean, covariance) in enumerate(zip(*found, strict=True)):
        prefix = slice(0, i + lag + 1)
        last_means, last_covariances = smoothed(traces.part(i, i + lag + 1))
        assert np.array_equal(mean, last_means[0]) and np.array_equal(covariance, last_covariances[0])
        means, covariances = blocks(
            *path_posterior(system, times[prefix], y[prefix], seen[prefix], scale[prefix] ** 2), len(system.drift)
        )
        assert np.abs(mean - means[i]).max() <= CLOSE
        assert np.abs(covariance - covariances[i]).max() <= CLOSE
