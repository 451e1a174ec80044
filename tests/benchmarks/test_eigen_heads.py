"""Systems taken apart into isotropic heads: the Kalman filter of the whole, or a refusal with its reason."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from rfa.benchmarks.papers.theory.eigen_heads import EigenHeads
from rfa.model.linear_filter import LinearFilter
from rfa.model.recurrence.irkf import irkf_scan
from rfa.runtime.filters.linear_config import LinearFilterConfig
from tests.model.joint_gaussian import van_loan
from tests.model.oracles import filterpy_filter

TURNS = scipy.linalg.block_diag([[-0.2, -1.3], [1.3, -0.2]], [[-0.5, -4.0], [4.0, -0.5]], [[-0.7]])
CHANGE = np.random.default_rng(0).normal(size=(5, 5)) + 2 * np.eye(5)
SENSOR = np.random.default_rng(1).normal(size=(5, 5)) + 2 * np.eye(5)


def isotropic(*variances: float) -> np.ndarray:
    """Of the two pairs and the real mode, in coordinates in which they lie side by side."""
    return np.diag(np.repeat(variances, (2, 2, 1)))


def system(**changes) -> dict:
    """Five states in coordinates in which nothing is orthogonal, seen through a dense matrix."""
    values = {
        "drift": CHANGE @ TURNS @ np.linalg.inv(CHANGE),
        "process_noise": CHANGE @ isotropic(0.3, 0.1, 0.5) @ CHANGE.T,
        "observation": SENSOR,
        "measurement_noise": (SENSOR @ CHANGE) @ isotropic(0.4, 0.9, 0.2) @ (SENSOR @ CHANGE).T,
        "initial_covariance": CHANGE @ isotropic(2.0, 3.0, 1.0) @ CHANGE.T,
        "initial_mean": np.array([1.0, -1.0, 0.5, 0.0, 2.0]),
        "offset": np.array([3.0, 0.0, -2.0, 1.0, 0.0]),
        "nu": None,
        **changes,
    }
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def make_data(count: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    seen = rng.random(count) > 0.2
    return np.cumsum(rng.exponential(0.3, count)), rng.normal(size=(count, 5)).cumsum(0), seen


def run(heads: EigenHeads, times, y, seen, **options):
    clock = torch.from_numpy(times)[None]
    means, precisions, _ = irkf_scan(
        heads.encode(torch.from_numpy(y))[None], heads.dynamics, times=clock, mask=torch.from_numpy(seen)[None],
        state=heads.start(clock[:, 0]), **options,
    )  # fmt: skip
    mean, covariance = heads.decode(means, precisions)
    return mean[0].numpy(), covariance[0].numpy()


def test_the_heads_are_the_kalman_filter_of_the_system() -> None:
    values = system()
    heads = EigenHeads(LinearFilterConfig.from_dict(values))
    assert heads.dynamics.n_heads == 3
    times, y, seen = make_data()
    found, covariance = run(heads, times, y, seen)
    # filterpy's filter starts at zero: it is given the deviation from the mean path, which is added again.
    drift = np.array(values["drift"])
    path = np.stack([scipy.linalg.expm(drift * (t - times[0])) @ np.array(values["initial_mean"]) for t in times])
    rest = y - np.array(values["offset"]) - path @ SENSOR.T
    noise = np.array(values["process_noise"])
    means, covariances = filterpy_filter(
        times, rest, np.repeat(seen[:, None], 5, axis=1), lambda lag: van_loan(drift, noise, lag), SENSOR,
        values["measurement_noise"], values["initial_covariance"],
    )  # fmt: skip
    assert np.abs(found - path - means).max() <= 1e-8
    assert np.abs(covariance - covariances).max() <= 1e-8


def test_without_a_prior_it_starts_at_the_stationary_covariance() -> None:
    values = system(initial_covariance=None, initial_mean=None)
    heads = EigenHeads(LinearFilterConfig.from_dict(values))
    times, y, seen = make_data(3)
    _, covariance = run(heads, times, y, np.zeros_like(seen))
    stationary = scipy.linalg.solve_continuous_lyapunov(np.array(values["drift"]), -np.array(values["process_noise"]))
    assert np.abs(covariance - stationary).max() <= 1e-9


def test_one_robust_pair_weighs_as_the_dense_filter_does() -> None:
    """With one head there is one weight; nu counts real components in both."""
    turn = CHANGE[:2, :2] @ TURNS[:2, :2] @ np.linalg.inv(CHANGE[:2, :2])
    shape = CHANGE[:2, :2] @ CHANGE[:2, :2].T
    values = {
        "drift": turn.tolist(), "process_noise": (0.3 * shape).tolist(), "measurement_noise": (0.5 * shape).tolist(),
        "initial_covariance": (2 * shape).tolist(), "nu": 6.0, "inner": 3, "reacquire": None,
    }  # fmt: skip
    torch.set_default_dtype(torch.float64)
    try:
        dense = LinearFilter(LinearFilterConfig.from_dict(values))
    finally:
        torch.set_default_dtype(torch.float32)
    times, y, seen = make_data()
    y = y[:, :2].copy()
    y[20] += 50.0
    output, _ = dense(
        torch.from_numpy(y)[None], torch.from_numpy(np.repeat(seen[:, None], 2, 1) * 1.0)[None],
        torch.from_numpy(times)[None],
    )  # fmt: skip
    assert float(output.weight.min()) < 0.1
    found, covariance = run(EigenHeads(LinearFilterConfig.from_dict(values)), times, y, seen, inner=3)
    assert np.abs(found - output.state_mean[0].numpy()).max() <= 1e-8
    assert np.abs(covariance - output.state_covariance[0].numpy()).max() <= 1e-8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"process_noise": 0.3 * np.eye(5)}, "process_noise correlates"),
        ({"measurement_noise": np.eye(5)}, "measurement_noise correlates"),
        ({"initial_covariance": np.eye(5)}, "initial_covariance correlates"),
        ({"observation": SENSOR[:3], "measurement_noise": np.eye(3), "offset": None}, "observation must be"),
        ({"observation": np.ones((5, 5))}, "observation must be"),
        ({"drift": np.diag([1.0] * 4, 1) - np.eye(5), "initial_covariance": None}, "no eigenbasis"),
        # A pair whose noise is an ellipse: independent of the other modes, and not circular.
        ({"process_noise": CHANGE @ np.diag([0.3, 0.31, 0.1, 0.1, 0.5]) @ CHANGE.T}, "0.0164 in the eigenbasis"),
    ],
)
def test_what_is_no_set_of_isotropic_modes_is_refused_with_the_reason(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        EigenHeads(LinearFilterConfig.from_dict(system(**changes)))


def test_noise_that_differs_by_less_than_the_tolerance_is_taken() -> None:
    for size, is_taken in ((1e-8, True), (1e-4, False)):
        bent = isotropic(0.3, 0.1, 0.5)
        bent[0, 0] += size
        config = LinearFilterConfig.from_dict(system(process_noise=CHANGE @ bent @ CHANGE.T))
        if is_taken:
            EigenHeads(config)
        else:
            with pytest.raises(ValueError, match="process_noise"):
                EigenHeads(config)
