"""The metric filter: its equations in plain Python, its freedom of units, and what it does with spikes and changes."""

import math

import numpy as np
import pytest
import torch

from rfa.model.checkpoint import load_run, save_checkpoint
from rfa.model.metric_filter import BOUND, DOUBT, TRUSTED, MetricFilter, MetricFilterConfig


def make(**config) -> MetricFilter:
    return MetricFilter(MetricFilterConfig(**config)).eval().double()


def run(model, values, times=None, mode="recurrent"):
    """Outputs and final state of one stream; NaN = missing."""
    y = torch.tensor(values, dtype=torch.float64).reshape(1, -1, 1)
    seen = torch.isfinite(y)
    grid = torch.arange(y.shape[1], dtype=torch.float64) if times is None else torch.tensor(times, dtype=torch.float64)
    model.mode = mode
    with torch.no_grad():
        return model(torch.where(seen, y, 0.0), seen.double(), grid[None])


def metric(length: int, seed: int, *, q: float = 0.3, noise: float = 1.0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    level = 50.0 * noise + np.cumsum(math.sqrt(q) * noise * generator.standard_normal(length))
    return level + noise * generator.standard_normal(length)


def plain_filter(values, q: float, memory: float):
    """The page's equations, one number at a time, lag 1: level, its variance, s², innovation."""
    rows = []
    level = p = s2 = count = 0.0
    for i, y in enumerate(values):
        if i == 0:
            level, s2, p, count, innovation = y, (0.1 * y) ** 2, 100 / 101, 1.0, 0.0
        else:
            ahead, innovation = p + q, y - level
            z2 = innovation**2 / (s2 * (ahead + 1))
            gain = ahead / (ahead + 1)
            level, p = level + gain * innovation, gain
            if z2 > 9 and count > 20:
                z2, count = 9.0, max(20.0, 0.95 * count)
            else:
                count = min(memory, count + 1)
            s2 *= 1 + (z2 - 1) / max(1.0, count - 1)
        rows.append((level, p * s2, s2, innovation))
    return np.array(rows)


def test_it_is_the_filter_of_its_page():
    values = metric(300, 0)
    values[150] += 40
    model = make(process=0.3, memory=100.0)
    output, state = run(model, values)
    expected = plain_filter(values, 0.3, 100.0)
    assert np.allclose(output.mean[0, :, 0].numpy(), expected[:, 0], rtol=1e-6)
    assert np.allclose(output.covariance[0, :, 0, 0].numpy(), expected[:, 1], rtol=1e-6)
    assert np.allclose(output.innovation[0, :, 0].numpy(), expected[:, 3], atol=1e-6)
    assert float(state["variance"]) == pytest.approx(expected[-1, 2], rel=1e-6)


@pytest.mark.parametrize("mode", ["recurrent", "attention"])
@pytest.mark.parametrize(("scale", "unit"), [(1e9, 300.0), (1e-2, 1e-3), (-1.0, 3600.0)])
def test_units_do_not_matter(mode, scale, unit):
    values, times = metric(60, 1), np.cumsum(np.random.default_rng(2).uniform(0.5, 1.5, 60))
    values[[7, 20, 21]] = np.nan
    model = make(nu=4.0, inner=2)
    here, _ = run(model, values, times, mode)
    there, _ = run(model, scale * values, unit * times, mode)
    assert torch.allclose(there.mean, scale * here.mean, rtol=1e-9)
    assert torch.allclose(there.covariance, scale**2 * here.covariance, rtol=1e-9)
    assert torch.allclose(there.nis, here.nis, rtol=1e-7, atol=1e-9)


def test_the_innovations_are_standardised_whatever_the_noise():
    """Mean nis of a clean stream is 1; of 2,000 correlated squares it strays by some 4 %."""
    nis = run(make(process=0.3), metric(2300, 3, noise=1e-4))[0].nis[0, 300:]
    assert float(nis.mean()) == pytest.approx(1, abs=0.12)


def test_a_missing_observation_predicts_only():
    model = make(process=0.3)
    _, before = run(model, metric(50, 4))
    _, after = run(model, [*metric(50, 4), np.nan])
    for name in ("mean", "variance", "count", "lag"):
        assert torch.equal(after[name], before[name])
    grown = before["covariance"] + 0.3 * before["variance"][..., None]
    assert torch.allclose(after["covariance"], grown, rtol=1e-6)
    output, state = run(model, [np.nan, np.nan, 7.0])
    assert float(output.mean[0, 2]) == 7.0 and float(state["count"]) == 1


def test_one_spike_hardly_moves_the_scale():
    values = metric(101, 5)
    _, before = run(make(process=0.3), values[:100])
    _, after = run(make(process=0.3), [*values[:100], 1e9])
    n = DOUBT * float(before["count"])
    assert float(after["variance"] / before["variance"]) == pytest.approx(1 + (BOUND - 1) / (n - 1), rel=1e-9)
    assert float(after["count"]) == pytest.approx(n)


def test_another_noise_is_learned_within_a_hundred_observations():
    """n falls from 300 to TRUSTED in ln(15) / ln(1 / 0.95) = 53 bounded ones; from there s² grows by 1.42 each, so 10⁶
    takes 40 more."""
    values = np.concatenate([metric(300, 6), metric(110, 7, noise=1e3)])
    _, state = run(make(process=0.3), values)
    assert 0.3e6 < float(state["variance"]) < 3e6
    assert float(state["count"]) >= TRUSTED


def test_a_flat_line_stays_finite_and_so_does_its_end():
    output, _ = run(make(), [*[3.0] * 200, 4.0, *[3.0] * 10])
    for field in output:
        assert torch.isfinite(field).all()
    assert float(output.nis[0, 200]) > 1e6
    assert float(output.nis[0, :200].max()) == 0


def test_attention_of_a_level_that_does_not_move_is_the_mean():
    values = metric(40, 8, q=0.0)
    model = make(process=1e-15)
    output, _ = run(model, values, mode="attention")
    means = np.cumsum(values) / np.arange(1, 41)
    assert np.allclose(output.mean[0, :, 0].numpy(), means, rtol=1e-6)


def test_the_forecast_is_the_level_with_a_growing_variance():
    model = make(process=0.3)
    _, state = run(model, metric(50, 9), 60.0 * np.arange(50))
    with torch.no_grad():
        mean, covariance = model.forecast(state, torch.tensor([60.0, 600.0], dtype=torch.float64))
    s2, p = float(state["variance"]), float(state["covariance"])
    assert torch.allclose(mean[0, :, 0], state["mean"][0].expand(2))
    assert covariance[0, :, 0, 0].tolist() == pytest.approx([p + s2 * (1 + 0.3), p + s2 * (1 + 3.0)], rel=1e-6)


def test_it_is_saved_and_loaded(tmp_path):
    model = MetricFilter(MetricFilterConfig(memory=50, nu=5.0))
    save_checkpoint(tmp_path, "metric", model)
    again = load_run(tmp_path)
    assert again.config == model.config
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), again.buffers(), strict=True))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"memory": 5}, "memory"),
        ({"process": 0.0}, "process"),
        ({"nu": 2.0}, "nu"),
        ({"inner": 0}, "inner"),
        ({"contamination": 1.0}, "contamination"),
    ],
)
def test_a_bad_config_is_named(config, reason):
    with pytest.raises(ValueError, match=reason):
        MetricFilterConfig(**config)
