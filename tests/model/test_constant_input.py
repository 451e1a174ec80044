"""Systems with a constant input against a Kalman filter that carries the input through the matrix exponential."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch

from rfa.model.constant_input import without_input
from rfa.model.linear_config import LinearFilterConfig
from rfa.model.linear_filter import LinearFilter

STABLE = [[-0.4, -2.0, 0.3], [1.5, -0.6, 0.0], [0.0, 0.2, -0.1]]
# Two undamped modes, one of them driven by nothing.
TURNING = [[0.0, -2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
Q = [[0.3, 0.1, 0.0], [0.1, 0.4, 0.0], [0.0, 0.0, 0.2]]
C, R, PRIOR = [[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]], [[0.5, 0.1], [0.1, 0.7]], np.diag([4.0, 3.0, 2.0]).tolist()
MEAN, OFFSET = (1.0, -2.0, 0.5), (3.0, -1.0)


def kalman(drift, u, times, y, ahead):
    """Means of the observations after each one, and `ahead` after the last; with the drift [[A, u], [0, 0]] of (x, 1)
    nothing is solved for."""
    c, r = np.array(C), np.array(R)
    mean, covariance = np.array(MEAN), np.array(PRIOR)

    def carried(lag):
        a = np.zeros((4, 4))
        a[:3, :3], a[:3, 3] = drift, u
        f = scipy.linalg.expm(a * lag)
        block = scipy.linalg.expm(np.block([[-a[:3, :3], np.array(Q)], [np.zeros((3, 3)), a[:3, :3].T]]) * lag)
        return f[:3, :3] @ mean + f[:3, 3], f[:3, :3] @ covariance @ f[:3, :3].T + f[:3, :3] @ block[:3, 3:]

    means, before = [], times[0]
    for t, value in zip(times, y, strict=True):
        mean, covariance = carried(t - before)
        gain = covariance @ c.T @ np.linalg.inv(c @ covariance @ c.T + r)
        mean, covariance = mean + gain @ (value - c @ mean - OFFSET), covariance - gain @ c @ covariance
        means.append(mean)
        before = t
    return np.array(means), c @ carried(ahead)[0] + OFFSET


@pytest.mark.parametrize(("drift", "u"), [(STABLE, (0.7, -0.2, 0.9)), (TURNING, (0.7, -0.2, 0.0))])
def test_the_numbers_are_those_of_the_filter_that_knows_the_input(drift, u):
    values = {
        "drift": drift, "process_noise": Q, "measurement_noise": R, "observation": C, "offset": OFFSET, "nu": None,
        "initial_mean": MEAN, "initial_covariance": PRIOR,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    times, y = np.cumsum(rng.exponential(0.4, 80)), 4 * rng.normal(size=(80, 2)) + 2
    expected, ahead = kalman(drift, u, times, y, 3.0)
    config, equilibrium = without_input(LinearFilterConfig.from_dict(values), u)
    torch.set_default_dtype(torch.float64)
    try:
        model = LinearFilter(config)
    finally:
        torch.set_default_dtype(torch.float32)
    seen = torch.ones(1, 80, 2, dtype=torch.float64)
    output, state = model(torch.from_numpy(y)[None], seen, torch.from_numpy(times)[None])
    seen_means = expected @ np.array(C).T + OFFSET
    assert np.abs(output.mean[0].numpy() - seen_means).max() <= 1e-9
    assert np.abs(state["mean"][0].numpy() + equilibrium - expected[-1]).max() <= 1e-9
    forecast, _ = model.forecast(state, torch.tensor([3.0], dtype=torch.float64))
    assert np.abs(forecast[0, 0].numpy() - ahead).max() <= 1e-9


def test_the_prior_is_around_the_equilibrium():
    config = LinearFilterConfig.from_dict({"drift": [[-0.5]], "process_noise": [[1.0]], "measurement_noise": [[1.0]]})
    centred, equilibrium = without_input(config, (2.0,))
    assert equilibrium.tolist() == [4.0] and centred.offset == (4.0,) and centred.initial_mean is None


@pytest.mark.parametrize("u", [(0.0, 1.0), (1.0, 2.0, 3.0), (math.nan, 0.0)])
def test_what_has_no_equilibrium_is_refused(u):
    """A level with a slope: an input to the slope is an acceleration; to the level it is a slope that there is."""
    values = {"drift": [[0.0, 1.0], [0.0, 0.0]], "process_noise": [[1.0, 0.0], [0.0, 1.0]], "observation": [[1.0, 0.0]],
              "measurement_noise": [[1.0]], "initial_covariance": [[1.0, 0.0], [0.0, 1.0]]}  # fmt: skip
    config = LinearFilterConfig.from_dict(values)
    assert without_input(config, (1.0, 0.0)).equilibrium.tolist() == [0.0, -1.0]
    with pytest.raises(ValueError, match="no equilibrium" if u == (0.0, 1.0) else "2 finite numbers"):
        without_input(config, u)
