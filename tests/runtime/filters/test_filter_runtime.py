"""The runtime's replies: streaming, seeds, missing values, refusals, smoothing against brute-force conditioning."""

import gc
import math
from pathlib import Path

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.filter import FilterRuntime
from tests.model.joint_gaussian import System, path_posterior
from tests.soak.courses import as_sent

BUNDLES = Path(__file__).parents[3] / "bundles"


@pytest.fixture(scope="module", params=["linear", "oscillator"])
def runtime(request) -> FilterRuntime:
    return FilterRuntime(open_bundle(BUNDLES / request.param))


@pytest.fixture(scope="module")
def linear() -> FilterRuntime:
    return FilterRuntime(open_bundle(BUNDLES / "linear"))


def make_stream(n: int = 12, seed: int = 0) -> tuple[list[float], list[list[float | None] | None]]:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(0.1, n)).tolist()
    values: list[list[float | None] | None] = [[float(x) for x in row] for row in rng.normal(size=(n, 2)).cumsum(0)]
    values[3], values[5] = None, [values[5][0], None]
    return times, values


OPTIONS = {"levels": (0.5, 0.9), "horizon": (0.1, 0.5), "samples": 3, "seed": 7}


def test_every_field_is_sound(runtime):
    times, values = make_stream()
    for mode in runtime.modes:
        result = runtime.filter(times, values, mode=mode, **OPTIONS)
        assert [step.index for step in result.steps] == list(range(12))
        for step, value in zip(result.steps, values, strict=True):
            assert len(step.mean) == len(step.std) == 2 and min(step.std) > 0 and step.precision > 0
            assert 0 < step.confidence <= 1
            for mean, inner, outer in zip(step.mean, step.interval["0.5"], step.interval["0.9"], strict=True):
                assert outer[0] < inner[0] < mean < inner[1] < outer[1]
            assert [point.t for point in step.forecast] == [step.t + 0.1, step.t + 0.5]
            assert np.shape(step.samples) == (3, 2)
            if value is None:
                assert step.weight is step.innovation is step.nis is step.anomaly is None
            else:
                assert 0 < step.weight <= 1 and 0 <= step.anomaly <= 1
                assert [x is None for x in step.innovation] == [x is None for x in value]


def test_samples_follow_the_seed_and_the_reported_spread(linear):
    times, values = make_stream(6)
    draws = {seed: linear.filter(times, values, samples=4000, seed=seed).steps[-1] for seed in (1, 2)}
    assert not np.array_equal(draws[1].samples, draws[2].samples)
    again = linear.filter(times, values, samples=4000, seed=1).steps[-1]
    assert np.array_equal(again.samples, draws[1].samples)
    assert np.allclose(np.mean(again.samples, 0), again.mean, atol=0.06)
    assert np.allclose(np.std(again.samples, 0), again.std, rtol=0.05)


def test_an_answer_with_many_samples_is_as_quickly_freed_as_one_with_few(linear):
    """A reader that stands still leaves hundreds of answers behind; to free them must not hold the others up."""
    times, values = make_stream(6)
    few, many = (
        linear.filter(times, values, samples=samples, seed=1, levels=(0.9,), horizon=(0.1,)).steps[-1]
        for samples in (1, 1024)
    )
    assert np.shape(many.samples) == (1024, 2)
    assert count_objects(many) == count_objects(few)


def count_objects(value: object) -> int:
    """What goes when this goes, up to types."""
    seen, rest = set(), [value]
    while rest:
        found = rest.pop()
        if id(found) not in seen and not isinstance(found, type):
            seen.add(id(found))
            rest += gc.get_referents(found)
    return len(seen)


@pytest.mark.parametrize("value", [1e2, 1e6, 1e12])
def test_an_absurd_reading_is_survived(runtime, value):
    """However far off: the likelihood of such a reading is small or underflows, the state is sound."""
    times, values = [0.1 * i for i in range(8)], [[1.0, 0.5]] * 4 + [[value, -value]] + [[1.0, 0.5]] * 3
    result = runtime.filter(times, values, horizon=(0.1,))
    assert 0 < result.steps[4].weight < 1e-3
    assert result.steps[4].anomaly == pytest.approx(1 - 0.1 / 4)  # as rare as may be after three scores
    assert np.abs(np.array(result.steps[-1].mean) - [1.0, 0.5]).max() < 1
    assert math.isfinite(result.log_likelihood) and result.log_likelihood < -50


def test_smoothing_is_the_posterior_of_the_path_and_trajectories_follow_it(linear):
    times, values = make_stream(8, seed=4)
    values = [None if row is None else [None if x is None else 0.2 * x for x in row] for row in values]
    result = linear.filter(times, values, smooth=True, samples=3000, seed=3)
    assert all(step.weight in (None, 1.0) for step in result.steps)
    smoothed = np.array([step.mean for step in result.smoothed])
    # No outliers, so that all weights are 1.
    drift, eye = np.array([[0.9, -2.0], [1.0, -1.1]]), np.eye(2)
    system = System(drift, 0.3 * eye, eye, np.zeros(2), 0.5 * eye, np.zeros(2), 4.0 * eye)
    y = np.array([row or [None, None] for row in values], float)
    mean, _ = path_posterior(system, np.array(times), y, np.isfinite(y), np.ones(len(y)))
    assert np.abs(smoothed - mean.reshape(-1, 2)).max() < 1e-4
    paths = np.array([step.samples for step in result.steps])
    assert np.abs(paths.mean(1) - smoothed).max() < 0.08
    assert np.allclose(paths.std(1), [step.std for step in result.smoothed], rtol=0.08)
    # Neighbours on a path move together.
    assert np.corrcoef(paths[6, :, 0], paths[7, :, 0])[0, 1] > 0.3


def test_attention_hands_its_state_to_the_recurrence():
    runtime = FilterRuntime(open_bundle(BUNDLES / "oscillator"))
    times, values = make_stream()
    first = runtime.filter(times[:8], values[:8], mode="attention")
    rest = runtime.filter(times[8:], values[8:], state=first.state)
    plain = runtime.filter(times, values).steps[8:]
    assert rest.steps[0].index == 8
    assert np.abs(np.array([s.mean for s in rest.steps]) - [s.mean for s in plain]).max() < 2


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"observations": [[1.0]]}, "observations[0]"),
        ({"observations": []}, "observations"),
        ({"observations": [[1.0, math.inf]]}, "observations[0][1]"),
        ({"observations": [[1.0, 1e300]]}, "observations[0][1]"),
        ({"times": [math.inf]}, "times[0]"),
        ({"times": [0.0, 1.0]}, "times"),
        ({"times": [1.0, 0.0], "observations": [None, None]}, "times[1]"),
        ({"noise": [0.0]}, "noise[0]"),
        ({"noise": [1.0, 1.0]}, "noise"),
        ({"levels": (1.0,)}, "levels[0]"),
        ({"horizon": (-1.0,)}, "horizon[0]"),
        ({"mode": "other"}, "mode"),
        ({"samples": -1}, "samples"),
        ({"lag": -1, "smooth": True}, "lag"),
        ({"lag": 1}, "lag"),
    ],
)
def test_bad_input_is_refused_by_name(linear, change, param):
    request = {"times": [0.0], "observations": [[1.0, 1.0]], **change}
    with pytest.raises(InvalidInput) as caught:
        linear.filter(**request)
    assert caught.value.param == param


def test_nan_is_missing_as_none_is(linear):
    times = [0.0, 0.1, 0.2]
    nan = linear.filter(times, [[1.0, math.nan], [math.nan, math.nan], [0.5, 0.2]])
    none = linear.filter(times, [[1.0, None], None, [0.5, 0.2]])
    assert as_sent(nan.steps) == as_sent(none.steps)
    assert (nan.steps[0].innovation[1], nan.steps[1].weight, nan.steps[1].anomaly) == (None, None, None)
