"""The fused forward pass of attention, in Triton's interpreter, against the eager code in float64."""

import dataclasses
import math

import pytest
import torch

pytest.importorskip("triton")

from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.attention.call import AttentionCall
from rfa.model.attention.launch import Launch, launch
from rfa.model.attention.reference import AttentionResult, attend
from rfa.model.attention.triton import stack_heads
from rfa.model.attention.triton_distant import BOUND, LAG_NUMBERS, LIGHT_EXPONENT, SHIFT_TERM, TERMS, table_kernel
from rfa.model.attention.triton_forward import forward
from rfa.model.dynamics import decay, variance
from tests.kernels import assert_variants_agree
from tests.model.test_triton_backward import stamps
from tests.rounding import allowed_errors, assert_within_rounding, relative_error

# Rows that need the running maximum are found by the overflow of their sums.
pytestmark = [
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
    pytest.mark.usefixtures("on_the_gpu"),
]
BLOCKS = Launch(32, 16, 4, 1)
# The kernels treat both types of 16 bits alike.
BFLOAT16 = pytest.param(torch.bfloat16, marks=pytest.mark.slow)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16], ids=str)
KERNELS = pytest.mark.parametrize("kernel", ["student_t", "gaussian"])
SPACINGS = pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])


def inputs_of(batch, length, heads, complex_dims, dtype, **options):
    """Rotated q, k, v of `dtype`, dynamics that float32 holds exactly, float64 times or None."""
    inputs = rfa_inputs(batch, length, heads, complex_dims, **options)
    return inputs.to(dtype)._replace(dynamics=inputs.dynamics.to(torch.float32))


def fused(inputs, n_queries=None, *, kernel="student_t", blocks=BLOCKS, with_precision=True):
    q, k, v, dynamics, times = inputs
    length = q.shape[1]
    n_queries = n_queries or length
    own = slice(length - n_queries, None)
    key_stamps = None if times is None else stamps(times)
    query_stamps = None if key_stamps is None else key_stamps[:, own].contiguous()
    call = AttentionCall(
        q[:, own], k, v, stack_heads(dynamics), query_stamps, key_stamps,
        is_gaussian=kernel == "gaussian", with_precision=with_precision,
    )  # fmt: skip
    return AttentionResult(*forward(call, blocks=blocks))


def eager(inputs, dtype, n_queries=None, *, kernel="student_t"):
    """The eager code on the same numbers, computed in `dtype`; out in the dtype of the inputs unless that is exact."""
    q, k, v = (x.to(dtype) for x in inputs[:3])
    length = q.shape[1]
    own = slice(length - (n_queries or length), None)
    times = torch.arange(length, dtype=torch.float64)[None] if inputs.times is None else inputs.times
    result = attend(
        q[:, own], k, v, inputs.dynamics.to(dtype), query_times=times[:, own], key_times=times, kernel=kernel
    )
    return result if dtype == torch.float64 else result._replace(out=result.out.to(inputs.q.dtype))


def assert_close(actual, inputs, n_queries=None, *, kernel="student_t"):
    """The rule of `tests.rounding`, with the eager code in float32."""
    exact = eager(inputs, torch.float64, n_queries, kernel=kernel)

    def errors(result):
        return {name: relative_error(x, getattr(exact, name)) for name, x in result._asdict().items()}

    for got, expected in zip(actual, exact, strict=True):
        assert got.shape == expected.shape
    assert_within_rounding(
        errors(actual), lambda: errors(eager(inputs, torch.float32, n_queries, kernel=kernel)), actual.out.dtype
    )


def check(inputs, n_queries=None, *, kernel="student_t", blocks=BLOCKS):
    assert_close(fused(inputs, n_queries, kernel=kernel, blocks=blocks), inputs, n_queries, kernel=kernel)


@DTYPES
@KERNELS
@SPACINGS
@pytest.mark.parametrize("shape", [(1, 1, 1, 8), (2, 71, 1, 12)], ids=str)
def test_matches_the_eager_code(shape, irregular, kernel, dtype):
    check(inputs_of(*shape, dtype, irregular=irregular), kernel=kernel)


@DTYPES
@pytest.mark.parametrize("complex_dims", [8, 20, 32, 64, 128])
def test_any_width(complex_dims, dtype):
    check(inputs_of(1, 100, 1, complex_dims, dtype, zero_decay_heads=0), blocks=Launch(32, 32, 4, 1))


@KERNELS
@SPACINGS
def test_any_decay(irregular, kernel):
    """None, one whose lag kernels cancel, one that forgets within a token, and steady states above and below eta2."""
    inputs = inputs_of(1, 70, 6, 8, torch.float32, irregular=irregular)
    mu = torch.tensor([0.0, 1e-6, 1e-3, 0.05, 3.0, 60.0])
    sigma2 = torch.tensor([0.1, 0.3, 0.01, 0.5, 1.0, 100.0])
    check(inputs._replace(dynamics=dataclasses.replace(inputs.dynamics, mu=mu, sigma2=sigma2)), kernel=kernel)


def test_any_decay_of_distant_blocks():
    """E in the exponent while it is not too small, then as a factor; both ways to take the process noise."""
    inputs = inputs_of(1, 100, 6, 8, torch.float16)
    mu = torch.tensor([0.0, 1e-6, 0.02, 0.3, 1.0, 30.0])
    check(inputs._replace(dynamics=dataclasses.replace(inputs.dynamics, mu=mu)))


@DTYPES
@SPACINGS
@pytest.mark.parametrize("n_queries", [1, 17, 48])
def test_queries_behind_a_prefix(n_queries, irregular, dtype):
    check(inputs_of(2, 75, 1, 8, dtype, irregular=irregular, zero_decay_heads=0), n_queries)


def test_times_with_a_large_offset():
    """A clock of seconds since 1970, and gaps that float32 could not tell apart there."""
    inputs = inputs_of(2, 70, 2, 8, torch.float32, irregular=True)
    inputs = inputs._replace(times=1e9 + 1e-3 * inputs.times)
    dynamics = dataclasses.replace(inputs.dynamics, mu=300 * inputs.dynamics.mu, sigma2=300 * inputs.dynamics.sigma2)
    check(inputs._replace(dynamics=dynamics))


def test_stamps_shared_by_the_batch():
    inputs = inputs_of(2, 40, 2, 8, torch.float32, irregular=True)
    q, k, v, dynamics, times = inputs
    shared = stamps(times[:1])
    actual = AttentionResult(*forward(AttentionCall(q, k, v, stack_heads(dynamics), shared, shared), blocks=BLOCKS))
    assert_close(actual, inputs._replace(times=times[:1]))


@DTYPES
@SPACINGS
@pytest.mark.parametrize("prefixes", [(0, 0, 0, 0), (3, 0, 40, 0)], ids=["no prefix", "prefix"])
def test_packed_sequences(prefixes, irregular, dtype):
    lengths = (1, 50, 1, 37)
    parts = [
        inputs_of(1, n + prefix, 2, 8, dtype, irregular=irregular, seed=i)
        for i, (n, prefix) in enumerate(zip(lengths, prefixes, strict=True))
    ]
    parts = [part._replace(dynamics=parts[0].dynamics) for part in parts]
    key_starts = torch.tensor([0, *(part.k.shape[1] for part in parts)]).cumsum(0).int()
    query_starts = torch.tensor([0, *lengths]).cumsum(0).int()
    k, v = (torch.cat([getattr(part, name) for part in parts], dim=1) for name in "kv")
    q = torch.cat([part.q[:, prefix:] for part, prefix in zip(parts, prefixes, strict=True)], dim=1)
    key_stamps = query_stamps = None
    if irregular:
        key_stamps = torch.cat([stamps(part.times) for part in parts], dim=1)
        split = key_stamps.split([part.k.shape[1] for part in parts], dim=1)
        query_stamps = torch.cat([x[:, prefix:] for x, prefix in zip(split, prefixes, strict=True)], dim=1)
    call = AttentionCall(
        q, k, v, stack_heads(parts[0].dynamics), query_stamps, key_stamps, query_starts, key_starts, max(lengths)
    )
    result = forward(call, blocks=BLOCKS)
    split = (x.split(lengths, dim=1) for x in result)
    for n, part, *actual in zip(lengths, parts, *split, strict=True):
        assert_close(AttentionResult(*actual), part, n)


@DTYPES
@pytest.mark.parametrize(("kernel", "scale"), [("student_t", 30.0), ("gaussian", 10.0)])
def test_large_inputs(kernel, scale, dtype):
    """Rows all of whose weights would vanish against the largest possible one."""
    inputs = inputs_of(1, 75, 2, 8, dtype, scale=scale)
    tau = 20 * inputs.dynamics.tau
    check(inputs._replace(dynamics=dataclasses.replace(inputs.dynamics, tau=tau)), kernel=kernel)


@DTYPES
def test_a_distant_key_that_outweighs_the_own_one(dtype):
    """By more than any exponent holds: the row needs a running maximum."""
    inputs = inputs_of(1, 75, 2, 8, dtype, scale=30.0)
    tau, mu = torch.tensor([30.0, 30.0]), torch.tensor([0.0, 1e-4])
    inputs.k[:, 3] = inputs.q[:, 70]
    inputs.k[:, 20] = inputs.q[:, 74]
    check(inputs._replace(dynamics=dataclasses.replace(inputs.dynamics, tau=tau, mu=mu)))


def test_the_table_of_distant_blocks_keeps_its_bound():
    """Every lag of every distance that is not marked; float16 numbers are exact in float64."""
    inputs = inputs_of(1, 1, 6, 8, torch.float32)
    mu = torch.tensor([0.0, 1e-6, 0.003, 0.02, 0.3, 20.0])
    dynamics = dataclasses.replace(inputs.dynamics, mu=mu)
    rows = torch.zeros(64, TERMS.value, dtype=torch.float16)
    table = torch.zeros(6, 5, TERMS.value, 32, dtype=torch.float16)
    marks = torch.zeros(6, 5, dtype=torch.int32)
    lags = torch.zeros(6, 128, LAG_NUMBERS.value)
    shape = {"WIDTH": 16, "BM": 64, "BN": 32, "FAST": False}
    table_kernel[(5, 6)](stack_heads(dynamics), rows, table, marks, lags, 5, **shape)
    exact = dynamics.to(torch.float64)
    per_head = (slice(None), None, None, None)
    distance = torch.arange(5)[:, None, None]
    lag = 32 * distance + 32 + torch.arange(64)[:, None] - torch.arange(32)
    expected = (exact.tau * exact.nu / 8)[per_head] * variance(exact, lag.double()).log2()
    expected = expected + (exact.tau * exact.kappa * (exact.nu.log2() - 1))[per_head]
    # Of a light distance the table's exponent includes that of E.
    smallest = exact.mu[:, None] * (32 * torch.arange(5) + 128) / math.log(2)
    light = (smallest <= LIGHT_EXPONENT.value)[..., None, None]
    expected = expected - torch.where(light, exact.mu[per_head] * lag / math.log(2), 0.0)
    shiftless = slice(SHIFT_TERM.value)
    actual = rows[:, shiftless].double() @ table[:, :, shiftless].double()
    error = (actual - expected).abs().amax((-1, -2))
    is_marked = marks > 0
    assert (error[~is_marked] <= BOUND.value + 1e-5).all()
    assert (marks[is_marked] == distance.reshape(5).expand(6, 5)[is_marked] + 1).all()
    assert not is_marked[:, 2:].any() and is_marked[:, 0].any()
    lag = (64 - torch.arange(128)).clamp(min=0).double()
    expected = torch.stack([decay(exact.mu, lag), variance(exact, lag)], -1)
    # Products and sums of a few terms, none of which cancel.
    torch.testing.assert_close(lags[..., :2].double(), expected, rtol=16 * 2.0**-24, atol=1e-37)
    level = (exact.tau * exact.nu / 8)[:, None] * variance(exact, lag).log2()
    tolerance = (exact.tau * exact.nu / 8)[:, None] * 16 * 2.0**-24 * (1 + level.abs())
    assert ((lags[..., 2] - level).abs() <= tolerance).all()


@pytest.mark.usefixtures("functions_off")
@SPACINGS
def test_any_processor(irregular):
    check(inputs_of(2, 71, 1, 12, torch.float32, irregular=irregular))


def test_strided_inputs():
    inputs = inputs_of(2, 40, 3, 8, torch.float32)
    expected = fused(inputs)
    q = inputs.q.transpose(1, 2).contiguous().transpose(1, 2)
    k = inputs.k.transpose(1, 3).contiguous().transpose(1, 3)
    v = inputs.v.repeat(1, 1, 1, 2)[..., :16]
    for got, target in zip(fused(inputs._replace(q=q, k=k, v=v)), expected, strict=True):
        assert torch.equal(got, target) and got.is_contiguous()


@KERNELS
def test_the_evidence_is_optional(kernel):
    inputs = inputs_of(1, 40, 2, 8, torch.float32)
    target = fused(inputs, kernel=kernel)
    result = fused(inputs, kernel=kernel, with_precision=False)
    assert result.precision.shape == (0,)
    exact = eager(inputs, torch.float64, kernel=kernel)

    def eager_errors():
        found = eager(inputs, torch.float32, kernel=kernel)
        return {name: relative_error(getattr(found, name), getattr(exact, name)) for name in ("out", "log_norm")}

    expected = {"out": target.out, "log_norm": target.log_norm}
    assert_variants_agree(result._asdict(), expected, lambda: allowed_errors(eager_errors, torch.float32))


def test_repeats_bit_by_bit():
    inputs = inputs_of(1, 75, 2, 8, torch.float16)
    for first, second in zip(fused(inputs), fused(inputs), strict=True):
        assert torch.equal(first, second)


def test_launch_table():
    """The nearest lower architecture, the next larger width."""
    assert launch("forward", (8, 6), 64, torch.float16) == launch("forward", (8, 0), 64, torch.bfloat16)
    assert launch("backward_rows", (8, 9), 128, torch.float16) == launch("backward_rows", (8, 0), 128, torch.float16)
    assert launch("backward_rows", (10, 3), 64, torch.float16) == launch("backward_rows", (10, 0), 64, torch.float16)
    assert launch("backward_rows", (8, 9), 128, torch.float16) != launch("backward_rows", (9, 0), 128, torch.float16)
    assert launch("forward", (9, 0), 72, torch.float16) == launch("forward", (9, 0), 128, torch.float16)
    assert launch("forward", (7, 5), 16, torch.float32) == launch("forward", (8, 0), 16, torch.float32)


def test_blocks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="multiple"):
        fused(inputs_of(1, 5, 1, 8, torch.float32), blocks=Launch(64, 48, 4, 1))
