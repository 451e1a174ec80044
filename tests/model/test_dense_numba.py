"""The compiled linear filter against the eager one in float64: every option alone and all together."""

import math

import numpy as np
import pytest
import torch

import model
from model.linear_filter import LinearFilter, LinearFilterConfig

pytest.importorskip("numba")
from model.recurrence.dense_numba import LANES, LinearStream, filter_streams

OSCILLATOR = {
    "drift": [[0.9, -2.0], [1.0, -1.1]],
    "process_noise": [[0.3, 0.1], [0.1, 0.4]],
    "measurement_noise": [[0.5, 0.1], [0.1, 0.7]],
}
VELOCITY = {
    "drift": [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]],
    "process_noise": np.diag([0, 0, 0.3, 0.5]).tolist(),
    "measurement_noise": [[1.0, 0.3], [0.3, 2.0]],
    "observation": [[1, 0, 0, 0], [0.2, 1, 0, 0]],
    "offset": [0.5, -1.0],
    "initial_mean": [1.0, 2.0, 0.0, 0.0],
    # A prior that says nothing, beside noises of 1: the plain form of the update would lose seven digits.
    "initial_covariance": (1e6 * np.eye(4)).tolist(),
}
CHAIN = {
    "drift": [
        [-0.4, -1.0, 1, 0, 0],
        [1.0, -0.4, 0, 1, 0],
        [0, 0, -0.4, -1.0, 0],
        [0, 0, 1.0, -0.4, 0],
        [0, 0, 0, 0, -2],
    ],
    "process_noise": np.diag([0.1, 0.2, 0.3, 0.4, 1.0]).tolist(),
    "measurement_noise": np.diag([0.3, 0.6, 1.0]).tolist(),
    "observation": [[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 1, 0.5, 0]],
}
SYSTEMS = {
    name: {**system, "reacquire": None}
    for name, system in (("oscillator", OSCILLATOR), ("velocity", VELOCITY), ("chain", CHAIN))
}
RULES = ({"nu": None}, {"nu": 4.0, "inner": 1}, {"nu": 4.0, "inner": 3}, {"nu": 2.5, "inner": 5})
# Sums in another order, a few hundred operations deep.
TOLERANCE = 1e-10


def make_data(system: dict, streams: int, steps: int = 40, seed: int = 0):
    rng = np.random.default_rng(seed)
    p = len(system["measurement_noise"])
    lags = rng.exponential(0.3, (streams, steps))
    lags[:, steps // 2] = 50.0
    lags[:, steps // 3] = 0.0
    y = np.cumsum(rng.normal(size=(streams, steps, p)), axis=1)
    y[rng.random((streams, steps)) < 0.1] *= 15
    y[rng.random((streams, steps, p)) < 0.2] = np.nan
    y[:, steps // 4] = np.nan
    return np.cumsum(lags, axis=1), y, rng.uniform(0.5, 3.0, (streams, steps))


def eager(config: LinearFilterConfig, times, y, noise, state=None):
    torch.set_default_dtype(torch.float64)
    try:
        seen = np.isfinite(y)
        arrays = (np.where(seen, y, 0.0), seen * 1.0, times, noise)
        return LinearFilter(config)(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays), state)[0]
    finally:
        torch.set_default_dtype(torch.float32)


def gap(found, expected) -> float:
    expected = np.asarray(expected)
    return float((np.abs(found - expected) / (1 + np.abs(expected))).max())


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_streams_follow_the_eager_filter(name, rule):
    config = LinearFilterConfig.from_dict({**SYSTEMS[name], **rule})
    times, y, noise = make_data(SYSTEMS[name], 3)
    expected = eager(config, times, y, noise)
    found = filter_streams(config, times, y, noise=noise, covariances=True)
    assert found.covariance is not None
    results = {
        "state_mean": found.mean,
        "state_covariance": found.covariance,
        "weight": found.weight,
        "nis": found.nis,
    }
    for field, ours in results.items():
        assert gap(ours, getattr(expected, field)) <= TOLERANCE, field
    if rule["nu"] is not None:
        assert found.weight.min() < 0.3 and found.weight.max() == 1
    stream = LinearStream(config)
    for i in range(y.shape[1]):
        step = stream.step(times[0, i], y[0, i], noise[0, i])
        assert gap(step.mean, expected.state_mean[0, i]) <= TOLERANCE
        assert gap(step.covariance, expected.state_covariance[0, i]) <= TOLERANCE
        assert gap(step.weight, expected.weight[0, i]) <= TOLERANCE
        assert gap(step.nis, expected.nis[0, i]) <= TOLERANCE


def test_a_stream_has_the_same_numbers_in_any_crowd():
    config = LinearFilterConfig.from_dict(SYSTEMS["velocity"])
    streams = 2 * LANES + 3
    times, y, noise = make_data(VELOCITY, streams, steps=12)
    crowd = filter_streams(config, times, y, noise=noise)
    threaded = filter_streams(config, times, y, noise=noise, threads=3)
    assert np.array_equal(crowd.mean, threaded.mean)
    for i in (0, LANES - 1, LANES, streams - 1):
        alone = filter_streams(config, times[i], y[i : i + 1], noise=noise[i : i + 1])
        assert gap(alone.mean[0], crowd.mean[i]) <= TOLERANCE
        assert gap(alone.weight[0], crowd.weight[i]) <= TOLERANCE


def test_streams_go_on_from_a_state():
    config = LinearFilterConfig.from_dict(SYSTEMS["velocity"])
    times, y, _ = make_data(VELOCITY, 4)
    whole = filter_streams(config, times, y)
    first = filter_streams(config, times[:, :15], y[:, :15])
    rest = filter_streams(config, times[:, 15:], y[:, 15:], state=first.state)
    assert np.array_equal(rest.mean, whole.mean[:, 15:])
    # Common times after origins that differ.
    later = 200.0 + np.arange(5.0)
    shared = filter_streams(config, later, y[:, :5], state=whole.state)
    own = filter_streams(config, np.tile(later, (4, 1)), y[:, :5], state=whole.state)
    assert np.array_equal(shared.mean, own.mean)

    one = LinearStream(config)
    for i in range(15):
        one.step(times[0, i], y[0, i])
    other = LinearStream(config, state=one.state)
    for i in range(15, 40):
        assert np.array_equal(one.step(times[0, i], y[0, i]).mean, other.step(times[0, i], y[0, i]).mean)


def test_common_times_and_many_distinct_lags(monkeypatch):
    """More lags than are worked on at a time, or kept."""
    from model.recurrence import dense_numba

    config = LinearFilterConfig.from_dict(SYSTEMS["oscillator"])
    times, y, _ = make_data(OSCILLATOR, 5)
    expected = filter_streams(config, times[0], y)
    assert gap(expected.mean[3], eager(config, times[:1], y[3:4], np.ones((1, 40))).state_mean[0]) <= TOLERANCE
    monkeypatch.setattr(dense_numba, "LAGS_AT_ONCE", 7)
    monkeypatch.setattr(dense_numba, "KEPT_LAGS", 3)
    assert np.array_equal(filter_streams(config, times[0], y).mean, expected.mean)
    stream = LinearStream(config)
    last = [stream.step(t, value).mean for t, value in zip(times[0], y[0], strict=True)][-1]
    assert gap(last, expected.mean[0, -1]) <= TOLERANCE


def test_missing_is_nan_or_none():
    config = LinearFilterConfig.from_dict(SYSTEMS["velocity"])
    streams = [LinearStream(config) for _ in range(2)]
    for stream, values in zip(streams, ([[1.0, math.nan], [math.nan] * 2], [[1.0, None], None]), strict=True):
        for i, value in enumerate(values):
            last = stream.step(float(i), value)
    assert np.array_equal(last.mean, streams[0].state.mean)
    assert np.array_equal(streams[0].state.mean, streams[1].state.mean)
    assert last.weight == 1 and last.nis == 0


def test_bad_arguments_are_refused_and_leave_the_stream_as_it_was():
    config = LinearFilterConfig.from_dict(SYSTEMS["velocity"])
    stream = LinearStream(config)
    with pytest.raises(ValueError, match="before its first"):
        _ = stream.state
    stream.step(1.0, [1.0, 2.0])
    before = stream.state
    for arguments, message in (
        ((0.5, [1.0, 2.0]), "t must be"),
        ((math.nan, [1.0, 2.0]), "t must be"),
        ((2.0, [1.0]), "y must have 2"),
        ((2.0, [1.0, math.inf]), "y must be finite"),
        ((2.0, [1.0, 2.0], 0.0), "noise"),
    ):
        with pytest.raises(ValueError, match=message):
            stream.step(*arguments)
    after = stream.state
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    y = np.zeros((2, 3, 2))
    for changes, message in (
        ({"times": [0.0, 2.0, 1.0]}, "decrease"),
        ({"times": [0.0, 1.0]}, "times"),
        ({"observations": y[0]}, "observations"),
        ({"observations": y + math.inf}, "finite"),
        ({"noise": np.zeros((2, 3))}, "noise"),
        ({"threads": 0}, "threads"),
        ({"state": before}, "state.mean"),
    ):
        with pytest.raises(ValueError, match=message):
            filter_streams(config, **{"times": [0.0, 1.0, 2.0], "observations": y, **changes})


def test_the_package_offers_it():
    assert model.LinearStream is LinearStream and model.filter_streams is filter_streams
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = model.nothing_here


def test_jumps_are_not_followed_silently_otherwise():
    with pytest.raises(ValueError, match="reacquire must be null"):
        LinearStream(LinearFilterConfig.from_dict({**OSCILLATOR, "nu": 4.0, "reacquire": 6}))
    LinearStream(LinearFilterConfig.from_dict({**OSCILLATOR, "nu": None}))


def test_noise_is_not_left_unlearned_silently():
    learned = {**SYSTEMS["oscillator"], "rule": "learned"}
    with pytest.raises(ValueError, match="rule must be 'capped'"):
        LinearStream(LinearFilterConfig.from_dict({**learned, "nu": 4.0}))
    LinearStream(LinearFilterConfig.from_dict({**learned, "nu": None}))
