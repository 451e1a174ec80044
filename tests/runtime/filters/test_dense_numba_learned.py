"""The compiled linear filter that learns its noise, against the eager one in float64."""

import numpy as np
import pytest
import torch

from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.robust_constants import MEMORY, NOISE_FACTORS, PRIOR_COUNTS
from tests.rounding import DRAWS, Rounding, allowed_error
from tests.runtime.filters.test_dense_numba import SYSTEMS, eager, gap, make_data, run

SOME = ("velocity", "sensors")
SEEDS = range(12)


def make_config(name: str, **changes) -> LinearFilterConfig:
    return LinearFilterConfig.from_dict({**SYSTEMS[name], "nu": 4.0, "rule": "learned", **changes})


def spread(rng, size: int, least: float) -> np.ndarray:
    root = rng.normal(size=(size, size))
    return root @ root.T / size + least * np.eye(size)


def random_config(seed: int) -> LinearFilterConfig:
    """Every second sees its first states as they are."""
    rng = np.random.default_rng(seed)
    p = 1 + seed % 4
    n = max(5, p + seed % 3)
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
    """Every number of the streams; the states of the eager filter, and the weights."""
    expected, states = eager(config, times, y, noise)
    everything = all_of(expected, states)
    allowed = allowed_gaps(config, (times, y, noise), everything)
    found = run(config, times, y, noise)
    # "mean" and "covariance" are those of the state in one, and of what is observed in the other.
    for name in (everything.keys() & found.keys()) - {"mean", "covariance"}:
        assert gap(found[name], everything[name]) <= allowed[name], name
    assert "noise_counts" in found and ("jump_offset" in found) == (config.reacquire is not None)
    return states, found["weight"]


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


@pytest.mark.parametrize("name", [*SOME, "chain"])
@pytest.mark.parametrize("patience", [None, 3])
def test_streams_follow_the_eager_filter(name, patience):
    states, weight = check(make_config(name, reacquire=patience), *make_data(name, 3))
    assert weight.min() < 0.01 and weight.max() == 1
    assert states[-1]["noise_counts"].sum(1) == pytest.approx(MEMORY + 0.1 * sum(PRIOR_COUNTS))
    if patience is not None:
        # Evidence was counted, and spent on a jump.
        evidence = np.array([state["jump_evidence"].ravel() for state in states])
        assert (np.diff(evidence, axis=0) < -1).any()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_systems_of_any_size_follow_the_eager_filter(seed):
    config = random_config(seed)
    check(config, *random_data(config, seed))


@pytest.mark.parametrize("name", SOME)
def test_a_stream_has_the_same_numbers_in_any_crowd(name):
    """Bit for bit, also beside one that is silent and one that is beyond all measure."""
    config = make_config(name)
    times, y, noise = make_data(name, 5)
    y[1], y[2, 5:] = np.nan, 1e12
    crowd = run(config, times, y, noise)
    for i in (0, 4):
        alone = run(config, times[i : i + 1], y[i : i + 1], noise[i : i + 1])
        assert all(np.array_equal(alone[part][0], crowd[part][i]) for part in crowd)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("size", [1e12, 1e100])
def test_what_is_far_away_stays_finite(name, size):
    config = make_config(name, reacquire=None, initial_covariance=np.eye(len(SYSTEMS[name]["drift"])).tolist())
    times, y = np.arange(12) * 0.1, np.zeros((2, 12, len(SYSTEMS[name]["measurement_noise"])))
    y[1, 6] = size
    found = run(config, times, y)
    assert all(np.isfinite(values).all() for values in found.values())
    assert 0 < found["weight"][1, 6] <= 1e-11
    if size == 1e12:
        # The widest factor goes with it, and not beyond 1e12: it moves the state as one of a deviation does.
        assert np.abs(found["state_mean"][1, 6] - found["state_mean"][0, 6]).max() < 10


@pytest.mark.parametrize("name", SOME)
def test_the_covariance_stays_positive(name):
    """A wide prior, and sensors that nearly say the same, hundreds of times.

    The first innovation's covariance has a condition number of 5e13; from 4e15 on float64 has no digits left.
    """
    n, p = len(SYSTEMS[name]["drift"]), len(SYSTEMS[name]["measurement_noise"])
    noise = np.full((p, p), 1.0) + 1e-7 * np.eye(p)
    config = make_config(name, measurement_noise=noise.tolist(), initial_covariance=(1e6 * np.eye(n)).tolist())
    rng = np.random.default_rng(0)
    y = rng.normal(size=(4, 800, 1)) * np.where(rng.random((4, 800, 1)) < 0.1, 50.0, 1.0)
    y = y + 3e-4 * rng.normal(size=(4, 800, p))
    y[rng.random(y.shape) < 0.1] = np.nan
    covariance = run(config, np.arange(800) * 0.01, y)["state_covariance"]
    assert np.array_equal(covariance, covariance.swapaxes(2, 3))
    assert np.linalg.eigvalsh(covariance).min() > 0


def test_a_long_quiet_time_takes_no_robustness():
    """An outlier of 8 deviations has as little weight after 20,000 quiet observations as after 200."""
    config = LinearFilterConfig.from_dict(
        {
            "drift": (-0.1 * np.eye(4)).tolist(),
            "process_noise": (0.05 * np.eye(4)).tolist(),
            "measurement_noise": np.eye(2).tolist(),
            "observation": np.eye(2, 4).tolist(),
            "nu": 7,
            "rule": "learned",
        }
    )
    rng, state = np.random.default_rng(0), 0.0
    y = np.full((1, 20_000, 2), np.nan)
    for i in range(y.shape[1]):
        state = state * np.exp(-0.1) + rng.normal() * np.sqrt(0.05)
        y[0, i, 0] = state + rng.normal()
    times = np.arange(20_001.0)
    quiet, weights = run(config, times[:-1], y), []
    for count in (200, 20_000):
        wide = np.sqrt(quiet["state_covariance"][0, count - 1, 0, 0] + 1)
        far = [[[quiet["state_mean"][0, count - 1, 0] * np.exp(-0.1) + 8 * wide, np.nan]]]
        after = run(config, times[: count + 1], np.concatenate([y[:, :count], far], axis=1))
        weights.append(after["weight"][0, -1])
    assert 0.02 < weights[0] < 0.1 and weights[1] < 1.5 * weights[0]


@pytest.mark.parametrize("truth", [15.0, 1 / 3])
def test_the_scale_of_the_noise_is_learned(truth):
    """R is said to be 15 times too small, or 3 times too large: the mean logarithm comes within a factor of 2."""
    stated = np.array([[0.5, 0.1], [0.1, 0.7]])
    config = LinearFilterConfig.from_dict(
        {
            "drift": (-0.01 * np.eye(2)).tolist(),
            "process_noise": (1e-4 * np.eye(2)).tolist(),
            "measurement_noise": stated.tolist(),
            "initial_covariance": [[4.0, 0.5], [0.5, 3.0]],
            "nu": 4.0,
            "rule": "learned",
            "reacquire": None,
        }
    )
    y = np.random.default_rng(0).multivariate_normal(np.zeros(2), truth * stated, 600)
    counts = run(config, np.arange(600.0), y[None])["noise_counts"][0, -1]
    share = counts / counts.sum()
    assert abs(np.log(NOISE_FACTORS) @ share - np.log(truth)) < np.log(2)
