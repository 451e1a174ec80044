"""Limits and invariances of the theory."""

import numpy as np
import oracles
import pytest
import torch

from model import Dynamics, robust_filter_attention
from model.dynamics import decay, phi, variance
from model.testing import rfa_inputs


def replace(dynamics, **changes):
    return Dynamics(**{name: changes.get(name, getattr(dynamics, name)) for name in dynamics.__dataclass_fields__})


def same(a, b, tolerance=1e-12):
    assert float((a - b).norm() / b.norm()) <= tolerance


def test_without_noise_and_decay_it_is_rotary_dot_product_attention():
    """mu = sigma = 0, |q| = |k| = 1, Gaussian kernel: L = const + 2 tau P/nu · Re(q̃†k̃), values rotated (RoPER)."""
    inputs = rfa_inputs(2, 20, 3, 4)
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in inputs[:2])
    zero = torch.zeros(3, dtype=torch.float64)
    dynamics = replace(inputs.dynamics, mu=zero, sigma2=zero)
    scale = 2 * dynamics.tau / ((dynamics.eta2 + dynamics.gamma2) * dynamics.nu)
    expected = oracles.rotary_softmax(q, k, inputs.v, dynamics.omega.numpy(), scale.numpy())
    actual = robust_filter_attention(q, k, inputs.v, dynamics, kernel="gaussian").out
    same(actual, torch.from_numpy(expected))


def test_without_decay_the_prior_is_an_additive_bias():
    """mu = 0 and a kernel that cannot see the residual (nu → ∞): weights ∝ 1 / (eta² + gamma² + sigma² lag)^tau."""
    inputs = rfa_inputs(1, 12, 2, 2, zero_decay_heads=2)
    d = replace(inputs.dynamics, nu=torch.full((2,), 1e15, dtype=torch.float64))
    v = torch.eye(12, 4, dtype=torch.float64)[None, :, None].expand(1, 12, 2, 4)
    flat = replace(d, omega=torch.zeros(2, 2, dtype=torch.float64))
    out = robust_filter_attention(inputs.q * 0, inputs.k * 0, v, flat).out[0, -1]
    lag = np.arange(11, -1, -1)
    for h in range(2):
        bias = (float(d.eta2[h] + d.gamma2[h]) + float(d.sigma2[h]) * lag) ** (-float(d.tau[h]))
        assert out[h].numpy() == pytest.approx((bias / bias.sum())[:4], rel=1e-10)


def test_decay_is_continuous_at_zero():
    inputs = rfa_inputs(1, 30, 2, 4)
    at_zero = robust_filter_attention(*inputs[:3], replace(inputs.dynamics, mu=torch.zeros(2).double()))
    near = robust_filter_attention(*inputs[:3], replace(inputs.dynamics, mu=torch.full((2,), 1e-13).double()))
    for a, b in zip(near, at_zero, strict=True):
        same(a, b, 1e-10)


def test_large_nu_is_the_gaussian_kernel_of_the_scaled_residual():
    """(1 + x/nu)^(-kappa) → exp(-x/D) as nu → ∞; the Gaussian kernel divides by nu, so scale the residual by
    sqrt(nu/D).
    """
    inputs = rfa_inputs(1, 16, 2, 4)
    nu = torch.full((2,), 1e9, dtype=torch.float64)
    student = robust_filter_attention(*inputs[:3], replace(inputs.dynamics, nu=nu))
    gaussian = robust_filter_attention(*inputs[:3], replace(inputs.dynamics, nu=nu * 0 + 4), kernel="gaussian")
    same(student.out, gaussian.out, 1e-7)
    same(student.log_norm, gaussian.log_norm, 1e-7)


@pytest.mark.parametrize("shift", [3.0, 1e6])
def test_time_shift_changes_nothing(shift):
    inputs = rfa_inputs(2, 18, 3, 4, irregular=True)
    here = robust_filter_attention(*inputs[:4], times=inputs.times)
    there = robust_filter_attention(*inputs[:4], times=inputs.times + shift)
    for a, b in zip(there, here, strict=True):
        same(a, b, 1e-8)


def test_batch_composition_changes_nothing():
    inputs = rfa_inputs(4, 10, 2, 4, irregular=True)
    whole = robust_filter_attention(*inputs[:4], times=inputs.times)
    for rows in ([2], [3, 0], [1, 1, 2]):
        part = robust_filter_attention(*(x[rows] for x in inputs[:3]), inputs.dynamics, times=inputs.times[rows])
        for a, b in zip(part, whole, strict=True):
            same(a, b[rows], 1e-13)


def test_future_changes_nothing():
    inputs = rfa_inputs(1, 14, 2, 4)
    is_late = (torch.arange(14) >= 9)[None, :, None, None]
    before = robust_filter_attention(*inputs[:4])
    after = robust_filter_attention(inputs.q, inputs.k + 3 * is_late, inputs.v + is_late, inputs.dynamics)
    for a, b in zip(after, before, strict=True):
        assert torch.equal(a[:, :9], b[:, :9])
    assert not torch.equal(after.out[:, 9:], before.out[:, 9:])


def test_one_more_key_never_lowers_the_evidence():
    """With the query held fixed, adding an earlier key adds a positive term to both sums."""
    inputs = rfa_inputs(1, 15, 3, 4)
    last = robust_filter_attention(*inputs[:4], times=torch.arange(15))
    for start in (1, 5, 14):
        fewer = robust_filter_attention(
            *(x[:, start:] for x in inputs[:3]), inputs.dynamics, times=torch.arange(start, 15)
        )
        assert bool((fewer.log_norm[:, -1] < last.log_norm[:, -1]).all())
        assert bool((fewer.precision[:, -1] < last.precision[:, -1]).all())


def test_phi_is_exact_over_sixteen_decades():
    lag = torch.tensor(1.0, dtype=torch.float64)
    for exponent in range(-16, 2):
        mu = torch.tensor([10.0**exponent], dtype=torch.float64)
        expected = -np.expm1(-2.0 * float(mu)) / (2.0 * float(mu))
        assert float(phi(mu, lag)) == pytest.approx(expected, rel=1e-14)
    assert float(phi(torch.zeros(1, dtype=torch.float64), 3 * lag)) == 3.0


def test_variance_has_its_limits():
    inputs = rfa_inputs(1, 1, 3, 2)
    d = inputs.dynamics
    now = variance(d, torch.tensor(0.0, dtype=torch.float64))
    assert torch.allclose(now, d.eta2 + d.gamma2)
    far = variance(d, torch.tensor(1e9, dtype=torch.float64))
    assert torch.allclose(far[1:], (d.sigma2 / (2 * d.mu) + d.gamma2)[1:])
    assert float(decay(d.mu, torch.tensor(1e9, dtype=torch.float64))[1]) == 0.0
