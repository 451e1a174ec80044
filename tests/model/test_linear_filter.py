"""The linear filter against Kalman filters of other libraries, brute-force conditioning and the isotropic IRKF."""

import math

import numpy as np
import pytest
import torch
from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

from rfa.model.dynamics import Dynamics
from rfa.model.linear_filter import LinearFilter
from rfa.model.recurrence.irkf import irkf_scan
from rfa.runtime.filters.linear_config import LinearFilterConfig
from tests.model.joint_gaussian import System, path_posterior, van_loan
from tests.model.oracles import filterpy_filter, float64_filter

DRIFT = [[0.9, -2.0], [1.0, -1.1]]
Q = [[0.3, 0.1], [0.1, 0.4]]
R = [[0.5, 0.1], [0.1, 0.7]]
PRIOR = [[4.0, 0.5], [0.5, 3.0]]
SYSTEM = np.array(DRIFT), np.array(Q)


def build(**changes) -> LinearFilter:
    values = {
        "drift": DRIFT, "process_noise": Q, "measurement_noise": R, "nu": None, "initial_covariance": PRIOR, **changes,
    }  # fmt: skip
    return float64_filter(LinearFilterConfig.from_dict(values))


def make_data(n: int = 60, size: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lags = rng.exponential(0.3, n)
    lags[n // 2] = 9.0
    seen = rng.random((n, size)) > 0.25
    seen[n // 3] = False
    return np.cumsum(lags), 2 * np.cumsum(rng.normal(size=(n, size)), axis=0), seen


def run(model: LinearFilter, times, y, seen, mode: str = "recurrent"):
    model.mode = mode
    output, _ = model(torch.from_numpy(y)[None], torch.from_numpy(seen * 1.0)[None], torch.from_numpy(times)[None])
    return output


def filterpy_run(times, y, seen):
    return *filterpy_filter(times, y, seen, lambda lag: van_loan(*SYSTEM, lag), np.eye(2), R, PRIOR), None


def statsmodels_run(times, y, seen):
    model = KalmanFilter(k_endog=2, k_states=2)
    model.bind(np.where(seen, y, np.nan))
    model["design"], model["obs_cov"], model["selection"] = np.eye(2), np.array(R), np.eye(2)
    steps = [van_loan(*SYSTEM, lag) for lag in np.diff(times)] + [(np.eye(2), np.eye(2))]
    model["transition"] = np.stack([f for f, _ in steps], axis=-1)
    model["state_cov"] = np.stack([q for _, q in steps], axis=-1)
    model.initialize_known(np.zeros(2), np.array(PRIOR))
    result = model.filter()
    return result.filtered_state.T, np.moveaxis(result.filtered_state_cov, -1, 0), result.llf_obs


@pytest.mark.parametrize("peer", [filterpy_run, statsmodels_run])
def test_infinite_nu_is_the_kalman_filter(peer):
    times, y, seen = make_data()
    mean, covariance, log_likelihood = peer(times, y, seen)
    output = run(build(), times, y, seen)
    assert np.abs(output.mean[0].numpy() - mean).max() <= 1e-6
    assert np.abs(output.covariance[0].numpy() - covariance).max() <= 1e-6
    if log_likelihood is not None:
        assert np.abs(output.log_likelihood[0].numpy() - log_likelihood).max() <= 1e-6


def test_isotropic_system_gives_the_numbers_of_irkf_scan():
    mu, omega, sigma2, eta2, nu = 0.2, 1.3, 0.4, 0.6, 3.0
    model = build(
        drift=[[-mu, -omega], [omega, -mu]],
        # A complex variance splits over two real parts, and two real dims count as one complex dim.
        process_noise=(np.eye(2) * sigma2 / 2).tolist(),
        measurement_noise=(np.eye(2) * eta2 / 2).tolist(),
        initial_covariance=(np.eye(2) * 1e9).tolist(),
        nu=2 * nu,
        reacquire=None,
    )
    times, y, _ = make_data(seed=1)
    seen = np.repeat(np.random.default_rng(2).random((len(y), 1)) > 0.2, 2, axis=1)
    seen[0] = True
    one = torch.ones(1, dtype=torch.float64)
    dynamics = Dynamics(mu * one, omega * one[None], sigma2 * one, eta2 * one, 0 * one, nu * one, one)
    means, precisions, _ = irkf_scan(
        torch.from_numpy(y)[None, :, None], dynamics, times=torch.from_numpy(times), inner=3,
        mask=torch.from_numpy(seen[:, 0]),
    )  # fmt: skip
    output = run(model, times, y, seen)
    assert torch.allclose(output.mean, means[:, :, 0], atol=1e-6)
    assert torch.allclose(output.precision / 2, precisions[:, :, 0], rtol=1e-6)
    assert float(output.weight.min()) < 0.9


def test_partial_observation_through_a_matrix_and_forecast_match_joint_conditioning():
    c = np.array([[1.0, 0.5]])
    model = build(observation=c.tolist(), measurement_noise=[[0.4]], offset=[3.0])
    times, y, seen = make_data(n=12, size=1, seed=5)
    system = System(*SYSTEM, c, np.array([3.0]), np.array([[0.4]]), np.zeros(2), np.array(PRIOR))
    grid = np.append(times, times[-1] + 0.7)
    values, present = np.append(y, [[0.0]], axis=0), np.append(seen, [[False]], axis=0)
    path, covariance = path_posterior(system, grid, values, present, np.ones(13))
    expected, variance = 3.0 + c @ path[-2:], c @ covariance[-2:, -2:] @ c.T + 0.4

    _, state = model(torch.from_numpy(y)[None], torch.from_numpy(seen * 1.0)[None], torch.from_numpy(times)[None])
    mean, spread = model.forecast(state, torch.tensor([0.7], dtype=torch.float64))
    assert abs(float(mean) - expected.item()) < 1e-9
    assert abs(float(spread) - variance.item()) < 1e-9


def test_segments_and_batch_do_not_change_the_numbers():
    model = build(nu=4.0)
    data = [make_data(n=30, seed=s) for s in range(3)]
    times, y, seen = (torch.from_numpy(np.stack(x).astype(np.float64)) for x in zip(*data, strict=True))
    whole, _ = model(y, seen, times)
    alone, _ = model(y[1:2], seen[1:2], times[1:2])
    assert torch.allclose(alone.mean[0], whole.mean[1], atol=1e-9)
    _, state = model(y[:, :11], seen[:, :11], times[:, :11])
    rest, _ = model(y[:, 11:], seen[:, 11:], times[:, 11:], state=state)
    assert torch.allclose(rest.mean, whole.mean[:, 11:], atol=1e-9)


def test_robust_filter_resists_outliers_and_attention_agrees_without_process_noise():
    quiet = {"process_noise": [[0.0, 0.0], [0.0, 0.0]]}
    times, y, seen = make_data(n=25, seed=7)
    y, seen = y / 10, np.ones_like(seen)
    recurrent = run(build(**quiet), times, y, seen)
    attention = run(build(**quiet, inner=1), times, y, seen, mode="attention")
    # Without process noise the transported observations are independent: the batch estimate is the Kalman filter.
    near = times < times[0] + 5
    assert torch.allclose(attention.mean[0, near], recurrent.mean[0, near], atol=1e-6)
    spiked = y.copy()
    spiked[10] += 50.0
    moved = [float((run(build(nu=nu), times, spiked, seen).mean - run(build(nu=nu), times, y, seen).mean).abs().max())
             for nu in (4.0, None)]  # fmt: skip
    assert moved[0] < 0.2 * moved[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drift": [[0.0, 1.0], [-1e-11, 0.0]]}, "nearly equal eigenvalues"),
        ({"drift": [[0.1, 0.0], [0.0, -1.0]]}, "unstable"),
        ({"process_noise": [[1.0, 2.0], [0.0, 1.0]]}, "symmetric"),
        ({"measurement_noise": [[1.0, 0.0], [0.0, 0.0]]}, "definite"),
        ({"measurement_noise": [[1.0]]}, "observation"),
        ({"nu": 2.0}, "nu"),
        ({"drift": [[math.nan, 0.0], [0.0, -1.0]]}, "finite"),
        ({"colour": 1}, "colour"),
    ],
)
def test_bad_systems_are_refused_with_a_reason(change, message):
    with pytest.raises(ValueError, match=message):
        build(**change)
