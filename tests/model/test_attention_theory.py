"""Limits and invariances of the theory."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rfa import robust_filter_attention
from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.dynamics import rotate
from tests.model import oracles


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


@pytest.mark.parametrize("shift", [3.0, 1e6])
def test_time_shift_changes_nothing(shift):
    inputs = rfa_inputs(2, 18, 3, 4, irregular=True)
    here = robust_filter_attention(*inputs[:4], times=inputs.times)
    there = robust_filter_attention(*inputs[:4], times=inputs.times + shift)
    for a, b in zip(there, here, strict=True):
        same(a, b, 1e-8)


def test_a_rotation_of_the_frame_changes_nothing():
    """Only differences of phase count: q, k, v turned by one angle per channel turn the output by it."""
    inputs = rfa_inputs(1, 11, 2, 4)
    turn = torch.linspace(-3, 3, 8, dtype=torch.float64).reshape(2, 4)
    plain = robust_filter_attention(*inputs[:4])
    turned = robust_filter_attention(*(rotate(x, turn) for x in inputs[:3]), inputs.dynamics)
    same(turned.out, rotate(plain.out, turn))
    same(turned.log_norm, plain.log_norm)
    same(turned.precision, plain.precision)


def test_future_changes_nothing():
    inputs = rfa_inputs(1, 14, 2, 4)
    is_late = (torch.arange(14) >= 9)[None, :, None, None]
    before = robust_filter_attention(*inputs[:4])
    after = robust_filter_attention(inputs.q, inputs.k + 3 * is_late, inputs.v + is_late, inputs.dynamics)
    for a, b in zip(after, before, strict=True):
        assert torch.equal(a[:, :9], b[:, :9])
    assert not torch.equal(after.out[:, 9:], before.out[:, 9:])


def test_gradient_of_the_past_stops_at_the_present():
    inputs = rfa_inputs(1, 8, 2, 4)
    leaves = [x.clone().requires_grad_() for x in inputs[:3]]
    result = robust_filter_attention(*leaves, inputs.dynamics)
    sum(part[:, 4].sum() for part in result).backward()
    q, k, v = (leaf.grad for leaf in leaves)
    assert not q[:, 5:].any() and not q[:, :4].any() and bool(q[:, 4].any())
    for gradient in (k, v):
        assert not gradient[:, 5:].any() and bool(gradient[:, :5].flatten(2).any(-1).all())


@pytest.mark.parametrize("outlier", [10.0, 100.0])
def test_an_outlier_has_bounded_influence(outlier):
    """A key far from its query loses its weight in the estimate and in the evidence, and the more so the farther."""
    inputs = rfa_inputs(1, 12, 2, 4)
    q, k, v = (torch.ones_like(x) for x in inputs[:3])
    d = replace(inputs.dynamics, omega=torch.zeros(2, 4, dtype=torch.float64), mu=torch.zeros(2, dtype=torch.float64))
    spoiled = torch.zeros(12, dtype=torch.float64)
    spoiled[6] = outlier
    spoiled = spoiled[None, :, None, None]
    clean = robust_filter_attention(q, k, v, d)
    dirty = robust_filter_attention(q, k + spoiled, v + spoiled, d)
    far = robust_filter_attention(q, k + 10 * spoiled, v + 10 * spoiled, d)
    # The weight falls as distance^(-2 tau kappa), the value grows as distance: farther is less.
    assert bool((2 * d.tau * d.kappa > 1).all())
    assert float((far.out[:, -1] - clean.out[:, -1]).norm()) < float((dirty.out[:, -1] - clean.out[:, -1]).norm())
    assert bool((dirty.precision[:, -1] < clean.precision[:, -1]).all())
