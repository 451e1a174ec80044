"""The plain IRKF against Kalman filters of other libraries, and stream = batch."""

import itertools
import math

import filterpy.kalman
import numpy as np
import pytest
import torch
from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

from rfa.model.dynamics import Dynamics
from rfa.model.recurrence.irkf import irkf_scan, irkf_step

MU, OMEGA, SIGMA2, ETA2, GAMMA2 = 0.1, 1.0, 0.3, 0.4, 0.1


def make_dynamics(heads: int = 1, dims: int = 1, nu: float = math.inf, seed: int | None = None) -> Dynamics:
    def full(value: float) -> torch.Tensor:
        return torch.full((heads,), value, dtype=torch.float64)

    if seed is None:
        omega = torch.full((heads, dims), OMEGA, dtype=torch.float64)
        return Dynamics(full(MU), omega, full(SIGMA2), full(ETA2), full(GAMMA2), full(nu), full(1.0))
    generator = torch.Generator().manual_seed(seed)
    mu, sigma2, eta2 = (torch.rand(heads, generator=generator, dtype=torch.float64) + 0.05 for _ in range(3))
    mu[0] = 0.0
    omega = torch.randn(heads, dims, generator=generator, dtype=torch.float64)
    return Dynamics(mu, omega, sigma2, eta2, full(0.1), full(nu), full(1.0))


def make_measurements(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).cumsum(1)


def deviation(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest value."""
    return float((actual - expected).abs().max() / expected.abs().max())


def oscillator_data(n: int = 80, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Irregular times with one long gap, 2-D measurements, a quarter of them missing (never the first)."""
    rng = np.random.default_rng(seed)
    lags = rng.exponential(0.4, n)
    lags[n // 2] = 12.0
    y = np.cumsum(rng.normal(size=(n, 2)), axis=0)
    seen = rng.random(n) > 0.25
    seen[0] = True
    return np.cumsum(lags), y, seen


def transition(lag: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact transition and process covariance of the isotropic oscillator over a lag (complex variance per dim)."""
    c, s, e = math.cos(OMEGA * lag), math.sin(OMEGA * lag), math.exp(-MU * lag)
    return e * np.array([[c, -s], [s, c]]), np.eye(2) * SIGMA2 * (1 - e * e) / (2 * MU)


def filterpy_means(times: np.ndarray, y: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    kf = filterpy.kalman.KalmanFilter(dim_x=2, dim_z=2)
    noise = ETA2 + GAMMA2
    kf.H, kf.R, kf.x, kf.P = np.eye(2), np.eye(2) * noise, y[0][:, None].copy(), np.eye(2) * noise
    means, variances = [y[0]], [noise]
    for i in range(1, len(y)):
        kf.F, kf.Q = transition(times[i] - times[i - 1])
        kf.predict()
        kf.update(y[i][:, None] if seen[i] else None)
        means.append(kf.x[:, 0].copy())
        variances.append(kf.P[0, 0])
    return np.array(means), np.array(variances)


def statsmodels_means(times: np.ndarray, y: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    noise = ETA2 + GAMMA2
    steps = [transition(lag) for lag in np.diff(times)]
    observed = np.where(seen[:, None], y, np.nan)[1:]
    model = KalmanFilter(k_endog=2, k_states=2)
    model.bind(observed)
    model["design"], model["obs_cov"], model["selection"] = np.eye(2), np.eye(2) * noise, np.eye(2)
    # The transition of column t leads from observation t to t + 1; the first one is in the initial state.
    model["transition"] = np.stack([f for f, _ in steps[1:]] + [np.eye(2)], axis=-1)
    model["state_cov"] = np.stack([q for _, q in steps[1:]] + [np.eye(2)], axis=-1)
    first, added = steps[0]
    model.initialize_known(first @ y[0], first @ first.T * noise + added)
    result = model.filter()
    means = np.concatenate([y[:1], result.filtered_state.T])
    return means, np.concatenate([[noise], result.filtered_state_cov[0, 0]])


@pytest.mark.parametrize("peer", [filterpy_means, statsmodels_means])
def test_infinite_nu_is_the_kalman_filter(peer):
    times, y, seen = oscillator_data()
    expected, variance = peer(times, y, seen)
    means, precisions, _ = irkf_scan(
        torch.from_numpy(y)[None, :, None], make_dynamics(), times=torch.from_numpy(times), mask=torch.from_numpy(seen)
    )
    assert np.abs(means[0, :, 0].numpy() - expected).max() <= 1e-6
    assert np.abs(1 / precisions[0, :, 0].numpy() - variance).max() <= 1e-6


@pytest.mark.parametrize("rule", ["capped", "paper"])
@pytest.mark.parametrize("inner", [1, 3])
def test_step_by_step_one_call_and_segments_agree(rule, inner):
    dynamics = make_dynamics(3, 2, nu=4.0, seed=1)
    v = make_measurements(2, (2, 31, 3, 4)).float()
    generator = torch.Generator().manual_seed(4)
    times = torch.rand(2, 31, generator=generator, dtype=torch.float64).cumsum(1) + 100.0
    mask = torch.rand(2, 31, generator=generator) > 0.3
    mask[0, 0] = False
    options = {"inner": inner, "rule": rule, "delta": 0.8}
    means, precisions, last = irkf_scan(v, dynamics, times=times, mask=mask, **options)

    def parts(edges: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state, collected = None, []
        for start, stop in itertools.pairwise(edges):
            part = slice(start, stop)
            *segment, state = irkf_scan(
                v[:, part], dynamics, times=times[:, part], mask=mask[:, part], state=state, **options
            )
            collected.append(segment)
        return torch.cat([m for m, _ in collected], 1), torch.cat([p for _, p in collected], 1), state.time

    segmented, evidence, time = parts([0, 1, 12, 31])
    assert deviation(segmented, means) <= 1e-6
    assert deviation(evidence, precisions) <= 1e-6
    assert torch.allclose(time, last.time)

    _, _, state = irkf_scan(v[:, :1], dynamics, times=times[:, :1], mask=mask[:, :1], **options)
    stepped = [means[:, 0]]
    for i in range(1, 31):
        dt = times[:, i] - times[:, i - 1]
        mean, _, state = irkf_step(v[:, i], state, dynamics, dt, mask=mask[:, i], **options)
        stepped.append(mean)
    assert deviation(torch.stack(stepped, 1), means) <= 1e-6
    assert torch.allclose(state.time, last.time)


def test_a_row_does_not_depend_on_its_batch():
    dynamics = make_dynamics(2, 3, nu=5.0, seed=6)
    v = make_measurements(7, (5, 20, 2, 6)).float()
    together, _, _ = irkf_scan(v, dynamics)
    for row in range(5):
        alone, _, _ = irkf_scan(v[row : row + 1], dynamics)
        assert deviation(alone[0], together[row]) <= 1e-6


def test_an_outlier_moves_the_robust_mean_less_and_bounded():
    v = torch.zeros(1, 12, 1, 2, dtype=torch.float64)
    shifts = []
    for size in (10.0, 100.0, 1000.0):
        v[0, -1, 0, 0] = size
        robust, _, _ = irkf_scan(v, make_dynamics(nu=4.0))
        plain, _, _ = irkf_scan(v, make_dynamics())
        shifts.append(float(robust[0, -1].norm()))
        assert shifts[-1] < 0.5 * float(plain[0, -1].norm())
    assert shifts[2] < shifts[0]


def test_long_gaps_and_missing_values_stay_finite():
    dynamics = make_dynamics(1, 1, nu=4.0)
    silent = Dynamics(**{**vars(dynamics), "sigma2": torch.zeros(1, dtype=torch.float64)}).to(torch.float32)
    v = torch.ones(1, 4, 1, 2)
    v[0, 1] = float("nan")
    means, precisions, _ = irkf_scan(
        v, silent, times=torch.tensor([0.0, 1.0, 1e4, 1e4 + 1]), mask=torch.tensor([True, False, True, True])
    )
    assert bool(torch.isfinite(means).all()) and bool(torch.isfinite(precisions).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inner": 0}, "inner"),
        ({"rule": "other"}, "rule"),
        ({"times": torch.tensor([0.0, 2.0, 1.0])}, "non-decreasing"),
        ({"times": torch.tensor([0.0, float("nan"), 1.0])}, "finite"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        irkf_scan(torch.zeros(1, 3, 1, 2), make_dynamics(), **change)
    with pytest.raises(ValueError, match="2D"):
        irkf_scan(torch.zeros(1, 3, 2, 2), make_dynamics())
