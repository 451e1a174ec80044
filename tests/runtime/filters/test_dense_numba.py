"""The compiled linear filter against the eager one in float64: every option alone and all together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rfa.model.state_filter import Token
from rfa.runtime.filters import filter_numba, linear_rows
from rfa.runtime.filters.compiled_steps import STATE, CompiledSteps
from rfa.runtime.filters.dense_numba_learned import scratch_size
from rfa.runtime.filters.filter_numba import LinearSystem, learns_noise
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.observed import Observed, observed
from rfa.runtime.passes import PassesRange
from rfa.runtime.uncertainty.adaptive import Horizons
from tests.inlined import callable_from_python
from tests.model.oracles import float64_filter

rows_of = callable_from_python(linear_rows.rows_of)
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
    {"nu": 6.0, "contamination": 0.02},
)
STATE_AND_WEIGHT = ("state_mean", "state_covariance", "weight", "nis")
OTHERS = (
    "mean", "covariance", "precision", "innovation", "innovation_covariance", "log_likelihood", "transition",
    "predicted_mean", "predicted_covariance",
)  # fmt: skip
# Sums in another order, a few hundred operations deep.
TOLERANCE = 1e-10
ONE_PASS = PassesRange(1, 1)
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


def eager(config: LinearFilterConfig, times, y, noise, fields=STATE_AND_WEIGHT):
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
    return {key: torch.stack([getattr(o, key) for o in outputs], 1).numpy() for key in fields}, states


def gap(found, expected) -> float:
    expected = np.asarray(expected)
    return float((np.abs(found - expected) / (1 + np.abs(expected))).max())


def run(config: LinearFilterConfig, times: Any, y: np.ndarray, noise: np.ndarray | None = None) -> dict[str, Any]:
    """Outputs and states of whole streams `[B, N, ...]`, by the names of the eager filter.

    The step of an observation is called from Python: the kernel around it takes as long to compile again.
    """
    streams, steps, size = y.shape
    model, system, n = CompiledSteps(config, Horizons.of([1.0]), ONE_PASS), LinearSystem.of(config), len(config.drift)
    observe = filter_numba.observe_learned if learns_noise(config) else filter_numba.observe_capped
    lags = np.broadcast_to(np.diff(times, prepend=np.asarray(times)[..., :1]), (streams, steps))
    factors = np.ones((streams, steps)) if noise is None else noise
    work, sensor = np.zeros(scratch_size(system.sizes, learns=learns_noise(config))), rows_of(system.sizes).matrix
    work[sensor : sensor + len(system.sensor)], work[-1] = system.sensor, -1.0  # no lag
    out, start = observed(size, n), model.initial[STATE]
    states, outputs = np.empty((streams, steps, len(start))), []
    for stream in range(streams):
        state = start.copy()
        for i in range(steps):
            observe(system, work, state, y[stream, i], lags[stream, i], factors[stream, i], out)
            states[stream, i] = state
            outputs.append([part.copy() for part in out])
    found = model.split(states.reshape(-1, len(start)))
    found = {"state_mean": found.pop("mean"), "state_covariance": found.pop("covariance"), **found}
    found |= {name: np.stack(parts) for name, parts in zip(Observed._fields, zip(*outputs, strict=True), strict=True)}
    found |= dict(zip(("precision", "weight", "nis", "log_likelihood"), found.pop("scalars").T, strict=True))
    return {name: part.reshape(streams, steps, *part.shape[1:]) for name, part in found.items()}


# Each rule with one system, or two.
PAIRS = [
    pytest.param(name, rule, marks=() if (i - k) % len(SYSTEMS) == 0 else pytest.mark.slow, id=f"{name}-{rule}")
    for i, name in enumerate(SYSTEMS)
    for k, rule in enumerate(RULES)
]


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_streams_follow_the_eager_filter(name, rule):
    config = make_config(name, **rule)
    times, y, noise = make_data(name, 3)
    expected, states = eager(config, times, y, noise, (*STATE_AND_WEIGHT, *OTHERS))
    found = run(config, times, y, noise)
    for field, values in expected.items():
        assert gap(found[field], values) <= (TOLERANCE if field in STATE_AND_WEIGHT else 10 * TOLERANCE), field
    if rule["nu"] is not None:
        assert found["weight"].min() < 0.3 and found["weight"].max() == 1
    assert ("jump_offset" in found) == ("jump_offset" in states[0])
    if "jump_offset" in found:
        for part in ("jump_offset", "jump_evidence"):
            assert gap(found[part], np.stack([state[part] for state in states], 1)) <= TOLERANCE
        # Evidence was counted, and spent on a jump.
        evidence = found["jump_evidence"][0]
        assert evidence.max() > 1 and evidence[-1] < evidence.max()
