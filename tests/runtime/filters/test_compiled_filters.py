"""The compiled filters of the service against the models that they stand for, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rfa.model.linear_filter import LinearFilter
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.families.filters import LinearConfig
from rfa.runtime.bundle.manifest import TensorSpec
from rfa.runtime.filters import graph_steps
from rfa.runtime.filters.compiled_steps import CompiledSteps
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.state import FilterStates
from rfa.runtime.filters.steps import Batch
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.baseline import baseline_fields
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.interface import Piece, ReadoutOptions, Row
from rfa.runtime.uncertainty.rules import alarm_fields
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import Readout
from tests.runtime.loading import load_filter

BUNDLES = Path(__file__).parents[3] / "bundles"
STREAMS, STEPS = 3, 120
HORIZON = (0.1, 2.0)
# Float64 of numbers up to some hundreds, over the tens of steps that are remembered; an outlier of 1e3 loses three
# digits more.
ROUNDING = 1e-9
TURN = [[0.9, -2.0], [1.0, -1.1]]
NOISE = [[0.3, 0.1], [0.1, 0.2]]
SYSTEMS: dict[str, dict[str, Any]] = {
    "capped": {"drift": TURN, "process_noise": NOISE, "measurement_noise": NOISE, "contamination": 0.02},
    "kalman": {"drift": TURN, "process_noise": NOISE, "measurement_noise": NOISE, "nu": None},
    "no jumps, one pass": {
        "drift": TURN, "process_noise": NOISE, "measurement_noise": NOISE, "reacquire": None, "inner": 1, "nu": 4.0,
    },
    "learned": {"drift": TURN, "process_noise": NOISE, "measurement_noise": NOISE, "rule": "learned", "nu": 5.0},
    "velocity": {
        "drift": [[0.0, 1.0], [0.0, 0.0]], "process_noise": [[0.0, 0.0], [0.0, 0.5]], "measurement_noise": [[0.4]],
        "observation": [[1.0, 0.0]], "offset": [2.0], "initial_covariance": [[9.0, 0.0], [0.0, 4.0]], "nu": 4.0,
    },
    "three seen through two": {
        "drift": [[-0.3, 1.0, 0.0], [-1.0, -0.3, 0.2], [0.0, 0.0, -0.05]],
        "process_noise": np.diag([0.2, 0.2, 0.1]).tolist(),
        "measurement_noise": NOISE, "observation": [[1.0, 0.0, 1.0], [0.0, 2.0, 0.0]], "initial_mean": [1.0, 0.0, -1.0],
    },
}  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """A system's compiled steps, with the calibration of another bundle and a pool."""

    steps: CompiledSteps
    readout: Readout
    pool: StatePool

    @classmethod
    def of(cls, config: Any, state: Sequence[TensorSpec]) -> Compiled:
        calibration = Calibration(open_bundle(BUNDLES / "linear").calibration["recurrent"])
        leads = Horizons.of(calibration.horizons)
        steps = CompiledSteps(config, leads, PassesRange(3, 3))
        assert steps.layout == {part.name: part.shape for part in state}
        adaptive = {
            **leads.fields(steps.size, len(calibration.levels)),
            **baseline_fields(),
            **alarm_fields(steps.size),
        }
        states = FilterStates(steps.magic, steps.initial, steps.fields, adaptive)
        pool = StatePool(states.state_fields, STREAMS)
        for _ in range(STREAMS):
            states.put(pool, pool.acquire(), states.start())
        return cls(steps, Readout(calibration, (0.9,), HORIZON, 0, ReadoutOptions(), passes=1), pool)


def course(size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times `[B, N]`, values with gaps and outliers `[B, N, P]`, and factors on the noise."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(0.3, (STREAMS, STEPS)), axis=1)
    values = rng.normal(size=(STREAMS, STEPS, size)).cumsum(axis=1) * 0.3
    values += 1e3 * (rng.random(values.shape) < 0.02)
    values[:, 60:] += 30.0  # a jump
    values[rng.random(values.shape) < 0.15] = np.nan
    values[:, 7] = np.nan
    return times, values, rng.uniform(0.5, 2, (STREAMS, STEPS))


def assert_same(compiled: Compiled, model: Any, times: np.ndarray, values: np.ndarray, noise: np.ndarray) -> None:
    present = ~np.isnan(values)
    tensors = [torch.from_numpy(array) for array in (np.nan_to_num(values), present.astype(float), times, noise)]
    expected, state = model(*tensors)
    batch = Batch(
        np.repeat(np.arange(STREAMS), STEPS), times.ravel(), values.reshape(-1, values.shape[2]), noise.ravel()
    )
    out, trace = compiled.steps.advance(compiled.pool, batch, compiled.readout, traced=True)
    assert out.is_good.all()
    precision, weight, nis, log_likelihood = trace.scalars.T
    found = {
        "mean": out.mean, "precision": precision, "weight": weight,
        "innovation": np.nan_to_num(out.innovation), "nis": nis,
        "log_likelihood": log_likelihood, "covariance": trace.covariance, "transition": trace.transition,
        "innovation_covariance": trace.innovation_covariance, "predicted_mean": trace.predicted_mean,
        "predicted_covariance": trace.predicted_covariance, "state_mean": trace.mean,
        "state_covariance": trace.state_covariance,
    }  # fmt: skip
    for name, value in found.items():
        reference = getattr(expected, name).numpy().reshape(value.shape)
        scale = 1 + np.abs(reference).max()
        np.testing.assert_allclose(value, reference, rtol=ROUNDING, atol=ROUNDING * scale, err_msg=name)
    ahead = model.forecast({k: v for k, v in state.items() if k != "time"}, torch.tensor(HORIZON, dtype=torch.float64))
    last = np.arange(STREAMS) * STEPS + STEPS - 1
    for value, moment in zip((trace.forecast_mean[last], trace.forecast_covariance[last]), ahead, strict=True):
        np.testing.assert_allclose(
            value, moment.numpy(), rtol=ROUNDING, atol=ROUNDING * (1 + float(moment.abs().max()))
        )


@pytest.fixture(autouse=True)
def double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_linear_filter_is_its_model(name: str) -> None:
    config = LinearFilterConfig(**SYSTEMS[name])
    state = LinearConfig.model_validate(SYSTEMS[name]).state()
    compiled = Compiled.of(config, state)
    assert_same(compiled, LinearFilter(config), *course(len(config.measurement_noise), 3))


def test_a_compiled_filter_is_held_to_the_golden_outputs(tmp_path: Path) -> None:
    bundle = open_bundle(BUNDLES / "linear")
    assert load_filter(bundle).runtime == "compiled"
    case = next(case for case in bundle.golden["cases"] if case["graph"] == "step")
    case["outputs"]["mean"]["values"][0] += 0.01
    with pytest.raises(ValueError, match=r"golden.json, in compiled code: case \d+, step.mean differs"):
        load_filter(bundle)


@pytest.mark.parametrize("name", ["linear", "oscillator"])
def test_a_loaded_filter_compiles_no_more(name: str) -> None:
    """Live rounds of one and of many, with and without forecasts and samples, series in arrays of any layout, and
    attention: all that was compiled at the load. Other types are an error, in whose place a request had to wait."""
    model = load_filter(open_bundle(BUNDLES / name))
    size = model.observation_size
    pool = StatePool(model.state_fields, 3)
    slots = [pool.acquire() for _ in range(3)]
    for slot in slots:
        model.put(pool, slot, model.start())
    plain, full = model.readout((0.9,), (), 0), model.readout((0.5, 0.9), (1.0, 2.0), 2)
    for t, readouts in enumerate([[plain], [plain] * 3, [plain, full, full]]):
        rows = [Row(slots[i], float(t), [0.1] * size, 1.0, readout, i) for i, readout in enumerate(readouts)]
        assert None not in model.advance(pool, rows)
    values = np.asfortranarray(np.ones((4, size)))[::2]
    times = np.arange(4.0)[::2]
    for array in (values, times):
        array.flags.writeable = False
    assert len(model.follow(pool, Piece(slots[0], 3.0 + times, values, np.ones(2), full, 0))) == 2
    if "attention" not in model.modes:
        return
    assert len(model.filter([0.0, 1.0], [[0.1] * size] * 2, mode="attention").steps) == 2
    with pytest.raises(TypeError, match="No matching definition"):
        out = StepOutputs.allocate(1, size, plain)
        graph_steps._score_kernel()((), (), (), out, np.ones(1, bool), np.zeros(1, np.int64), out)
