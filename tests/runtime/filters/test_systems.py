"""Systems without a bundle: the laws of their streams, their numbers beside other libraries, and what they may take."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.compiled_system import MOST_STEP_WORK, SMALL, SystemRuntime
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.filters.system import System
from rfa.runtime.uncertainty.adaptive import GAMMA
from rfa.runtime.uncertainty.alarms import NEVER
from rfa.runtime.uncertainty.forecast_checks import INSIDE, SCORED
from rfa.runtime.uncertainty.interface import ReadoutOptions
from tests.model.joint_gaussian import van_loan
from tests.model.oracles import filterpy_filter

BUNDLES = Path(__file__).parents[3] / "bundles"
PLANE = {"preset": "constant_velocity", "dimensions": 2, "process_noise": 0.1, "measurement_noise": 0.25}
TURN = {"A": [[-0.1, -2], [2, -0.1]], "Q": 0.3, "C": [[1, 0], [0.5, 1]], "R": [[0.5, 0.1], [0.1, 0.4]]}
OUTPUTS = ("mean", "std", "innovation", "nis", "weight", "anomaly", "moments", "bands", "log_likelihood")


def runtime(document: dict[str, Any]) -> SystemRuntime:
    return SystemRuntime(System.from_document(document))


def course(rows: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Irregular times in eighths, so that they can be shifted exactly, and values with gaps and outliers."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.integers(0, 9, rows)) / 8
    values = rng.normal(size=(rows, size)).cumsum(axis=0) * 0.5
    values[rng.random(values.shape) < 0.1] = np.nan
    values[rows // 3] = np.nan
    values[rows // 2] += 300
    return times, values


def as_rows(values: np.ndarray) -> list[list[float | None] | None]:
    return [[None if x != x else x for x in row] for row in values.tolist()]  # noqa: PLR0124


def run(model: FilterRuntime, times: np.ndarray, values: np.ndarray, **more: Any) -> FilteredSequence:
    return model.filter(times.tolist(), as_rows(values), **{"horizon": (0.5, 4.0), **more})


def output(found: FilteredSequence, name: str) -> np.ndarray:
    return np.concatenate([getattr(piece.outputs, name) for piece in found.pieces])


# The numbers.


def test_it_is_the_bundle_of_the_same_matrices() -> None:
    """Bit for bit where nothing is calibrated."""
    bundle = open_bundle(BUNDLES / "linear")
    config = LinearFilterConfig(**bundle.config)
    times, values = course(400, 2)
    there, here = run(FilterRuntime(bundle), times, values), run(SystemRuntime(System.of(config)), times, values)
    for name in ("mean", "innovation", "nis", "weight", "log_likelihood"):
        np.testing.assert_array_equal(output(here, name), output(there, name))
    scales = output(there, "std") / output(here, "std")
    np.testing.assert_allclose(scales, scales[0, 0], rtol=1e-14)


@pytest.mark.parametrize("form", ["per unit of time", "per step", "preset"])
def test_without_robust_weights_it_is_the_kalman_filter(form: str) -> None:
    """filterpy's, in its own discrete form, on times that are multiples of the step."""
    drift, noise = np.array([[0.0, 1, 0], [0, 0, 0], [0, 0, -0.2]]), np.diag([0, 0.1, 0.3])
    sensor, error, prior = np.array([[1.0, 0, 1], [0, 0, 1]]), np.diag([0.25, 0.5]), np.diag([25.0, 4, 1])
    document: dict[str, Any] = {"C": sensor, "R": error, "P0": prior, "nu": None}
    if form == "per step":
        transition, gained = van_loan(drift, noise, 0.5)
        document |= {"F": transition, "Q": gained, "dt": 0.5}
    elif form == "per unit of time":
        document |= {"A": drift, "Q": noise}
    else:
        document = {**PLANE, "P0": 9, "nu": None}
        drift, noise = np.kron(np.eye(2), [[0, 1], [0, 0]]), np.kron(np.eye(2), np.diag([0, 0.1]))
        sensor, error, prior = np.kron(np.eye(2), [1.0, 0]), 0.25 * np.eye(2), 9 * np.eye(4)
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.integers(0, 4, 300)) * 0.5
    values = rng.normal(size=(300, 2)).cumsum(axis=0)
    values[rng.random(values.shape) < 0.2] = np.nan
    found = run(runtime(document), times, values)
    means, covariances = filterpy_filter(
        times, values, ~np.isnan(values), lambda lag: van_loan(drift, noise, lag), sensor, error, prior
    )
    seen = np.einsum("ai,tij,aj->ta", sensor, covariances, sensor)
    np.testing.assert_allclose(output(found, "mean"), means @ sensor.T, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(output(found, "std"), np.sqrt(seen), rtol=1e-9, atol=1e-9)
    for column, lead in enumerate((0.5, 4.0)):
        f, q = van_loan(drift, noise, lead)
        ahead = np.einsum("ai,tij,aj->ta", sensor @ f, covariances, sensor @ f) + np.diag(sensor @ q @ sensor.T + error)
        moments = output(found, "moments")[:, column]
        np.testing.assert_allclose(moments[:, 0], means @ (sensor @ f).T, rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(moments[:, 1], np.sqrt(ahead), rtol=1e-9)


# The laws.


def test_a_shift_of_time_changes_nothing() -> None:
    times, values = course(300, 2)
    here, there = run(runtime(TURN), times, values), run(runtime(TURN), times + 2.0**30, values)
    for name in OUTPUTS:
        np.testing.assert_array_equal(output(here, name), output(there, name))


def test_units_change_nothing_but_the_units() -> None:
    """Up to rounding: covariances whose condition is 1e4 at first, over some hundred steps."""
    times, values = course(300, 2)
    time, length = 60.0, 1000.0
    prior, units = np.diag([100.0, 1] * 2), length * np.diag([1, 1 / time] * 2)
    other = {**PLANE, "process_noise": 0.1 * length**2 / time**3, "measurement_noise": 0.25 * length**2}
    here = run(runtime({**PLANE, "P0": prior}), times, values)
    there = run(runtime({**other, "P0": units @ prior @ units}), time * times, length * values, horizon=(30.0, 240.0))
    for name in ("mean", "std", "innovation", "moments"):
        scale = length * np.nanmax(np.abs(output(here, name)))
        np.testing.assert_allclose(output(there, name), length * output(here, name), rtol=1e-9, atol=1e-9 * scale)
    np.testing.assert_allclose(output(there, "weight"), output(here, "weight"), rtol=1e-9)


@pytest.mark.parametrize("error", [0.25, 25.0])
def test_intervals_come_true_even_where_the_noise_is_misjudged(error: float) -> None:
    """The bound of adaptive conformal inference, whatever the data: (1 + γ) / (γ T)."""
    rng = np.random.default_rng(2)
    rows = 3000
    level = rng.normal(scale=0.3, size=rows).cumsum()
    values = (level + rng.normal(scale=0.5, size=rows))[:, None]
    document = {"preset": "level", "process_noise": 0.09, "measurement_noise": error}
    found = run(runtime(document), 60.0 * np.arange(rows), values, horizon=(60.0, 720.0))
    coverage = found.tally[INSIDE][2] / found.tally[SCORED]
    assert coverage == pytest.approx(0.9, abs=(1 + GAMMA) / (GAMMA * found.tally[SCORED]))
    # 12 of the stream's own steps ahead: gamma = 1/48 and up to 12 forecasts outstanding.
    ends, after = output(found, "bands")[: rows - 12, 1, 1, 0], values[12:, 0]
    inside = np.mean((ends[:, 0] <= after) & (after <= ends[:, 1]))
    assert inside == pytest.approx(0.9, abs=48 / (rows - 12) + 12 / (rows - 12))


@pytest.mark.parametrize("preset", ["level", "constant_velocity"])
def test_a_preset_begins_wherever_the_numbers_are(preset: str) -> None:
    """A billion standard deviations of a measurement from 0: of the first, which has its whole weight, the part
    1 / (1 + 1e12) is not believed; then the stream is followed as it is near 0."""
    document = {"preset": preset, "process_noise": 0.1, "measurement_noise": 1.0}
    near = 0.3 * np.arange(30)[:, None]
    here, far = (run(runtime(document), np.arange(30.0), near + offset) for offset in (0.0, 1e9))
    assert output(far, "weight")[0] == 1.0
    assert output(far, "mean")[0, 0] == pytest.approx(1e9, abs=2e-3)
    np.testing.assert_allclose(output(far, "mean")[1:] - 1e9, output(here, "mean")[1:], atol=0.01)
    np.testing.assert_allclose(output(far, "std"), output(here, "std"), rtol=1e-12)


# What it may take.


def test_the_memory_of_a_system_is_what_is_leased_for_it() -> None:
    """With more horizons, lags and inputs than it keeps."""
    for document in (PLANE, {**PLANE, "dimensions": 32}):
        system = System.from_document(document)
        SystemRuntime(system)  # what is made once for all is there
        tracemalloc.start()
        model = SystemRuntime(system)
        size = model.observation_size
        most = min(256, MOST_STEP_WORK // max(model.state_size, size) ** 3 - 1)
        inputs = [[0.1] * model.state_size] * 300 if model.state_size <= 16 else None
        rows = 300 if inputs else 2
        for shift in range(2):
            horizon = tuple(float(k + shift) for k in range(most))
            times = (np.arange(rows) ** 1.1 + shift).tolist()
            model.filter(
                times, [[0.1] * size] * rows, horizon=horizon, inputs=inputs, levels=tuple(np.arange(1, 17) / 20)
            )
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < model.kept_bytes


def test_a_system_is_gone_with_its_last_user() -> None:
    """Without the collector, which comes by seldom."""
    gc.collect()
    gc.disable()
    try:
        model = runtime(PLANE)
        model.filter([0.0, 1.0], [[0.0, 0.0]] * 2, horizon=(1.0,), inputs=[[0.0] * 4] * 2)
        gone = weakref.ref(model), weakref.ref(model.steps), weakref.ref(model._driven)
        del model
        assert [one() for one in gone] == [None, None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [SMALL, 40, 64])
def test_a_call_takes_no_more_work_than_others_can_wait_for(size: int) -> None:
    model = runtime({**PLANE, "preset": "level", "dimensions": size})
    most = MOST_STEP_WORK // size**3 - 1
    with pytest.raises(InvalidInput, match=f"supports at most {most} horizons") as refused:
        model.readout((0.9,), tuple(map(float, range(most + 1))), 0)
    assert refused.value.param == "horizon"
    found = model.filter([0.0, 1.0], [[1.0] * size] * 2, horizon=(1.0, 2.0))
    assert len(found.steps) == 2 and np.isfinite(output(found, "bands")).all()


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (
            lambda model: model.filter([0.0], [[1.0, 2.0]], mode="attention"),
            'does not support the mode "attention"',
        ),
        (lambda model: model.filter([0.0], [[1.0]]), "expects 2"),
        (lambda model: model.readout((0.9,), (), 0, ReadoutOptions(passes=4)), "passes of model 'system:"),
        (
            lambda model: runtime({**PLANE, "dimensions": 9}).check_input(NEVER, None, is_given=True),
            "does not support inputs",
        ),
    ],
)
def test_what_it_cannot_do_is_said(ask: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        ask(runtime(PLANE))
