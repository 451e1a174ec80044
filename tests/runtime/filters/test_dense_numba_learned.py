"""The compiled linear filter that learns its noise, against the eager one in float64."""

import copy
import pickle

import numpy as np
import pytest
import torch

from rfa.runtime.filters.dense_numba import LANES, SMALL_SENSOR, SMALL_STATE, LinearStream, StreamState, filter_streams
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.noise_law import MEMORY, NOISE_FACTORS, PRIOR_COUNTS
from tests.rounding import DRAWS, Rounding, allowed_error
from tests.runtime.filters.test_dense_numba import JUMP, SYSTEMS, eager, gap, make_data, same

# The last two have the same kernels, which do for all sizes and compile for half a minute.
KINDS = ("velocity", "chain", "sensors")
OF_ANY_SIZE = pytest.mark.slow
SOME = ["velocity", pytest.param("sensors", marks=OF_ANY_SIZE)]
ALL = [*SOME, pytest.param("chain", marks=OF_ANY_SIZE)]
SEEDS = range(12)


def make_config(name: str, **changes) -> LinearFilterConfig:
    return LinearFilterConfig.from_dict({**SYSTEMS[name], "nu": 4.0, "rule": "learned", **changes})


def spread(rng, size: int, least: float) -> np.ndarray:
    root = rng.normal(size=(size, size))
    return root @ root.T / size + least * np.eye(size)


def random_config(seed: int) -> LinearFilterConfig:
    """Beyond the sizes with kernels of their own; every second sees its first states as they are."""
    rng = np.random.default_rng(seed)
    p = 1 + seed % 4
    n = max(SMALL_STATE + 1, p + seed % 3)
    drift = rng.normal(size=(n, n)) / np.sqrt(n) - 1.5 * np.eye(n)
    return LinearFilterConfig.from_dict(
        {
            "drift": drift.tolist(),
            "process_noise": spread(rng, n, 0.01).tolist(),
            "measurement_noise": spread(rng, p, 0.1).tolist(),
            "observation": (np.eye(p, n) if seed % 2 else rng.normal(size=(p, n))).tolist(),
            "initial_covariance": (10.0 ** rng.uniform(-2, 2) * spread(rng, n, 0.1)).tolist(),
            "nu": float(rng.uniform(2.5, 9)),
            "rule": "learned",
            "reacquire": [None, 2, 6][seed % 3],
        }
    )


def random_data(config: LinearFilterConfig, seed: int, streams: int = 3, steps: int = 60):
    """Outliers, a jump, and components and whole observations missing."""
    rng = np.random.default_rng(seed)
    p = len(config.measurement_noise)
    y = rng.normal(size=(streams, steps, p)) * np.where(rng.random((streams, steps, 1)) < 0.1, 30.0, 1.0)
    y[:, steps // 2 :] += 40.0
    y[rng.random((streams, steps, p)) < 0.15] = np.nan
    y[rng.random((streams, steps)) < 0.05] = np.nan
    return np.cumsum(rng.exponential(0.2, (streams, steps)), axis=1), y, rng.uniform(0.5, 3.0, (streams, steps))


def check(config: LinearFilterConfig, times, y, noise) -> tuple[list[dict], np.ndarray]:
    """Every number of many streams and of one; the states of the eager filter, and the weights."""
    expected, states = eager(config, times, y, noise)
    allowed = allowed_gaps(config, (times, y, noise), all_of(expected, states))
    found = filter_streams(config, times, y, noise=noise, covariances=True)
    ours = {"state_mean": found.mean, "state_covariance": found.covariance, "weight": found.weight, "nis": found.nis}
    for field, values in ours.items():
        assert gap(values, expected[field]) <= allowed[field], field
    assert gap(found.state.noise_counts, states[-1]["noise_counts"]) <= allowed["noise_counts"]
    stream = LinearStream(config)
    for i in range(y.shape[1]):
        step, state = stream.step(times[0, i], y[0, i], noise[0, i]), stream.state
        for value, field in zip(step, expected, strict=True):
            assert gap(value, expected[field][0, i]) <= allowed[field], (field, i)
        assert gap(state.noise_counts, states[i]["noise_counts"][0]) <= allowed["noise_counts"], i
        if config.reacquire is not None:
            assert gap(state.jump_offset, states[i]["jump_offset"][0]) <= allowed["jump_offset"]
            assert gap(state.jump_evidence, states[i]["jump_evidence"][0, 0]) <= allowed["jump_evidence"]
    return states, found.weight


def all_of(outputs: dict, states: list[dict]) -> dict[str, np.ndarray]:
    """Every number of every stream and step, by name, streams first."""
    return {**outputs, **{name: np.stack([state[name] for state in states], 1) for name in states[0]}}


def allowed_gaps(config: LinearFilterConfig, arrays, expected) -> dict[str, float]:
    """What rounding explains, of streams that run over and over side by side in one run whose operations are off."""
    streams = len(arrays[1])
    with Rounding(0):
        drawn = all_of(*eager(config, *(np.concatenate([array] * DRAWS) for array in arrays)))
    return {
        name: allowed_error(
            [gap(drawn[name][at : at + streams], right) for at in range(0, DRAWS * streams, streams)], torch.float64
        )
        for name, right in expected.items()
    }


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("patience", [None, 3])
def test_streams_follow_the_eager_filter(name, patience):
    states, weight = check(make_config(name, reacquire=patience), *make_data(name, 3))
    assert weight.min() < 0.01 and weight.max() == 1
    assert states[-1]["noise_counts"].sum(1) == pytest.approx(MEMORY + 0.1 * sum(PRIOR_COUNTS))
    if patience is not None:
        # Evidence was counted, and spent on a jump.
        evidence = np.array([state["jump_evidence"].ravel() for state in states])
        assert (np.diff(evidence, axis=0) < -1).any()


@OF_ANY_SIZE
@pytest.mark.parametrize("seed", SEEDS)
def test_systems_of_any_size_follow_the_eager_filter(seed):
    config = random_config(seed)
    check(config, *random_data(config, seed))


def test_the_cases_reach_both_ways_of_working():
    sizes = [(len(SYSTEMS[name]["drift"]), len(SYSTEMS[name]["measurement_noise"])) for name in KINDS]
    assert {n <= SMALL_STATE and p <= SMALL_SENSOR for n, p in sizes} == {True, False}
    shapes = {np.array(random_config(seed).observation).shape for seed in SEEDS}
    assert {p for p, _ in shapes} == {1, 2, 3, 4}


@pytest.mark.parametrize("name", SOME)
def test_a_stream_has_the_same_numbers_in_any_crowd(name):
    """Bit for bit, also beside one that is silent and one that is beyond all measure."""
    config, streams = make_config(name), LANES + 3
    times, y, noise = make_data(name, streams, steps=JUMP + 8)
    y[1], y[2, 5:] = np.nan, 1e12
    crowd = filter_streams(config, times, y, noise=noise, threads=2)
    for i in (0, LANES - 1, LANES, streams - 1):
        alone = filter_streams(config, times[i], y[i : i + 1], noise=noise[i : i + 1])
        assert np.array_equal(alone.mean[0], crowd.mean[i])
        assert np.array_equal(alone.weight[0], crowd.weight[i])
        assert np.array_equal(alone.state.noise_counts[0], crowd.state.noise_counts[i])


@pytest.mark.parametrize("cut", [15, JUMP + 2])
def test_streams_go_on_from_a_state(cut):
    """Bit for bit, and in the middle of a suspicion."""
    config = make_config("velocity")
    times, y, _ = make_data("velocity", 4)
    whole = filter_streams(config, times, y)
    first = filter_streams(config, times[:, :cut], y[:, :cut])
    rest = filter_streams(config, times[:, cut:], y[:, cut:], state=first.state)
    assert np.array_equal(rest.mean, whole.mean[:, cut:])
    assert same(rest.state, whole.state)
    forgetful = filter_streams(config, times[:, cut:], y[:, cut:], state=first.state._replace(noise_counts=None))
    assert not np.array_equal(forgetful.mean, rest.mean)

    one = LinearStream(config)
    for i in range(cut):
        one.step(times[0, i], y[0, i])
    others = [LinearStream(config, state=one.state), copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
    for i in range(cut, 40):
        step = one.step(times[0, i], y[0, i])
        assert all(np.array_equal(other.step(times[0, i], y[0, i]).mean, step.mean) for other in others)
    assert all(same(other.state, one.state) for other in others)


def test_nothing_seen_leaves_the_counts_and_no_counts_are_the_priors():
    config = make_config("velocity")
    given = StreamState(np.ones(4), np.eye(4), 0.0)
    stream = LinearStream(config, state=given)
    assert stream.step(1.0, None).nis == 0
    assert np.array_equal(stream.state.noise_counts, PRIOR_COUNTS)
    stream.step(2.0, [1.0, None])
    assert stream.state.noise_counts.sum() == pytest.approx(sum(PRIOR_COUNTS) + 1)
    # Another law of the noise is another filter.
    wide = np.where(np.array(NOISE_FACTORS) == 100, 10.0, 1e-3)
    steps = [
        LinearStream(config, state=given._replace(noise_counts=counts)).step(1.0, [4.0, 3.0])
        for counts in (None, PRIOR_COUNTS, wide)
    ]
    assert np.array_equal(steps[0].mean, steps[1].mean)
    assert steps[2].weight < 0.1 < steps[0].weight


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("size", [1e12, 1e200])
def test_what_is_far_away_stays_finite(name, size):
    config = make_config(name, reacquire=None, initial_covariance=np.eye(len(SYSTEMS[name]["drift"])).tolist())
    times, y = np.arange(12) * 0.1, np.zeros((2, 12, len(SYSTEMS[name]["measurement_noise"])))
    y[1, 6] = size
    found = filter_streams(config, times, y, covariances=True)
    assert np.isfinite(found.mean).all() and np.isfinite(found.covariance).all()
    assert np.isfinite(found.state.noise_counts).all() and 0 < found.weight[1, 6] <= 1e-11
    stream = LinearStream(config)
    steps = [stream.step(t, value) for t, value in zip(times, y[1], strict=True)]
    assert all(np.isfinite(step.mean).all() for step in steps)
    if size == 1e12:
        # The widest factor goes with it, and not beyond 1e12: it moves the state as one of a deviation does.
        assert np.abs(found.mean[1, 6] - found.mean[0, 6]).max() < 10


@pytest.mark.parametrize("name", SOME)
def test_the_covariance_stays_positive(name):
    """A prior that says nothing, and sensors that nearly say the same, hundreds of times."""
    n, p = len(SYSTEMS[name]["drift"]), len(SYSTEMS[name]["measurement_noise"])
    noise = np.full((p, p), 1.0) + 1e-7 * np.eye(p)
    config = make_config(name, measurement_noise=noise.tolist(), initial_covariance=(1e9 * np.eye(n)).tolist())
    rng = np.random.default_rng(0)
    y = rng.normal(size=(4, 800, 1)) * np.where(rng.random((4, 800, 1)) < 0.1, 50.0, 1.0)
    y = y + 3e-4 * rng.normal(size=(4, 800, p))
    y[rng.random(y.shape) < 0.1] = np.nan
    found = filter_streams(config, np.arange(800) * 0.01, y, covariances=True)
    assert np.array_equal(found.covariance, found.covariance.swapaxes(2, 3))
    assert np.linalg.eigvalsh(found.covariance).min() > 0


def test_without_robust_weights_nothing_is_learned():
    times, y, _ = make_data("velocity", 2)
    kalman = filter_streams(make_config("velocity", nu=None, rule="capped"), times, y)
    found = filter_streams(make_config("velocity", nu=None), times, y)
    assert np.array_equal(found.mean, kalman.mean)
    assert found.state.noise_counts is None


def test_counts_that_are_none_are_refused():
    state = StreamState(np.ones(4), np.eye(4), 0.0, noise_counts=np.array(PRIOR_COUNTS))
    for changes in ({"rule": "capped"}, {"nu": None}):
        with pytest.raises(ValueError, match="learns no noise"):
            LinearStream(make_config("velocity", **changes), state=state)
    for counts in (np.ones(3), np.zeros(7), np.full(7, np.nan), np.arange(7.0) - 1):
        with pytest.raises(ValueError, match=r"state\.noise_counts"):
            LinearStream(make_config("velocity"), state=state._replace(noise_counts=counts))
    y = np.zeros((2, 3, 2))
    batch = StreamState(np.ones((2, 4)), np.tile(np.eye(4), (2, 1, 1)), np.zeros(2))
    with pytest.raises(ValueError, match=r"state\.noise_counts must have shape \[2, 7\]"):
        filter_streams(make_config("velocity"), np.arange(3.0), y, state=batch._replace(noise_counts=np.ones(7)))


def test_a_long_quiet_time_takes_no_robustness():
    """An outlier of 8 deviations has as little weight after 20,000 quiet observations as after 200."""
    # Four states, of which one is measured: the sizes that these tests compile.
    config = {
        "drift": (-0.1 * np.eye(4)).tolist(),
        "process_noise": (0.05 * np.eye(4)).tolist(),
        "measurement_noise": np.eye(2).tolist(),
        "observation": np.eye(2, 4).tolist(),
        "nu": 7,
        "rule": "learned",
    }
    rng, weights = np.random.default_rng(0), []
    stream, state = LinearStream(LinearFilterConfig.from_dict(config)), 0.0
    for i in range(20_000):
        state = state * np.exp(-0.1) + rng.normal() * np.sqrt(0.05)
        last = stream.step(float(i), [state + rng.normal(), None])
        if i in (199, 19_999):
            wide = np.sqrt(last.covariance[0, 0] + 1)
            far = [last.mean[0] * np.exp(-0.1) + 8 * wide, None]
            weights.append(copy.copy(stream).step(i + 1.0, far).weight)
    assert 0.02 < weights[0] < 0.1 and weights[1] < 1.5 * weights[0]
