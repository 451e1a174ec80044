"""Robust Filter Attention against independent float64 loops, and its gradients."""

import math

import numpy as np
import oracles
import pytest
import torch

from model import robust_filter_attention
from model.attention.reference import attend
from model.dynamics import Dynamics, rotate, wrapped_phase
from model.tensor_attention import tensor_attention
from model.testing import assert_matches_reference, rfa_inputs

SHAPES = [(1, 1, 1, 2), (2, 17, 3, 4), (1, 33, 2, 5), (3, 8, 4, 6)]


def oracle(inputs, kernel="student_t"):
    d = inputs.dynamics
    batch, length = inputs.q.shape[:2]
    times = np.tile(np.arange(length), (batch, 1)) if inputs.times is None else inputs.times.numpy()
    arrays = (x.double().numpy() for x in (d.mu, d.omega, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau))
    return oracles.robust_attention(
        inputs.q.double(), inputs.k.double(), inputs.v.double(), *arrays, times, kernel=kernel
    )


def relative_error(actual, expected):
    return float(np.linalg.norm(actual.double().numpy() - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("kernel", ["student_t", "gaussian"])
@pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_the_loop(shape, irregular, kernel, dtype, tolerance):
    exact = rfa_inputs(*shape, irregular=irregular)
    inputs = exact.to(dtype)
    result = robust_filter_attention(*inputs[:4], times=inputs.times, kernel=kernel)
    for actual, expected in zip(result, oracle(exact, kernel), strict=True):
        assert relative_error(actual, expected) <= tolerance


def test_default_times_are_the_token_indices():
    inputs = rfa_inputs(2, 21, 3, 4)
    implicit = robust_filter_attention(*inputs[:4])
    explicit = robust_filter_attention(*inputs[:4], times=torch.arange(21))
    for a, b in zip(implicit, explicit, strict=True):
        assert torch.allclose(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kernel", ["student_t", "gaussian"])
def test_gradients_of_everything(kernel):
    """Every input and scalar, with a head at mu = 0 exactly (one-sided there, so its gradient is checked apart)."""
    inputs = rfa_inputs(1, 6, 2, 2, zero_decay_heads=0, irregular=True)
    d = inputs.dynamics
    leaves = [x.clone().requires_grad_() for x in (*inputs[:3], d.mu, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau)]

    def run(q, k, v, mu, sigma2, eta2, gamma2, nu, tau):
        dynamics = Dynamics(mu, d.omega, sigma2, eta2, gamma2, nu, tau)
        return tuple(robust_filter_attention(q, k, v, dynamics, times=inputs.times, kernel=kernel))

    assert torch.autograd.gradcheck(run, leaves, atol=1e-7)


def test_gradient_of_the_decay_is_right_at_zero():
    inputs = rfa_inputs(1, 9, 2, 2, zero_decay_heads=2)
    d = inputs.dynamics

    def loss(mu):
        dynamics = Dynamics(mu, d.omega, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau)
        return sum(part.sum() for part in robust_filter_attention(*inputs[:3], dynamics))

    mu = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(mu), mu)
    step = 1e-4
    for head in range(2):
        shift = torch.zeros(2, dtype=torch.float64)
        shift[head] = step
        # Second-order forward difference: mu cannot be negative.
        numeric = (-3 * loss(0 * shift) + 4 * loss(shift) - loss(2 * shift)) / (2 * step)
        assert float(gradient[head]) == pytest.approx(float(numeric), rel=1e-5)


def test_cached_queries_equal_rows_of_the_full_pass():
    inputs = rfa_inputs(2, 19, 3, 4, irregular=True)
    full = robust_filter_attention(*inputs[:4], times=inputs.times)
    phase = wrapped_phase(inputs.dynamics.omega, inputs.times, torch.float64)
    q, k, v = (rotate(x, -phase) for x in inputs[:3])
    late = attend(q[:, 14:], k, v, inputs.dynamics, query_times=inputs.times[:, 14:], key_times=inputs.times)
    out = rotate(late.out, phase[:, 14:])
    assert torch.allclose(out, full.out[:, 14:], rtol=1e-12, atol=1e-13)
    assert torch.allclose(late.precision, full.precision[:, 14:], rtol=1e-12)


def test_tensor_attention_with_equal_channels_is_rfa():
    inputs = rfa_inputs(2, 13, 3, 4)
    d = inputs.dynamics
    wide = Dynamics(
        *(x[:, None].expand(3, 4) if x.dim() == 1 else x for x in (d.mu, d.omega, d.sigma2, d.eta2, d.gamma2)),
        d.nu,
        d.tau,
    )
    expected = robust_filter_attention(*inputs[:4]).out
    assert float((tensor_attention(*inputs[:3], wide) - expected).norm() / expected.norm()) <= 1e-12


def test_tensor_attention_matches_its_own_loop():
    inputs = rfa_inputs(1, 7, 2, 3)
    generator = torch.Generator().manual_seed(5)
    mu, sigma2, eta2, gamma2 = (torch.rand(2, 3, generator=generator, dtype=torch.float64) + 0.05 for _ in range(4))
    d = inputs.dynamics
    actual = tensor_attention(*inputs[:3], Dynamics(mu, d.omega, sigma2, eta2, gamma2, d.nu, d.tau))
    q, k, v = (oracles.to_complex(x.numpy()) for x in inputs[:3])
    expected = np.zeros_like(q)
    for h in range(2):
        kappa = (float(d.nu[h]) + 3) / 3
        for i in range(7):
            scores, carried = np.zeros((i + 1, 3)), np.zeros((i + 1, 3), complex)
            for j in range(i + 1):
                total = 0.0
                for c in range(3):
                    m = float(mu[h, c])
                    e = np.exp((-m + 1j * float(d.omega[h, c])) * (i - j))
                    p = 1 / (
                        float(sigma2[h, c]) * (1 - math.exp(-2 * m * (i - j))) / (2 * m)
                        + float(eta2[h, c]) * abs(e) ** 2
                        + float(gamma2[h, c])
                    )
                    scores[j, c] = math.log(p)
                    carried[j, c] = e * v[0, j, h, c]
                    total += p * abs(q[0, i, h, c] - e * k[0, j, h, c]) ** 2
                scores[j] -= kappa * math.log(1 + total / float(d.nu[h]))
            weights = np.exp(float(d.tau[h]) * scores)
            expected[0, i, h] = (weights / weights.sum(0) * carried).sum(0)
    assert relative_error(actual, oracles.to_real(expected)) <= 1e-12


def test_the_comparison_accepts_the_reference_and_refuses_a_wrong_kernel():
    inputs = rfa_inputs(2, 12, 2, 4, dtype=torch.float32, irregular=True)
    assert_matches_reference(robust_filter_attention, inputs)

    def slightly_wrong(q, k, v, dynamics, *, times):
        result = robust_filter_attention(q, k, v, dynamics, times=times)
        return result._replace(precision=result.precision * (1 + 1e-5))

    with pytest.raises(AssertionError, match="precision: relative error"):
        assert_matches_reference(slightly_wrong, inputs)


def test_half_precision_is_computed_in_float32():
    inputs = rfa_inputs(1, 16, 2, 4, dtype=torch.float32)
    q, k, v = (x.bfloat16() for x in inputs[:3])
    result = robust_filter_attention(q, k, v, inputs.dynamics)
    expected = robust_filter_attention(q.float(), k.float(), v.float(), inputs.dynamics)
    assert result.out.dtype == torch.bfloat16 and result.log_norm.dtype == torch.float32
    assert torch.equal(result.out, expected.out.bfloat16())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"k": lambda x: x[:, :-1]}, r"k must have the shape of q, \[2, 5, 2, 4\], got \[2, 4, 2, 4\]"),
        ({"v": lambda x: x.float()}, "v must have the dtype of q"),
        ({"q": lambda x: x[0], "k": lambda x: x[0], "v": lambda x: x[0]}, r"q must have shape \[B, N, H, 2D\]"),
        ({name: lambda x: x[:, :, :1] for name in "qkv"}, "dynamics have 2 heads of 4 reals, q has"),
        ({name: lambda x: x[:, :0] for name in "qkv"}, "at least one token"),
        ({"times": lambda _: torch.tensor([0.0, 1, 3, 2, 4])}, "non-decreasing"),
        ({"times": lambda _: torch.tensor([0.0, 1, float("nan"), 2, 4])}, "times must be finite"),
        ({"times": lambda _: torch.arange(4)}, r"times must have shape \[5\] or \[2, 5\], got \[4\]"),
        ({"kernel": lambda _: "cauchy"}, "kernel must be one of"),
        ({"impl": lambda _: "triton2"}, "impl must be one of"),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(change, message):
    inputs = rfa_inputs(2, 5, 2, 2)
    arguments = dict(inputs._asdict(), kernel="student_t", impl="auto")
    for name, make in change.items():
        arguments[name] = make(arguments[name])
    with pytest.raises(ValueError, match=message):
        robust_filter_attention(**arguments)
