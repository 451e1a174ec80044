"""Robust Filter Attention against independent float64 loops, and its gradients."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rfa import robust_filter_attention
from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.attention.reference import attend
from rfa.model.dynamics import Dynamics, rotate, wrapped_phase
from tests.model import oracles

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


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("kernel", ["student_t", "gaussian"])
@pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_the_loop(shape, irregular, kernel, dtype, tolerance):
    exact = rfa_inputs(*shape, irregular=irregular)
    inputs = exact.to(dtype)
    result = robust_filter_attention(*inputs[:4], times=inputs.times, kernel=kernel)
    for actual, expected in zip(result, oracle(exact, kernel), strict=True):
        assert relative_error(actual, expected) <= tolerance


@pytest.mark.parametrize("times", [(2, 3), (3,)], ids=["per row", "shared"])
def test_times_of_any_kind(times):
    """A row for each sequence or one for all, in any numeric dtype."""
    inputs = rfa_inputs(2, 3, 2, 3)
    stamps = torch.tensor([0, 4, 4], dtype=torch.uint8).expand(times)
    actual = robust_filter_attention(*inputs[:4], times=stamps)
    expected = oracle(inputs._replace(times=stamps.double().expand(2, 3)))
    for a, b in zip(actual, expected, strict=True):
        assert relative_error(a, b) <= 1e-12


@pytest.mark.parametrize("scale", [1e-12, 1e3, 1e8])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_inputs_of_any_size(scale, dtype, tolerance):
    """At 1e3 and above exp(L) underflows for every key, and the softmax must not."""
    inputs = rfa_inputs(1, 20, 3, 4, scale=scale)
    result = robust_filter_attention(*inputs.to(dtype)[:4])
    for actual, expected in zip(result, oracle(inputs), strict=True):
        assert relative_error(actual, expected) <= tolerance


@pytest.mark.parametrize("irregular", [pytest.param(False, marks=pytest.mark.slow), True], ids=["regular", "irregular"])
@pytest.mark.parametrize("kernel", ["student_t", "gaussian"])
def test_gradients_of_everything(kernel, irregular):
    """Every input and scalar; one head does not decay. Its own mu is held: it has a derivative on one side only."""
    inputs = rfa_inputs(1, 5, 2, 2, irregular=irregular)
    d = inputs.dynamics
    leaves = [x.clone().requires_grad_() for x in (*inputs[:3], d.mu[1:], d.sigma2, d.eta2, d.gamma2, d.nu, d.tau)]

    def run(q, k, v, mu, sigma2, eta2, gamma2, nu, tau):
        dynamics = Dynamics(torch.cat([d.mu[:1], mu]), d.omega, sigma2, eta2, gamma2, nu, tau)
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


def cached(inputs, n):
    """The last n tokens as queries over all keys, in the rotating frame; returns the phase of the queries too."""
    phase = wrapped_phase(inputs.dynamics.omega, inputs.times, torch.float64)
    q, k, v = (rotate(x, -phase) for x in inputs[:3])
    return q[:, -n:], k, v, phase[:, -n:]


@pytest.mark.parametrize("n", [1, 5, 19])
def test_cached_queries_equal_rows_of_the_full_pass(n):
    inputs = rfa_inputs(2, 19, 3, 4, irregular=True)
    full = robust_filter_attention(*inputs[:4], times=inputs.times)
    q, k, v, phase = cached(inputs, n)
    late = attend(q, k, v, inputs.dynamics, query_times=inputs.times[:, -n:], key_times=inputs.times)
    late = late._replace(out=rotate(late.out, phase))
    for actual, expected in zip(late, full, strict=True):
        assert relative_error(actual, expected[:, -n:].numpy()) <= 1e-12


def test_rows_of_the_cache_that_hold_nothing_have_no_influence():
    """Each sequence fills its cache to its own length; what lies in the rest reaches neither outputs nor gradients."""
    inputs = rfa_inputs(2, 9, 3, 4, irregular=True)
    q, k, v, _ = cached(inputs, 2)
    filled = [7, 3]
    capacity = 11

    def padded(x, b, empty):
        gap = torch.full((capacity - filled[b], *x.shape[2:]), empty, dtype=x.dtype)
        return torch.cat([x[b, 7 - filled[b] : 7], gap, x[b, 7:]])

    def stack(x, empty=1e6):
        return torch.stack([padded(x, b, empty) for b in range(2)])

    valid = stack(torch.ones(2, 9, dtype=torch.bool), False)
    leaves = [x.clone().requires_grad_() for x in (q, stack(k), stack(v))]
    actual = attend(
        *leaves,
        inputs.dynamics,
        query_times=inputs.times[:, -2:],
        key_times=stack(inputs.times),
        key_valid=valid,
    )
    sum(part.sum() for part in actual).backward()
    for b, length in enumerate(filled):
        rows = slice(7 - length, 9)
        expected = attend(
            q[b : b + 1],
            k[b : b + 1, rows],
            v[b : b + 1, rows],
            inputs.dynamics,
            query_times=inputs.times[b : b + 1, -2:],
            key_times=inputs.times[b : b + 1, rows],
        )
        for a, e in zip(actual, expected, strict=True):
            assert relative_error(a[b].detach(), e[0].numpy()) <= 1e-13
    for leaf in leaves:
        assert bool(torch.isfinite(leaf.grad).all())
    for leaf in leaves[1:]:
        assert not leaf.grad[~valid].any() and bool(leaf.grad[valid].any())


def test_the_graph_has_no_fixed_sizes():
    """What the ONNX export of the cache mode stands on: one graph for any batch, new tokens and cache length."""

    class Cached(torch.nn.Module):
        def forward(self, q, k, v, own, times, valid, parameters):
            return tuple(attend(q, k, v, Dynamics(*parameters), query_times=own, key_times=times, key_valid=valid))

    def arguments(batch, n, length):
        inputs = rfa_inputs(batch, length, 3, 4, dtype=torch.float32, irregular=True)
        d = inputs.dynamics
        parameters = (d.mu, d.omega, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau)
        index = torch.arange(length).expand(batch, length)
        valid = (index >= 1) | (index >= length - n)
        q, times = (x[:, -n:].contiguous() for x in (inputs.q, inputs.times))
        return q, inputs.k, inputs.v, times, inputs.times, valid, parameters

    batch, n, length = torch.export.Dim("batch"), torch.export.Dim("n"), torch.export.Dim("length", min=4)
    of_keys = {0: batch, 1: length}
    of_queries = {0: batch, 1: n}
    shapes = (of_queries, of_keys, of_keys, of_queries, of_keys, of_keys, (None,) * 7)
    graph = torch.export.export(Cached(), arguments(2, 3, 7), dynamic_shapes=shapes, strict=False).module()
    for sizes in ((2, 3, 7), (1, 2, 12), (4, 5, 5)):
        for a, b in zip(graph(*arguments(*sizes)), Cached()(*arguments(*sizes)), strict=True):
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow  # torch's compiler; the exported graph has no fixed sizes either
def test_it_compiles_into_one_graph():
    inputs = rfa_inputs(1, 12, 2, 4)
    compiled = torch.compile(robust_filter_attention, backend="eager", fullgraph=True)
    for a, b in zip(compiled(*inputs[:4]), robust_filter_attention(*inputs[:4]), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


def test_autocast_does_not_lower_the_precision():
    """Keys close to their query: R² is a small difference of large numbers, of which bfloat16 keeps nothing."""
    inputs = rfa_inputs(2, 20, 3, 8, dtype=torch.float32)
    near = inputs._replace(k=inputs.q + 0.02 * inputs.k)
    times = torch.arange(20)
    with torch.autocast("cpu", torch.bfloat16):
        regular, irregular = robust_filter_attention(*near[:4]), robust_filter_attention(*near[:4], times=times)
    for a, b in zip(regular + irregular, 2 * robust_filter_attention(*near[:4]), strict=True):
        assert a.dtype == torch.float32 and relative_error(a, b.double().numpy()) <= 1e-6


def test_half_precision_is_computed_in_float32():
    inputs = rfa_inputs(1, 16, 2, 4, dtype=torch.float32)
    q, k, v = (x.bfloat16() for x in inputs[:3])
    result = robust_filter_attention(q, k, v, inputs.dynamics)
    expected = robust_filter_attention(q.float(), k.float(), v.float(), inputs.dynamics)
    assert result.out.dtype == torch.bfloat16 and result.log_norm.dtype == torch.float32
    assert torch.equal(result.out, expected.out.bfloat16())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": lambda x: x[:, :-1]}, r"k must have the shape of q, \[2, 5, 2, 4\], got \[2, 4, 2, 4\]"),
        ({"v": lambda x: x.float()}, "v must have the dtype of q"),
        ({"q": lambda x: x[0], "k": lambda x: x[0], "v": lambda x: x[0]}, r"q must have shape \[B, N, H, 2D\]"),
        ({name: lambda x: x[:, :, :1] for name in "qkv"}, "dynamics have 2 heads of 4 real dimensions, but q has"),
        ({name: lambda x: x[:, :0] for name in "qkv"}, "at least one token"),
        ({name: lambda x: x.long() for name in "qkv"}, "q must be floating point, got torch.int64"),
        ({"k": lambda x: x.to("meta")}, "k must be on the device of q, cpu, got meta"),
        ({"dynamics": lambda d: replace(d, omega=d.omega[0])}, r"omega must have shape \[H, D\], got \[2\]"),
        ({"dynamics": lambda d: replace(d, mu=d.mu[0])}, r"mu must have shape \[2\], one per head, got \[\]"),
        ({"dynamics": lambda d: replace(d, mu=-d.mu)}, "mu must be finite and >= 0, got"),
        ({"dynamics": lambda d: replace(d, eta2=0 * d.eta2)}, r"eta2 must be finite and > 0, got \[0.0, 0.0\]"),
        ({"dynamics": lambda d: replace(d, nu=d.nu * math.inf)}, r"nu must be finite and > 2, got \[inf, inf\]"),
        ({"times": lambda _: torch.tensor([0.0, 1, 3, 2, 4])}, "non-decreasing, got a step of -1"),
        ({"times": lambda _: torch.tensor([0, 1, 3, 2, 4], dtype=torch.uint8)}, "non-decreasing, got a step of -1"),
        ({"times": lambda _: torch.tensor([0.0, 1, float("nan"), 2, 4])}, "times must be finite, got nan"),
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
