"""A damped oscillator seen by one, two or three sensors: the system that the robust rules are tested on.

dx = A x dt + dw,  E[dw dwᵀ] = Q dt          y = C x + e,  E[e eᵀ] = R          x(t_0) ~ N(0, P_0)

`build` and `follow` make and run the filter under test; the oracles use the numbers and `discretise` only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from rfa.model.linear_filter import LinearFilter
from rfa.model.state_filter import FilterOutput, State, Token
from rfa.runtime.filters.linear_config import LinearFilterConfig
from tests.model.joint_gaussian import van_loan

DRIFT = np.array([[0.9, -2.0], [1.0, -1.1]])
Q = np.array([[0.3, 0.1], [0.1, 0.4]])
PRIOR = np.array([[4.0, 0.5], [0.5, 3.0]])
# C and R.
SENSORS = {
    "both states": (np.eye(2), np.array([[0.5, 0.1], [0.1, 0.7]])),
    "one sensor": (np.array([[1.0, 0.5]]), np.array([[0.4]])),
    "more sensors than states": (np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.5]]), np.diag([0.5, 0.7, 0.6])),
}


def build(sensor: str = "both states", dtype: torch.dtype = torch.float64, **changes: object) -> LinearFilter:
    """The filter of the system; `changes` to its configuration."""
    matrix, noise = SENSORS[sensor]
    values = {
        "drift": DRIFT, "process_noise": Q, "measurement_noise": noise, "observation": matrix,
        "initial_covariance": PRIOR, "nu": 4.0, **changes,
    }  # fmt: skip
    values = {k: np.asarray(v).tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}
    torch.set_default_dtype(dtype)
    try:
        return LinearFilter(LinearFilterConfig.from_dict(values))
    finally:
        torch.set_default_dtype(torch.float32)


def discretise(lag: float) -> tuple[np.ndarray, np.ndarray]:
    """F and Q of a lag, by a matrix exponential."""
    return van_loan(DRIFT, Q, lag)


def observed(
    rng: np.random.Generator, sensor: str, n: int, *, outliers: float = 0.0, jumps: Mapping[int, np.ndarray] = {}
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Irregular times, observations, and which components are seen: three quarters, and none once.

    Args:
        outliers: share of observations whose noise is 20 times as large.
        jumps: of the state, by the observation before which they come.
    """
    matrix, noise = SENSORS[sensor]
    times = np.cumsum(rng.exponential(0.2, n))
    state, y = rng.multivariate_normal(np.zeros(2), PRIOR), np.empty((n, len(matrix)))
    for i in range(n):
        if i:
            f, q = discretise(times[i] - times[i - 1])
            state = f @ state + rng.multivariate_normal(np.zeros(2), q)
        state = state + jumps.get(i, 0.0)
        spread = 20.0 if rng.random() < outliers else 1.0
        y[i] = matrix @ state + spread * rng.multivariate_normal(np.zeros(len(matrix)), noise)
    seen = rng.random(y.shape) > 0.25
    seen[33 if jumps else n // 3] = False
    return times, y, seen


def follow(
    model: LinearFilter, times: np.ndarray, y: np.ndarray, seen: np.ndarray, dtype: torch.dtype = torch.float64
) -> tuple[list[FilterOutput], list[State]]:
    """Outputs of one stream, and the state after each observation."""
    state, outputs, states = model.init_state(1), [], []
    one = torch.ones(1, dtype=dtype)
    for lag, value, present in zip(np.diff(times, prepend=times[0]), y, seen, strict=True):
        token = (torch.from_numpy(x[None] * 1.0).to(dtype) for x in (value, present))
        output, state = model.step(Token(*token, one * lag, one), state)
        outputs.append(output)
        states.append(state)
    return outputs, states


def check_absent_components(model, times, y, seen):
    """Whatever stands for what was not seen, everything after is that of the rows that were."""
    expected, _ = follow(model, times, np.where(seen, y, 0.0), seen)
    for absent in (77.0, -1e30, np.nan):
        found, states = follow(model, times, np.where(seen, y, absent), seen)
        assert all(torch.equal(a.state_mean, b.state_mean) for a, b in zip(found, expected, strict=True))
        assert all(bool(torch.isfinite(tensor).all()) for tensor in states[-1].values())
