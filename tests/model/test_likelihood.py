"""The likelihood of the robust filter: that of its definition by scipy's densities, and a density."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from rfa.model.linear_filter import LinearFilter
from rfa.model.state_filter import Token
from rfa.runtime.filters.linear_config import LinearFilterConfig
from tests.model.joint_gaussian import van_loan
from tests.model.oracles import capped_update, float64_filter

DRIFT = np.array([[-0.7, 1.0], [0.0, -0.7]])  # no eigenbasis
NOISE, PRIOR = np.array([[0.3, 0.1], [0.1, 0.4]]), np.array([[4.0, 0.5], [0.5, 3.0]])
SENSOR, OFFSET = np.array([[1.0, 0.0], [0.5, 1.0]]), np.array([2.0, -1.0])
ERROR = np.array([[0.5, 0.1], [0.1, 0.7]])
NU, PASSES = 4.0, 3


def build(**changes) -> LinearFilter:
    values = {
        "drift": DRIFT.tolist(), "process_noise": NOISE.tolist(), "measurement_noise": ERROR.tolist(),
        "observation": SENSOR.tolist(), "offset": OFFSET.tolist(), "initial_covariance": PRIOR.tolist(), "nu": NU,
        "inner": PASSES, "reacquire": None, **changes,
    }  # fmt: skip
    return float64_filter(LinearFilterConfig.from_dict(values))


def make_data(n: int = 40, seed: int = 0):
    """Irregular times, missing components, noise factors and outliers."""
    rng = np.random.default_rng(seed)
    y = OFFSET + rng.normal(size=(n, 2)) * 2
    y[rng.random(n) < 0.15] += 40.0
    seen = rng.random((n, 2)) > 0.3
    seen[n // 3] = False
    return np.cumsum(rng.exponential(0.4, n)), y, seen, rng.uniform(0.5, 2.0, n)


def by_definition(times, y, seen, scale, share: float, size: float) -> np.ndarray:
    """log p of every observation given those before it, the rows that were seen cut out of every matrix."""
    mean, covariance, found = np.zeros(2), PRIOR, []
    for i in range(len(y)):
        if i:
            f, q = van_loan(DRIFT, NOISE, times[i] - times[i - 1])
            mean, covariance = f @ mean, f @ covariance @ f.T + q
        rows = np.flatnonzero(seen[i])
        if not len(rows):
            found.append(0.0)
            continue
        c, r = SENSOR[rows], scale[i] ** 2 * ERROR[np.ix_(rows, rows)]
        innovation = y[i][rows] - OFFSET[rows] - c @ mean
        spread = c @ covariance @ c.T + r
        calm, wild = (
            scipy.stats.multivariate_normal.logpdf(innovation, np.zeros(len(rows)), k * spread) for k in (1, size**2)
        )
        found.append(float(np.logaddexp(np.log1p(-share) + calm, np.log(share) + wild)) if share else float(calm))
        mean, covariance = capped_update(mean, covariance, innovation, c, r, NU, PASSES)
    return np.array(found)


@pytest.mark.parametrize(("share", "size"), [(0.0, 10.0), (0.05, 10.0), (0.2, 3.0)])
def test_every_observation_has_the_likelihood_of_the_definition(share: float, size: float) -> None:
    times, y, seen, scale = make_data()
    model = build(contamination=share, outlier_scale=size)
    output, _ = model(*(torch.from_numpy(x)[None] for x in (y, seen * 1.0, times, scale)))
    assert float(output.weight.min()) < 0.1
    expected = by_definition(times, y, seen, scale, share, size)
    # Logs of up to 1e3 nats, each a quadratic form of numbers kept to 1e-12.
    assert np.abs(output.log_likelihood[0].numpy() - expected).max() <= 1e-8


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_the_likelihood_is_a_density(share: float) -> None:
    """Of the next observation, over a grid that holds all but 1e-9 of it (20 standard deviations of the wide part)."""
    model = build(contamination=share, outlier_scale=10.0)
    times, y, seen, scale = make_data(10)
    _, state = model(*(torch.from_numpy(x)[None] for x in (y, seen * 1.0, times, scale)))
    state.pop("time")
    grid = torch.linspace(-600, 600, 40_001, dtype=torch.float64)
    many = {name: value.expand(len(grid), *value.shape[1:]) for name, value in state.items()}
    one = torch.ones(len(grid), dtype=torch.float64)
    for k in range(2):
        present = torch.zeros(len(grid), 2, dtype=torch.float64)
        present[:, k] = 1
        output, _ = model.step(Token(grid[:, None].expand(-1, 2), present, 0.3 * one, one), many)
        assert abs(float(torch.trapezoid(output.log_likelihood.exp(), grid)) - 1) <= 1e-6
