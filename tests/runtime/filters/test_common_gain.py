"""Streams that share a covariance: the same Kalman filter as one stream after the other."""

import filterpy.kalman
import numpy as np
import pytest
import scipy.linalg

from rfa.runtime.filters.linear_config import LinearFilterConfig

pytest.importorskip("numba")
from rfa.runtime.filters.common_gain import LANES, filter_common
from rfa.runtime.filters.dense_numba import filter_streams

SYSTEM = {
    "drift": [[-0.4, -1.0, 0.3], [1.0, -0.4, 0.0], [0.0, 0.0, -2.0]],
    "process_noise": [[0.3, 0.1, 0.0], [0.1, 0.4, 0.0], [0.0, 0.0, 1.0]],
    "measurement_noise": [[0.5, 0.1], [0.1, 0.7]],
    "observation": [[1.0, 0.0, 0.5], [0.2, 1.0, 0.0]],
    "offset": [0.5, -1.0],
    "initial_mean": [1.0, 2.0, 0.0],
    "initial_covariance": [[4.0, 0.5, 0.0], [0.5, 4.0, 0.0], [0.0, 0.0, 1.0]],
    "nu": None,
}
CONFIG = LinearFilterConfig.from_dict(SYSTEM)


def data(streams, steps, seed=0):
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.choice([0.0, 0.1, 0.25, 1.5], steps)), 2 * rng.standard_normal((streams, steps, 2))


def transition(lag):
    """F, and Q by Van Loan's block exponential."""
    drift, noise = np.array(SYSTEM["drift"]), np.array(SYSTEM["process_noise"])
    block = scipy.linalg.expm(np.block([[-drift, noise], [np.zeros((3, 3)), drift.T]]) * lag)
    f = block[3:, 3:].T
    return f, f @ block[:3, 3:]


def test_every_stream_is_filterpys_kalman_filter():
    times, values = data(3, 37)
    found = filter_common(CONFIG, times, values)
    for stream in range(3):
        kalman = filterpy.kalman.KalmanFilter(dim_x=3, dim_z=2)
        kalman.x, kalman.P = np.array(SYSTEM["initial_mean"]), np.array(SYSTEM["initial_covariance"])
        kalman.H, kalman.R = np.array(SYSTEM["observation"]), np.array(SYSTEM["measurement_noise"])
        for t, (lag, value) in enumerate(zip(np.diff(times, prepend=times[0]), values[stream], strict=True)):
            kalman.F, kalman.Q = transition(lag)
            kalman.predict()
            kalman.update(value - SYSTEM["offset"])
            nis = kalman.y @ np.linalg.solve(kalman.S, kalman.y)
            np.testing.assert_allclose(found.mean[stream, t], kalman.x, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(found.covariance[t], kalman.P, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(found.nis[stream, t], nis, rtol=1e-9)


@pytest.mark.parametrize("streams", [1, 31, LANES, LANES + 3])
def test_the_number_of_streams_changes_none(streams):
    times, values = data(LANES + 3, 21)
    every, some = filter_common(CONFIG, times, values), filter_common(CONFIG, times, values[:streams])
    assert np.array_equal(some.mean, every.mean[:streams])
    assert np.array_equal(some.nis, every.nis[:streams])


@pytest.mark.parametrize("cut", [1, 16, 33])
def test_streams_go_on_from_a_state(cut):
    times, values = data(5, 48)
    whole = filter_common(CONFIG, times, values)
    first = filter_common(CONFIG, times[:cut], values[:, :cut])
    second = filter_common(CONFIG, times[cut:], values[:, cut:], state=first.state)
    assert np.array_equal(np.concatenate([first.mean, second.mean], 1), whole.mean)
    assert np.array_equal(second.state.mean, whole.state.mean)
    assert np.array_equal(second.covariance, whole.covariance[cut:])
    # The states of both ways of working are the same kind of thing.
    own = filter_streams(CONFIG, times[cut:], values[:, cut:], state=first.state)
    np.testing.assert_allclose(own.mean, whole.mean[:, cut:], rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_a_system_without_optional_parts():
    plain = {name: SYSTEM[name] for name in ("drift", "process_noise", "nu")}
    config = LinearFilterConfig.from_dict({**plain, "measurement_noise": np.eye(3).tolist()})
    times, values = np.arange(20.0), np.random.default_rng(1).standard_normal((4, 20, 3))
    expected = filter_streams(config, times, values)
    found = filter_common(config, times, values)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.nis, expected.nis, rtol=1e-10)


def test_what_does_not_share_a_covariance_is_refused():
    times, values = data(3, 10)
    with pytest.raises(ValueError, match=r"nu must be null .* got 4\.0"):
        filter_common(LinearFilterConfig.from_dict({**SYSTEM, "nu": 4.0}), times, values)
    gap = values.copy()
    gap[1, 3, 0] = np.nan
    with pytest.raises(ValueError, match="filter_streams takes those with gaps"):
        filter_common(CONFIG, times, gap)
    with pytest.raises(ValueError, match="times must be"):
        filter_common(CONFIG, np.tile(times, (3, 1)), values)
    state = filter_common(CONFIG, times, values).state
    uneven = state._replace(covariance=state.covariance * np.array([1, 1, 2])[:, None, None])
    with pytest.raises(ValueError, match="same for all streams"):
        filter_common(CONFIG, times + 20, values, state=uneven)
