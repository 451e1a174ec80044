"""The compiled linear filter against the eager one in float64: every option alone and all together."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

import rfa
from rfa.model.state_filter import Token
from rfa.runtime.filters.dense_numba import (
    LANES,
    SMALL_SENSOR,
    SMALL_STATE,
    LinearStream,
    StreamState,
    filter_streams,
)
from rfa.runtime.filters.linear_config import LinearFilterConfig
from tests.model.oracles import float64_filter

OSCILLATOR = {
    "drift": [[0.9, -2.0], [1.0, -1.1]],
    "process_noise": [[0.3, 0.1], [0.1, 0.4]],
    "measurement_noise": [[0.5, 0.1], [0.1, 0.7]],
    "observation": [[1.0, 0.0], [0.2, 1.0]],
}
VELOCITY = {
    "drift": [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]],
    "process_noise": np.diag([0, 0, 0.3, 0.5]).tolist(),
    "measurement_noise": [[1.0, 0.3], [0.3, 2.0]],
    "observation": [[1, 0, 0, 0], [0, 1, 0, 0]],
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
# More sensors than states, and than are worked on in one loop.
SENSORS = {
    **OSCILLATOR,
    "measurement_noise": (0.5 * np.eye(5) + 0.1).tolist(),
    "observation": [[1, 0], [0, 1], [1, 0.5], [0.3, -1], [0, 2]],
}
SYSTEMS = {"oscillator": OSCILLATOR, "velocity": VELOCITY, "chain": CHAIN, "sensors": SENSORS}
RULES = (
    {"nu": None},
    {"nu": 4.0, "inner": 1, "reacquire": None},
    {"nu": 2.5, "inner": 5, "reacquire": None},
    {"nu": 4.0, "inner": 1, "reacquire": 3},
    {"nu": 6.0},
)
# Sums in another order, a few hundred operations deep.
TOLERANCE = 1e-10
JUMP = 22


def make_config(name: str, **changes) -> LinearFilterConfig:
    return LinearFilterConfig.from_dict({**SYSTEMS[name], **changes})


def make_data(name: str, streams: int, steps: int = 40, seed: int = 0):
    """Irregular times with a long gap and two observations at once; outliers, a jump for good, and components and whole
    observations missing."""
    rng = np.random.default_rng(seed)
    p = len(SYSTEMS[name]["measurement_noise"])
    lags = rng.exponential(0.3, (streams, steps))
    lags[:, steps // 2] = 50.0
    lags[:, steps // 3] = 0.0
    y = np.cumsum(rng.normal(size=(streams, steps, p)), axis=1)
    y[rng.random((streams, steps)) < 0.1] *= 15
    if steps > JUMP:
        # A state at rest far off: what every sensor says is true of one state, and stays so.
        matrix = np.asarray(SYSTEMS[name].get("observation", np.eye(p)), float)
        y[:, JUMP:] = 60.0 * matrix.sum(1) + rng.normal(size=(streams, steps - JUMP, p))
        lags[:, JUMP:] = rng.exponential(0.002, (streams, steps - JUMP))
    y[rng.random((streams, steps, p)) < 0.2] = np.nan
    y[:, steps // 4] = np.nan
    return np.cumsum(lags, axis=1), y, rng.uniform(0.5, 3.0, (streams, steps))


def eager(config: LinearFilterConfig, times, y, noise):
    """Outputs of whole streams, and the state after each of their observations."""
    filter_, seen = float64_filter(config), np.isfinite(y)
    lags = np.diff(times, axis=1, prepend=times[:, :1])
    arrays = (np.where(seen, y, 0.0), seen * 1.0, lags, noise)
    tokens = [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    state, outputs, states = filter_.init_state(len(y)), [], []
    for i in range(y.shape[1]):
        output, state = filter_.step(Token(*(token[:, i] for token in tokens)), state)
        outputs.append(output)
        states.append({key: value.numpy() for key, value in state.items()})
    fields = ("state_mean", "state_covariance", "weight", "nis")
    return {key: torch.stack([getattr(o, key) for o in outputs], 1).numpy() for key in fields}, states


def gap(found, expected) -> float:
    expected = np.asarray(expected)
    return float((np.abs(found - expected) / (1 + np.abs(expected))).max())


def same(left: StreamState, right: StreamState) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


# Each rule with one system, or two; every pair is compiled anew.
PAIRS = [
    pytest.param(name, rule, marks=() if (i - k) % len(SYSTEMS) == 0 else pytest.mark.slow, id=f"{name}-{rule}")
    for i, name in enumerate(SYSTEMS)
    for k, rule in enumerate(RULES)
]


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_streams_follow_the_eager_filter(name, rule):
    config = make_config(name, **rule)
    times, y, noise = make_data(name, 3)
    expected, states = eager(config, times, y, noise)
    found = filter_streams(config, times, y, noise=noise, covariances=True)
    results = {
        "state_mean": found.mean,
        "state_covariance": found.covariance,
        "weight": found.weight,
        "nis": found.nis,
    }
    for field, ours in results.items():
        assert gap(ours, expected[field]) <= TOLERANCE, field
    if rule["nu"] is not None:
        assert found.weight.min() < 0.3 and found.weight.max() == 1
    stream, evidences = LinearStream(config), []
    for i in range(y.shape[1]):
        step, state = stream.step(times[0, i], y[0, i], noise[0, i]), stream.state
        for ours, field in zip(step, expected, strict=True):
            assert gap(ours, expected[field][0, i]) <= TOLERANCE, (field, i)
        assert same(
            StreamState(step.mean, step.covariance, times[0, i]), state._replace(jump_offset=None, jump_evidence=None)
        )
        if "jump_offset" not in states[i]:
            assert state.jump_offset is None and state.jump_evidence is None
        else:
            assert gap(state.jump_offset, states[i]["jump_offset"][0]) <= TOLERANCE
            assert gap(state.jump_evidence, states[i]["jump_evidence"][0, 0]) <= TOLERANCE
            evidences.append(float(state.jump_evidence))
    if evidences:
        assert gap(found.state.jump_offset, states[-1]["jump_offset"]) <= TOLERANCE
        assert gap(found.state.jump_evidence, states[-1]["jump_evidence"][:, 0]) <= TOLERANCE
        # Evidence was counted, and spent on a jump.
        assert max(evidences) > 1 and evidences[-1] < max(evidences)


def test_the_cases_reach_both_ways_of_working():
    sizes = [(len(s["drift"]), len(s["measurement_noise"])) for s in SYSTEMS.values()]
    assert {n <= SMALL_STATE and p <= SMALL_SENSOR for n, p in sizes} == {True, False}


@pytest.mark.parametrize("name", ["oscillator", "velocity"])
def test_a_jump_is_followed(name):
    """By the default config, and by no other: what the state is told ten times over is where it is."""
    times, y, _ = make_data(name, LANES + 5)
    y[:, JUMP:] = np.where(
        np.isnan(y[:, JUMP:]), 60.0 * np.asarray(SYSTEMS[name].get("observation", np.eye(2))).sum(1), y[:, JUMP:]
    )
    size = y.shape[2]
    followed = filter_streams(make_config(name), times, y).mean[:, JUMP + 7, :size]
    missed = filter_streams(make_config(name, reacquire=None), times, y).mean[:, JUMP + 7, :size]
    assert np.median(np.abs(followed - 60)) < 3
    assert np.median(np.abs(missed - 60)) > 10


def test_spikes_change_nothing():
    """Bit for bit: the rule is silent where there is nothing to follow."""
    rng = np.random.default_rng(1)
    times, y = np.arange(120) * 0.1, rng.normal(size=(40, 120, 2))
    y[:, 10::13] += rng.choice([-1.0, 1.0], (40, 9, 2)) * 30
    y[3, 50] += 1e8
    with_rule = filter_streams(make_config("oscillator"), times, y)
    without = filter_streams(make_config("oscillator", reacquire=None), times, y)
    assert np.array_equal(with_rule.mean, without.mean)
    assert with_rule.weight.min() < 0.1


def test_a_stream_has_the_same_numbers_in_any_crowd():
    config = make_config("velocity")
    streams = 2 * LANES + 3
    times, y, noise = make_data("velocity", streams, steps=JUMP + 8)
    crowd = filter_streams(config, times, y, noise=noise)
    threaded = filter_streams(config, times, y, noise=noise, threads=3)
    assert np.array_equal(crowd.mean, threaded.mean)
    for i in (0, LANES - 1, LANES, streams - 1):
        alone = filter_streams(config, times[i], y[i : i + 1], noise=noise[i : i + 1])
        assert np.array_equal(alone.mean[0], crowd.mean[i])
        assert np.array_equal(alone.weight[0], crowd.weight[i])


@pytest.mark.parametrize("name", ["velocity", "sensors"])
def test_no_stream_touches_another(name):
    """One is silent, one jumps again and again, and one is beyond all measure."""
    config = make_config(name)
    times, y, _ = make_data(name, LANES + 9)
    before = filter_streams(config, times, y)
    others = np.ones(len(y), bool)
    others[[4, 7, LANES + 1]] = False
    y[4, 3:] = np.nan
    y[7] += 1e3 * (np.arange(40) // 8)[:, None]
    y[LANES + 1, 5::2] = 1e200
    after = filter_streams(config, times, y)
    assert np.array_equal(before.mean[others], after.mean[others])
    assert np.array_equal(before.nis[others], after.nis[others])
    states = before.state._asdict(), after.state._asdict()
    assert states[0].pop("noise_counts") is None and states[1].pop("noise_counts") is None
    assert all(np.array_equal(a[others], b[others]) for a, b in zip(*(s.values() for s in states), strict=True))
    assert np.isfinite(after.mean).all()
    assert not np.array_equal(before.mean[7], after.mean[7])


@pytest.mark.parametrize("cut", [15, JUMP + 3])
def test_streams_go_on_from_a_state(cut):
    """Bit for bit, and in the middle of a suspicion."""
    config = make_config("velocity")
    times, y, _ = make_data("velocity", 4)
    whole = filter_streams(config, times, y)
    first = filter_streams(config, times[:, :cut], y[:, :cut])
    if cut > JUMP:
        assert first.state.jump_evidence.max() > 1
    rest = filter_streams(config, times[:, cut:], y[:, cut:], state=first.state)
    assert np.array_equal(rest.mean, whole.mean[:, cut:])
    assert same(rest.state, whole.state)

    one = LinearStream(config)
    for i in range(cut):
        one.step(times[0, i], y[0, i])
    others = [
        LinearStream(config, state=one.state),
        copy.deepcopy(one),
        copy.copy(one),
        pickle.loads(pickle.dumps(one)),
    ]
    for i in range(cut, 40):
        step = one.step(times[0, i], y[0, i])
        assert all(np.array_equal(other.step(times[0, i], y[0, i]).mean, step.mean) for other in others)
    assert all(same(other.state, one.state) for other in others)


def test_common_times_after_origins_that_differ():
    config = make_config("velocity")
    times, y, _ = make_data("velocity", 4)
    whole = filter_streams(config, times, y)
    later = 200.0 + np.arange(5.0)
    shared = filter_streams(config, later, y[:, :5], state=whole.state)
    own = filter_streams(config, np.tile(later, (4, 1)), y[:, :5], state=whole.state)
    assert np.array_equal(shared.mean, own.mean)


def test_a_state_without_suspicion_is_one_with_none():
    config = make_config("oscillator")
    mean, covariance = np.ones(2), np.eye(2)
    streams = [
        LinearStream(config, state=StreamState(mean, covariance, 0.0, *suspicion))
        for suspicion in ((), (np.zeros(2), 0.0), (np.zeros(2), 4.0))
    ]
    # An observation where the rival was expected neither adds evidence nor takes it away.
    states = []
    for stream in streams:
        for t in (1.0, 1.2):
            stream.step(t, [40.0, -30.0])
        states.append(stream.state)
    assert same(states[0], states[1]) and not same(states[0], states[2])
    with pytest.raises(ValueError, match="follows no jumps"):
        LinearStream(make_config("oscillator", nu=None), state=states[0])
    with pytest.raises(ValueError, match=r"state\.jump_evidence"):
        LinearStream(config, state=states[0]._replace(jump_evidence=None))


def test_what_a_step_gave_stays():
    """It is not overwritten by the next."""
    stream = LinearStream(make_config("velocity"))
    first = stream.step(0.0, [1.0, 2.0])
    kept, state = (first.mean.copy(), first.covariance.copy()), stream.state
    stream.step(1.0, [5.0, -3.0])
    assert np.array_equal(first.mean, kept[0]) and np.array_equal(first.covariance, kept[1])
    assert np.array_equal(state.mean, kept[0]) and np.array_equal(state.covariance, kept[1])


def test_common_times_and_many_distinct_lags(monkeypatch):
    """More lags than are worked on at a time, or kept."""
    from rfa.runtime.filters import dense_numba

    config = make_config("oscillator")
    times, y, _ = make_data("oscillator", 5)
    expected = filter_streams(config, times[0], y)
    alone, _ = eager(config, times[:1], y[3:4], np.ones((1, 40)))
    assert gap(expected.mean[3], alone["state_mean"][0]) <= TOLERANCE
    monkeypatch.setattr(dense_numba, "LAGS_AT_ONCE", 7)
    monkeypatch.setattr(dense_numba, "KEPT_LAGS", 3)
    assert np.array_equal(filter_streams(config, times[0], y).mean, expected.mean)
    stream = LinearStream(config)
    last = [stream.step(t, value).mean for t, value in zip(times[0], y[0], strict=True)][-1]
    assert gap(last, expected.mean[0, -1]) <= TOLERANCE


def test_missing_is_nan_or_none():
    config = make_config("velocity")
    streams = [LinearStream(config) for _ in range(2)]
    for stream, values in zip(streams, ([[1.0, math.nan], [math.nan] * 2], [[1, None], None]), strict=True):
        for i, value in enumerate(values):
            last = stream.step(float(i), value)
    assert np.array_equal(last.mean, streams[0].state.mean)
    assert same(streams[0].state, streams[1].state)
    assert last.weight == 1 and last.nis == 0


def test_bad_arguments_are_refused_and_leave_the_stream_as_it_was():
    config = make_config("velocity")
    stream = LinearStream(config)
    with pytest.raises(ValueError, match="before its first"):
        _ = stream.state
    with pytest.raises(ValueError, match="t must be"):
        stream.step(math.inf, [1.0, 2.0])
    stream.step(1.0, [1.0, 2.0])
    before = stream.state
    for arguments, message in (
        ((0.5, [1.0, 2.0]), "t must be"),
        ((math.nan, [1.0, 2.0]), "t must be"),
        ((math.inf, [1.0, 2.0]), "t must be"),
        ((2.0, [1.0]), "y must have 2"),
        ((2.0, [1.0, 2.0, 3.0]), "y must have 2"),
        ((2.0, [1.0, math.inf]), "y must be finite"),
        ((2.0, [1.0, "2"]), "y and noise must be numbers"),
        ((2.0, [1.0, 2.0], 0.0), "noise"),
        ((2.0, [1.0, 2.0], math.nan), "noise"),
        ((2.0, [1.0, 2.0], math.inf), "noise"),
    ):
        with pytest.raises(ValueError, match=message):
            stream.step(*arguments)
    assert same(before, stream.state)
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
    assert rfa.LinearStream is LinearStream and rfa.filter_streams is filter_streams
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = rfa.nothing_here
