"""The far field in closed form: against the full sum in float64 within the stated error, and against a sum in which
just the pairs that the kernels leave out are replaced.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

pytest.importorskip("triton")

from rfa import robust_filter_attention
from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.attention.call import AttentionCall
from rfa.model.attention.launch import Launch
from rfa.model.attention.reference import AttentionResult, attend, relative_attention
from rfa.model.attention.triton import attention_backward_op, attention_op, stack_heads
from rfa.model.attention.triton_backward import OutputGradients, backward
from rfa.model.attention.triton_far import NEVER, far_horizons
from rfa.model.attention.triton_forward import forward
from tests.kernels import IS_INTERPRETED
from tests.matching import assert_matches_reference
from tests.model.test_triton_backward import NAMES, random_weights
from tests.rounding import allowed_errors, assert_within_rounding, relative_error

# Rows that need the running maximum are found by the overflow of their sums.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
    pytest.mark.usefixtures("on_the_gpu"),
]
KERNELS = pytest.mark.parametrize("kernel", ["student_t", "gaussian"])
# The kernels treat both types of 16 bits alike.
slow = partial(pytest.param, marks=pytest.mark.slow)
BFLOAT16 = slow(torch.bfloat16)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16], ids=str)
FLOAT16 = slow(torch.float16)
TWO_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, FLOAT16], ids=str)
# The blocks of all passes in float32, so that all of them leave out the same pairs.
BLOCK = 32
SAME = Launch(BLOCK, BLOCK, 4, 1)


def inputs_of(length, mu, dtype=torch.float32, *, batch=1, complex_dims=8, **options):
    """Rotated q, k, v and float32 dynamics, a head for each rate."""
    inputs = rfa_inputs(batch, length, len(mu), complex_dims, **options).to(dtype)
    return inputs._replace(dynamics=replace(inputs.dynamics.to(torch.float32), mu=torch.tensor(mu)))


def leaves_of(inputs, dtype):
    d = inputs.dynamics
    tensors = (*inputs[:3], d.mu, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau)
    return [x.detach().to(dtype).clone().requires_grad_() for x in tensors]


def lags(length, n_queries):
    return torch.arange(length - n_queries, length)[:, None] - torch.arange(length)


def first_far_lag(dynamics, far_field):
    """By trying one lag after the other, `[H]`."""
    found = []
    for mu, sigma2, eta2, gamma2 in zip(*(x.tolist() for x in (
        dynamics.mu, dynamics.sigma2, dynamics.eta2, dynamics.gamma2
    )), strict=True):  # fmt: skip
        lag, is_far = 0, False
        while not is_far and lag < 10_000 and mu > 0:
            lag += 1
            decay, limit = math.exp(-mu * lag), gamma2 + sigma2 / (2 * mu)
            variance = sigma2 * -math.expm1(-2 * mu * lag) / (2 * mu) + eta2 * decay**2 + gamma2
            is_far = decay <= far_field and abs(variance - limit) <= far_field * limit
        found.append(lag if is_far else NEVER)
    return torch.tensor(found)


def left_out(dynamics, far_field, length, n_queries, block_m=BLOCK, block_n=BLOCK):
    """Which pairs the kernels must leave out, `[H, n, M]`: blocks of keys that are far from a block of queries."""
    gap = lags(length, n_queries)
    position, key = gap[:, :1] + torch.zeros_like(gap), torch.arange(length).expand_as(gap)
    shortest = position // block_m * block_m - (key // block_n * block_n + block_n - 1)
    return shortest >= first_far_lag(dynamics, far_field)[:, None, None]


def replaced_sum(leaves, is_far, kernel):
    """Attention as a dense sum in the dtype of the leaves, E = 0 and V = beta where `is_far`; mu > 0."""
    q, k, v = (x.transpose(1, 2) for x in leaves[:3])
    mu, sigma2, eta2, gamma2, nu, tau = (x[:, None, None] for x in leaves[3:])
    gap = lags(k.shape[2], q.shape[2])
    lag = gap.clamp_min(0).to(q.dtype)
    limit = gamma2 + sigma2 / (2 * mu)
    decay = torch.where(is_far, 0, torch.exp(-mu * lag))
    variance = sigma2 * -torch.expm1(-2 * mu * lag) / (2 * mu) + eta2 * decay**2 + gamma2
    variance = torch.where(is_far, limit, variance)
    dot = q @ k.transpose(-1, -2)
    residual2 = (
        q.square().sum(-1)[..., None] + decay * (decay * k.square().sum(-1)[..., None, :] - 2 * dot)
    ).clamp_min(0)
    excess = residual2 / (nu * variance)
    if kernel == "student_t":
        kappa = (nu + q.shape[-1] // 2) / (q.shape[-1] // 2)
        logit, weight = -tau * (variance.log() + kappa * excess.log1p()), 1 / (1 + excess)
    else:
        logit, weight = -tau * (variance.log() + excess), torch.exp(-excess)
    logit = torch.where(gap >= 0, logit, -math.inf)
    out = (torch.softmax(logit, -1) * decay) @ v
    precision = torch.where(gap >= 0, weight / variance, 0).sum(-1)
    return AttentionResult(*(x.transpose(1, 2) for x in (out, torch.logsumexp(logit, -1), precision)))


def full_sum(inputs, dtype, n_queries, kernel):
    """The eager code, every pair as it is; out rounded as the inputs are unless that is exact."""
    q, k, v = (x.to(dtype) for x in inputs[:3])
    times = torch.arange(k.shape[1])[None]
    options = {"query_times": times[:, -n_queries:], "key_times": times, "kernel": kernel}
    result = attend(q[:, -n_queries:], k, v, inputs.dynamics.to(dtype), **options)
    return result if dtype == torch.float64 else result._replace(out=result.out.to(inputs.q.dtype))


def run_forward(inputs, far_field, n_queries=None, *, kernel="student_t", blocks=SAME):
    q, k, v, dynamics, _ = inputs
    n_queries = n_queries or q.shape[1]
    heads = stack_heads(dynamics)
    horizons = None if far_field is None else far_horizons(heads, far_field)
    call = AttentionCall(q[:, -n_queries:], k, v, heads, is_gaussian=kernel == "gaussian", horizons=horizons)
    return AttentionResult(*forward(call, blocks=blocks))


def run_backward(inputs, far_field, result, weights, *, kernel="student_t", blocks=SAME):
    q, k, v, dynamics, _ = inputs
    n_queries, length = weights.out.shape[1], k.shape[1]
    heads = stack_heads(dynamics)
    horizons = None if far_field is None else far_horizons(heads, far_field)
    *gradients, of_heads = backward(
        OutputGradients(*weights),
        AttentionCall(q[:, length - n_queries :], k, v, heads, is_gaussian=kernel == "gaussian", horizons=horizons),
        result.out.to(q.dtype), result.log_norm.float(), row_blocks=blocks, column_blocks=blocks,
    )  # fmt: skip
    return dict(zip(NAMES, (*gradients, *of_heads.unbind(-1)), strict=True))


def gradients_of(result, leaves, weights):
    pairs = [(x, w.to(x.dtype)) for x, w in zip(result, weights, strict=True) if w is not None]
    found = torch.autograd.grad([x for x, _ in pairs], leaves, [w for _, w in pairs], retain_graph=True)
    return dict(zip(NAMES, found, strict=True))


def norm_of_error(actual, expected):
    return float((actual.double() - expected).detach().norm())


def rms(numbers):
    squares = [x * x for x in numbers]
    return (sum(squares) / len(squares)) ** 0.5


def stated_errors(inputs, n_queries, far_field, kernel):
    """How far out (the length of its error), log_norm and precision may be off, `[B, n, H]` each: what a relative
    error of V, and R² from a key anywhere within far_field |k| of 0, do to a logit and an evidence.
    """
    q, k, v = (x.double() for x in inputs[:3])
    d = inputs.dynamics.to(torch.float64)
    query = q[:, -n_queries:].norm(dim=-1)
    # A head without decay has no far keys: any limit will do.
    limit = d.gamma2 + d.sigma2 / (2 * torch.where(d.mu > 0, d.mu, 1))
    key, value = (x.norm(dim=-1).amax(1, keepdim=True) for x in (k, v))
    low, high = (query - far_field * key).clamp_min(0) ** 2, (query + far_field * key) ** 2
    smallest, largest = (1 - far_field) * limit, (1 + far_field) * limit
    if kernel == "student_t":
        at = limit + query**2 / d.nu
        below, above = smallest + low / d.nu, largest + high / d.nu
        of_total = torch.maximum((above / at).log(), (at / below).log())
        of_logit = d.tau * ((d.kappa - 1) * -math.log1p(-far_field) + d.kappa * of_total)
        of_evidence = 1 / below - 1 / at
    else:
        excess = query**2 / (d.nu * limit)
        least, most = low / (d.nu * largest), high / (d.nu * smallest)
        of_logit = d.tau * (-math.log1p(-far_field) + torch.maximum(most - excess, excess - least))
        at = torch.exp(-excess) / limit
        of_evidence = torch.maximum(torch.exp(-least) / smallest - at, at - torch.exp(-most) / largest)
    is_decaying = d.mu > 0
    of_out = (torch.expm1(of_logit) + far_field) * value
    return [torch.where(is_decaying, x, 0) for x in (of_out, of_logit, k.shape[1] * of_evidence)]


def check_stated_error(actual, inputs, n_queries, far_field, kernel):
    exact = full_sum(inputs, torch.float64, n_queries, kernel)

    def errors(result):
        return {name: relative_error(x, getattr(exact, name)) for name, x in result._asdict().items()}

    allowed = allowed_errors(lambda: errors(full_sum(inputs, torch.float32, n_queries, kernel)), actual.out.dtype)
    stated = stated_errors(inputs, n_queries, far_field, kernel)
    for name, got, expected, error in zip(exact._fields, actual, exact, stated, strict=True):
        assert norm_of_error(got, expected) <= float(error.norm()) + allowed[name] * float(expected.norm()), name


@DTYPES
@KERNELS
@pytest.mark.parametrize("far_field", [1e-2, 1e-6])
def test_outputs_are_within_the_stated_error_of_the_full_sum(far_field, kernel, dtype):
    """A head without decay, horizons within and beyond the length, ragged blocks at the end."""
    inputs = inputs_of(109, (0.0, 0.02, 0.3, 1.5), dtype)
    check_stated_error(run_forward(inputs, far_field, kernel=kernel), inputs, 109, far_field, kernel)


@DTYPES
@pytest.mark.parametrize("n_queries", [1, 20, 64])
def test_queries_behind_a_prefix_are_within_the_stated_error(n_queries, dtype):
    inputs = inputs_of(150, (0.0, 0.3, 2.0), dtype)
    result = run_forward(inputs, 1e-3, n_queries, blocks=Launch(64, 16, 4, 1))
    check_stated_error(result, inputs, n_queries, 1e-3, "student_t")


@KERNELS
def test_the_eager_code_replaces_every_far_pair(kernel):
    inputs = inputs_of(90, (0.1, 0.3, 2.0)).to(torch.float64)
    q, k, v, dynamics, _ = inputs
    result = relative_attention(q, k, v, dynamics, kernel=kernel, far_field=1e-2)
    is_far = lags(90, 90) >= first_far_lag(dynamics, 1e-2)[:, None, None]
    for got, expected in zip(result, replaced_sum(leaves_of(inputs, torch.float64), is_far, kernel), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "scale", "length", "n_queries", "with_precision", "kernel"),
    [
        (torch.float32, 1.0, 100, 100, True, "student_t"),
        slow(torch.float32, 1.0, 100, 100, True, "gaussian"),
        (torch.float32, 1.0, 128, 64, False, "student_t"),
        (torch.float32, 30.0, 100, 100, True, "student_t"),
        slow(torch.float16, 1.0, 100, 100, False, "student_t"),
        (torch.float16, 1.0, 100, 100, True, "gaussian"),
    ],
    ids=str,
)
def test_outputs_and_gradients_of_just_the_pairs_left_out(dtype, scale, length, n_queries, with_precision, kernel):
    """With an error so large that any other sum would show. Large inputs: the far keys outweigh most of the near."""
    inputs = inputs_of(length, (0.1, 0.4, 3.0), dtype, scale=scale)
    weights = random_weights(inputs, n_queries, with_precision)
    is_far = left_out(inputs.dynamics, 1e-2, length, n_queries)
    assert is_far.any(1).any(1).all()

    def dense(precision):
        leaves = leaves_of(inputs, precision)
        result = replaced_sum([leaves[0][:, -n_queries:], *leaves[1:]], is_far, kernel)
        gradients = gradients_of(result, leaves, weights)
        return result, gradients | {"q": gradients["q"][:, -n_queries:]}

    exact, exact_gradients = dense(torch.float64)
    actual = run_forward(inputs, 1e-2, n_queries, kernel=kernel)
    gradients = run_backward(inputs, 1e-2, exact, weights, kernel=kernel)
    # The heads' scalars together: each is a sum that cancels. In 16 bits they take in the rounding of out.
    groups = [(name,) for name in "qkv"] + ([NAMES[3:]] if dtype == torch.float32 else [])

    def errors(result, gradients_found):
        of_outputs = {
            name: relative_error(x.to(got.dtype), expected)
            for name, x, got, expected in zip(exact._fields, result, actual, exact, strict=True)
        }
        of_gradients = {
            f"grad {group}": rms(
                relative_error(gradients_found[name].to(gradients[name].dtype), exact_gradients[name]) for name in group
            )
            for group in groups
        }
        return of_outputs | of_gradients

    assert_within_rounding(errors(actual, gradients), lambda: errors(*dense(torch.float32)), dtype)


@TWO_DTYPES
def test_far_keys_are_not_read(dtype):
    """Their NaN would be in every sum."""
    inputs = inputs_of(110, (0.0, 0.5, 2.0), dtype)
    spoilt = inputs._replace(k=inputs.k.clone(), v=inputs.v.clone())
    spoilt.k[:, :64], spoilt.v[:, :64] = math.nan, math.nan
    clean, actual = (run_forward(x, 1e-3, 14) for x in (inputs, spoilt))
    for name in clean._fields:
        got, expected = getattr(actual, name), getattr(clean, name)
        assert torch.equal(got[:, :, 1:], expected[:, :, 1:]), name
        assert got[:, :, 0].isnan().all(), name
    weights = random_weights(inputs, 14, True)
    before, after = (run_backward(x, 1e-3, clean, weights) for x in (inputs, spoilt))
    assert torch.equal(after["q"][:, :, 1:], before["q"][:, :, 1:]) and after["q"][:, :, 0].isnan().all()
    for name in NAMES[3:]:
        assert torch.equal(after[name][1:], before[name][1:]), name
    for name in "kv":
        assert not before[name][:, :64, 1:].any() and before[name][:, :64, 0].any(), name
        assert torch.equal(after[name][:, 64:, 1:], before[name][:, 64:, 1:]), name


def test_horizons_are_the_first_far_lags():
    inputs = inputs_of(1, (0.0, 1e-6, 0.003, 0.05, 0.7, 30.0))
    for far_field in (1e-2, 1e-8):
        expected = first_far_lag(inputs.dynamics, far_field)
        actual = far_horizons(stack_heads(inputs.dynamics), far_field)
        assert actual.dtype == torch.int32 and not actual.requires_grad
        # The lag of the second head is beyond what is tried here.
        assert torch.equal(actual[[0, 2, 3, 4, 5]].long(), expected[[0, 2, 3, 4, 5]])
        assert actual[1] == math.ceil(math.log(1 / far_field) / float(inputs.dynamics.mu[1]))


def test_a_variance_without_a_limit_has_no_far_field():
    """V falls to 0 with E², so no lag is far; and a steady state from the start depends on E alone."""
    heads = torch.tensor([[0.5, 0.0, 1.0, 0.0, 5.0, 1.0], [0.5, 0.7, 0.7, 0.1, 5.0, 1.0]])
    assert far_horizons(heads, 1e-3).tolist() == [NEVER, math.ceil(math.log(1e3) / 0.5)]


# Through the operators and the public function.

fused = partial(robust_filter_attention, impl="triton")
LENGTHS = (40, 1, 70)


def starts():
    return torch.tensor([0, *LENGTHS]).cumsum(0).int()


def alone_starts(length):
    """Of one sequence. A GPU has other kernels for what is not packed, which round otherwise."""
    return None if IS_INTERPRETED else torch.tensor([0, length]).int()


@pytest.mark.parametrize(("kernel", "is_packed"), [("student_t", False), ("gaussian", True)], ids=["rows", "packed"])
def test_an_error_below_rounding_keeps_the_rule_of_every_faster_path(kernel, is_packed):
    inputs = inputs_of(sum(LENGTHS), (0.0, 5.0))
    assert first_far_lag(inputs.dynamics, 1e-8)[1] + 2 * BLOCK < max(LENGTHS)
    packed = {"cu_seqlens": starts()} if is_packed else {}
    assert_matches_reference(partial(fused, far_field=1e-8), inputs, kernel=kernel, **packed)


@TWO_DTYPES
def test_packed_sequences_equal_each_alone(dtype):
    inputs = inputs_of(sum(LENGTHS), (0.0, 0.5, 2.0), dtype)
    run = partial(fused, dynamics=inputs.dynamics, far_field=1e-2)
    parts = zip(*(x.split(LENGTHS, 1) for x in inputs[:3]), strict=True)
    alone = [run(*part, cu_seqlens=alone_starts(part[0].shape[1])) for part in parts]
    together = run(*inputs[:3], cu_seqlens=starts())
    for actual, expected in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(actual, torch.cat(expected, dim=1))


@pytest.mark.parametrize("impl", ["triton", "reference"])
@pytest.mark.parametrize("far_field", [0.0, -1e-3, 1e-9, 0.1, 1.0, math.nan])
def test_an_error_out_of_range_is_refused(far_field, impl):
    with pytest.raises(ValueError, match=r"far_field must be None or from 1e-08 to 0\.01, got"):
        robust_filter_attention(*inputs_of(5, (0.1,))[:4], impl=impl, far_field=far_field)


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_times_are_refused(impl):
    with pytest.raises(ValueError, match="far_field needs the token numbers"):
        robust_filter_attention(*inputs_of(5, (0.1,))[:4], impl=impl, far_field=1e-3, times=torch.arange(5))


def test_the_operators_keep_their_promises():
    inputs = inputs_of(40, (5.0,))
    heads = stack_heads(inputs.dynamics)
    horizons = far_horizons(heads, 1e-2)
    leaves = [x.detach().requires_grad_() for x in (*inputs[:3], heads)]
    places = (None, None, None, None, 40, 40, False)
    torch.library.opcheck(attention_op, (*leaves, *places, True, horizons))
    result = attention_op(*inputs[:3], heads, *places, True, horizons)
    gradients = [torch.randn_like(x) for x in result]
    arguments = (*gradients, *result[:2], True, *inputs[:3], heads, *places, True, horizons)
    torch.library.opcheck(attention_backward_op, arguments)
