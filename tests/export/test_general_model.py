"""A constant-velocity filter from its config file through export to the serving runtime, in both modes."""

import json

import numpy as np
import pytest

from rfa.export.filter_export import export_filter
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.training.filter import train_filter
from tests.model.joint_gaussian import System, path_posterior, van_loan

# The whole way with another system: `test_filter_export.py` goes it with the oscillator.
pytestmark = pytest.mark.slow

DRIFT = np.array([[0.0, 1.0], [0.0, 0.0]])
NOISE, R, PRIOR = np.diag([0.0, 0.2]), 0.25, np.diag([9.0, 1.0])


@pytest.fixture(scope="module")
def runtime(tmp_path_factory) -> FilterRuntime:
    folder = tmp_path_factory.mktemp("velocity")
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.2, 600))
    lines = ["t,x"]
    state = np.array([0.0, 1.0])
    for i, t in enumerate(times):
        f, q = van_loan(DRIFT, NOISE, t - times[i - 1] if i else 0.0)
        state = rng.multivariate_normal(f @ state, q)
        lines.append(f"{t:.6f},{state[0] + np.sqrt(R) * rng.standard_normal():.6f}")
    (folder / "series.csv").write_text("\n".join(lines) + "\n")
    config = {
        "family": "linear",
        "model": {
            "drift": DRIFT.tolist(),
            "process_noise": NOISE.tolist(),
            "measurement_noise": [[R]],
            "observation": [[1.0, 0.0]],
            "initial_covariance": PRIOR.tolist(),
            "nu": None,
        },
        "training": {"length": 24},
    }
    (folder / "config.json").write_text(json.dumps(config))
    train_filter(folder / "config.json", str(folder / "series.csv"), folder / "run", show_progress=False)
    export_filter(folder / "run", folder / "bundle")
    return FilterRuntime(open_bundle(folder / "bundle"))


def kalman(times, values):
    """Means and variances of the position, and the last state."""
    mean, covariance, rows = np.zeros(2), PRIOR, []
    for i, value in enumerate(values):
        if i:
            f, q = van_loan(DRIFT, NOISE, times[i] - times[i - 1])
            mean, covariance = f @ mean, f @ covariance @ f.T + q
        if value is not None:
            gain = covariance[:, 0] / (covariance[0, 0] + R)
            mean, covariance = mean + gain * (value[0] - mean[0]), covariance - np.outer(gain, covariance[0])
        rows.append((mean[0], covariance[0, 0]))
    return np.array(rows), mean, covariance


def test_served_constant_velocity_is_the_kalman_filter_at_irregular_times(runtime):
    rng = np.random.default_rng(4)
    times = np.cumsum(rng.exponential(0.3, 40)).tolist()
    times[25:] = [t + 40.0 for t in times[25:]]
    values: list[list[float] | None] = [[float(2 * t + rng.normal())] for t in times]
    values[7] = None
    result = runtime.filter(times, values, horizon=(0.5, 20.0))
    expected, mean, covariance = kalman(times, values)
    # float64 of numbers up to 100: rounding 2e-14, times the few tens of steps that remember it, and ten for F and Q of
    # lags of 40.
    found = np.array([step.mean[0] for step in result.steps])
    assert np.abs(found - expected[:, 0]).max() <= 1e-11
    (state,) = result.state.tensors.values()
    assert np.allclose(runtime.steps.split(state[None])["covariance"][0], covariance, rtol=1e-11)
    for point, ahead in zip(result.steps[-1].forecast, (0.5, 20.0), strict=True):
        assert abs(point.mean[0] - (mean[0] + ahead * mean[1])) <= 2e-11
    assert len(result.steps[7].mean) == 1 and result.steps[7].weight is None


def smoothing_data() -> tuple[list[float], list[list[float] | None], list[float]]:
    """Irregular times and a long gap, nothing seen at times, less and more noise."""
    rng = np.random.default_rng(6)
    lags = rng.exponential(0.3, 30)
    lags[15] = 12.0
    times = np.cumsum(lags)
    values: list[list[float] | None] = [[float(0.7 * t + rng.normal() / 2)] for t in times]
    values[4] = values[20] = None
    return times.tolist(), values, rng.uniform(0.5, 2.0, 30).tolist()


def test_served_smoothing_is_the_posterior_of_the_path(runtime):
    times, values, noise = smoothing_data()
    result = runtime.filter(times, values, noise=noise, smooth=True, samples=2000, seed=3)
    system = System(DRIFT, NOISE, np.array([[1.0, 0.0]]), np.zeros(1), np.array([[R]]), np.zeros(2), PRIOR)
    y = np.array([[0.0] if value is None else value for value in values])
    seen = np.array([[value is not None] for value in values])
    mean, covariance = path_posterior(system, np.array(times), y, seen, np.square(noise))
    deviation = np.sqrt(np.diagonal(covariance)[::2])
    found = np.array([step.mean[0] for step in result.smoothed])
    # float32 of numbers up to 20 in the filter's steps, remembered over some ten of them, beside deviations of 0.1.
    assert np.abs(found - mean[::2]).max() <= 1e-4
    scale = np.array([step.std[0] for step in result.smoothed]) / deviation
    assert np.allclose(scale, scale[-1], rtol=1e-3)
    # Draws of 2,000: a covariance is off by 3 standard errors of sqrt(2 / 2000) at the most of 30 steps, or seldom 4.
    paths = np.array([step.samples[:, 0] for step in result.steps])
    rest = (paths - mean[::2, None]) / (scale[-1] * deviation[:, None])
    correlation = covariance[::2, ::2] / np.outer(deviation, deviation)
    assert np.abs(rest @ rest.T / 2000 - correlation).max() <= 4.5 * np.sqrt(2 / 2000)


@pytest.mark.parametrize("lag", [0, 4])
def test_served_smoothing_with_a_lag_is_that_of_so_many_later_observations(runtime, lag):
    times, values, noise = smoothing_data()
    found = runtime.filter(times, values, noise=noise, smooth=True, lag=lag).smoothed
    assert len(found) == 30
    for i in (0, 5, 14, 29):
        part = slice(0, i + lag + 1)
        expected = runtime.filter(times[part], values[part], noise=noise[part], smooth=True).smoothed[i]
        assert found[i] == expected


def test_segments_of_a_served_stream_go_on(runtime):
    times = [0.3 * i for i in range(12)]
    values = [[float(np.sin(t))] for t in times]
    whole = runtime.filter(times, values)
    first = runtime.filter(times[:5], values[:5])
    rest = runtime.filter(times[5:], values[5:], state=runtime.unpack(runtime.pack(first.state)))
    assert rest.steps[-1].mean == whole.steps[-1].mean
