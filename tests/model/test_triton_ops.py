"""The fused kernels as operators of torch and behind the public function, against the float64 reference.

Where there is no GPU they run in triton's interpreter.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from rfa import robust_filter_attention
from rfa.model.attention import api, validation
from rfa.model.attention.api import runs_fused
from rfa.model.attention.triton import (
    fused_attention,
    fused_rotation,
)
from rfa.model.dynamics import rotate, wrapped_phase
from tests.kernels import IS_INTERPRETED
from tests.matching import assert_matches_reference
from tests.model.triton_inputs import DEVICE, fused, needs_gpu, small, starts_of
from tests.rounding import assert_within_rounding, relative_error

# The tolerance rule: outputs and every gradient.

CASES = [
    (43, torch.float32, "student_t", True),
    pytest.param(43, torch.float32, "gaussian", False, marks=pytest.mark.slow),
    pytest.param(67, torch.float16, "student_t", False, marks=pytest.mark.slow),
    (67, torch.bfloat16, "student_t", True),
]


@pytest.mark.parametrize(("length", "dtype", "kernel", "irregular"), CASES, ids=str)
def test_matches_the_reference(length, dtype, kernel, irregular):
    assert_matches_reference(fused, small(1, length, 3, dtype=dtype, irregular=irregular), kernel=kernel)


def everything(run, inputs):
    """Outputs, and the gradients of every input and scalar of one random loss."""
    names = ("mu", "sigma2", "eta2", "gamma2", "nu", "tau")
    leaves = {name: getattr(inputs.dynamics, name).clone().requires_grad_() for name in names}
    tensors = [x.clone().requires_grad_() for x in inputs[:3]]
    result = run(*tensors, replace(inputs.dynamics, **leaves), times=inputs.times)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator).to(DEVICE) for x in result]
    loss = sum((w * x).sum() for w, x in zip(weights, result, strict=True))
    return *result, *torch.autograd.grad(loss, [*tensors, *leaves.values()])


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ((1, 1, 1, 8), "student_t"),
        ((1, 1, 1, 8), "gaussian"),
        ((3, 2, 2, 9), "student_t"),
        ((1, 37, 2, 20), "gaussian"),
        ((1, 33, 1, 64), "student_t"),
        ((1, 9, 1, 128), "gaussian"),
    ],
    ids=str,
)
def test_odd_sizes(shape, kernel):
    inputs = small(*shape, irregular=True)
    exact = everything(partial(robust_filter_attention, impl="reference", kernel=kernel), inputs.to(torch.float64))
    for a, b in zip(everything(partial(fused, kernel=kernel), inputs), exact, strict=True):
        assert a.shape == b.shape
        assert relative_error(a, b) <= 1e-4 if b.any() else not a.any()


# Packed sequences.

LENGTHS = (5, 1, 37, 12)


@pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
@pytest.mark.parametrize(
    ("impl", "dtype"),
    [
        ("reference", torch.float64),
        ("triton", torch.float32),
        pytest.param("triton", torch.bfloat16, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_packed_sequences_equal_each_alone(impl, dtype, irregular):
    """Bit for bit. Times fall from one sequence to the next: each has its own clock."""
    inputs = small(length=sum(LENGTHS), irregular=irregular, dtype=dtype)
    run = partial(robust_filter_attention, dynamics=inputs.dynamics, impl=impl)
    parts = [x.split(LENGTHS, 1) for x in inputs[:3]]
    times = [None] * len(LENGTHS)
    if irregular:
        times = [part - 50.0 * i for i, part in enumerate(inputs.times.split(LENGTHS, 1))]
    # A GPU has other kernels for what is not packed, which round otherwise.
    starts = [None if impl == "reference" or IS_INTERPRETED else starts_of([length]) for length in LENGTHS]
    alone = [run(q, k, v, times=t, cu_seqlens=s) for q, k, v, t, s in zip(*parts, times, starts, strict=True)]
    together = run(*inputs[:3], times=torch.cat(times, 1) if irregular else None, cu_seqlens=starts_of(LENGTHS))
    for actual, expected in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(actual, torch.cat(expected, dim=1))


@pytest.mark.parametrize("impl", ["reference", "triton"])
@pytest.mark.parametrize(
    ("starts", "message"),
    [
        (torch.tensor([0, 9]), "cu_seqlens must be int32, got torch.int64"),
        (torch.tensor([[0, 9]], dtype=torch.int32), r"shape \[S \+ 1\] with S >= 1, got \[1, 2\]"),
        (torch.tensor([9], dtype=torch.int32), r"shape \[S \+ 1\] with S >= 1, got \[1\]"),
        (torch.tensor([1, 9], dtype=torch.int32), "start at 0 and end at N = 9, got 1 and 9"),
        (torch.tensor([0, 8], dtype=torch.int32), "start at 0 and end at N = 9, got 0 and 8"),
        (torch.tensor([0, 4, 4, 9], dtype=torch.int32), r"no sequence may be empty, got \[0, 4, 4, 9\]"),
        (torch.tensor([0, 9], dtype=torch.int32, device="meta"), "cu_seqlens must be on the device of q"),
    ],
)
def test_bad_sequences_are_refused(starts, message, impl):
    moved = starts if starts.device.type == "meta" else starts.to(DEVICE)
    with pytest.raises(ValueError, match=message):
        robust_filter_attention(*small()[:4], impl=impl, cu_seqlens=moved)


def test_packed_sequences_are_one_batch():
    with pytest.raises(ValueError, match="a batch size of one, got 2"):
        fused(*small(batch=2)[:4], cu_seqlens=starts_of((4, 5)))


def test_times_of_packed_sequences_must_not_fall_within_one():
    times = torch.tensor([5.0, 6, 7, 1, 2, 1, 2, 3, 4], device=DEVICE)
    inputs = small()
    assert fused(*inputs[:4], times=times, cu_seqlens=starts_of((3, 2, 4))).out.isfinite().all()
    with pytest.raises(ValueError, match="non-decreasing, got a step of -1"):
        fused(*inputs[:4], times=times, cu_seqlens=starts_of((3, 6)))


# What the choice of an implementation promises.


@needs_gpu
def test_auto_is_fused_on_a_gpu():
    inputs = small()
    for a, b in zip(robust_filter_attention(*inputs[:4]), fused(*inputs[:4]), strict=True):
        assert torch.equal(a, b)


def test_auto_leaves_wide_heads_of_float32_to_the_eager_code(monkeypatch):
    monkeypatch.setattr(api, "fused_refusal", lambda *_: None)
    gpu = torch.device("cuda")
    assert runs_fused("auto", gpu, torch.float32, 128)
    assert not runs_fused("auto", gpu, torch.float32, 130)
    assert runs_fused("auto", gpu, torch.bfloat16, 256)
    assert runs_fused("triton", gpu, torch.float32, 256)


@pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
def test_auto_is_the_reference_on_a_cpu(irregular):
    inputs = small(irregular=irregular, device="cpu")
    auto = robust_filter_attention(*inputs[:4], times=inputs.times)
    eager = robust_filter_attention(*inputs[:4], times=inputs.times, impl="reference")
    for a, b in zip(auto, eager, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"dtype": torch.float64}, "torch.bfloat16, got torch.float64"),
        ({"complex_dims": 7}, "heads with 16 to 256 real dimensions, got 14"),
        ({"complex_dims": 129}, "heads with 16 to 256 real dimensions, got 258"),
    ],
)
def test_an_explicit_choice_says_why_it_cannot_run(inputs, message):
    with pytest.raises(ValueError, match=f"impl='triton' cannot be used here: .*{message}"):
        fused(*small(**inputs)[:4])


def test_an_explicit_choice_needs_triton(monkeypatch):
    monkeypatch.setattr(validation, "HAS_TRITON", False)
    with pytest.raises(ValueError, match="cannot be used here: triton is not installed"):
        fused(*small()[:4])


def test_an_explicit_choice_needs_a_gpu_or_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"interpreter \(TRITON_INTERPRET=1\), got cpu"):
        fused(*small(device="cpu")[:4])


def test_an_explicit_choice_refuses_times_that_want_a_gradient():
    inputs = small(irregular=True)
    with pytest.raises(ValueError, match="does not support gradients with respect to times"):
        fused(*inputs[:4], times=inputs.times.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_an_explicit_choice_refuses_a_tail_that_16_bits_cannot_tell_from_a_gaussian_one(dtype):
    q, k, v, dynamics, _ = small(dtype=dtype)
    limit = "cannot be used here: in 16 bits it supports nu and nu · tau up to 100000, got"

    def heads(nu, tau):
        return replace(dynamics, nu=torch.full_like(dynamics.nu, nu), tau=torch.full_like(dynamics.tau, tau))

    assert runs_fused("triton", q.device, dtype, 16, dynamics=heads(1e5, 0.5))
    assert runs_fused("triton", q.device, dtype, 16, dynamics=heads(4e3, 25.0))
    assert runs_fused("triton", q.device, torch.float32, 16, dynamics=heads(1e9, 1.0))
    with pytest.raises(ValueError, match=f"{limit} 200000"):
        fused(q, k, v, heads(2e5, 1.0))
    with pytest.raises(ValueError, match=f"{limit} 125000"):
        fused(q, k, v, heads(5e3, 25.0))


# Times and the prefix cache, on the way to the kernels.


def rotated(inputs):
    """Times, then q, k, v in the rotating frame."""
    times = inputs.times if inputs.times is not None else torch.arange(inputs.q.shape[1], device=DEVICE)
    phase = wrapped_phase(inputs.dynamics.omega, times, torch.float32)
    return times, *(rotate(x, -phase) for x in inputs[:3])


def test_only_differences_of_times_matter():
    """Gaps of a millisecond at 10^9 seconds, where a float32 resolves minutes; every stamp is exact in float64."""
    inputs = small(length=24)
    times = (torch.rand(24, dtype=torch.float64, device=DEVICE).cumsum(0) * 2**13).round() / 2**13
    early, late = (fused_attention(*inputs[:4], query_times=t, key_times=t) for t in (times, times + 10.0**9))
    for a, b in zip(early, late, strict=True):
        assert torch.equal(a, b)
    close = fused(*inputs[:4], times=times / 2**10), fused(*inputs[:4], times=times / 2**10 + 2.0**20)
    for a, b in zip(*close, strict=True):
        assert relative_error(a, b) <= 1e-6


@pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
@pytest.mark.parametrize("n", [1, 6, 19])
def test_queries_over_a_prefix_equal_rows_of_the_full_pass(n, irregular):
    inputs = small(2, 19, irregular=irregular)
    times, q, k, v = rotated(inputs)
    own, past = (times[..., -n:], times) if irregular else (None, None)
    full = fused_attention(q, k, v, inputs.dynamics, query_times=past, key_times=past)
    late = fused_attention(q[:, -n:], k, v, inputs.dynamics, query_times=own, key_times=past)
    for actual, expected in zip(late, full, strict=True):
        assert relative_error(actual, expected[:, -n:]) <= 1e-6


@pytest.mark.parametrize(("given", "message"), [("query_times", "query_times and"), ("key_starts", "query_starts and")])
def test_queries_and_keys_are_placed_together(given, message):
    with pytest.raises(ValueError, match=f"{message}.* must be set together"):
        fused_attention(*small()[:4], **{given: starts_of((4, 5))})


# The rotating frame.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_inverse", [False, True])
@pytest.mark.parametrize("shape", [(2, 37, 3, 8), (1, 1, 1, 9), (3, 130, 2, 20), (1, 5, 2, 128)], ids=str)
@pytest.mark.parametrize("is_shared", [False, True])
def test_rotations_match_the_eager_one(shape, is_inverse, dtype, is_shared):
    """Values and gradients, of a tensor with strides of its own."""
    batch, length, heads, dims = shape
    exact = torch.randn(batch, heads, length, 2 * dims, dtype=torch.float64, device=DEVICE).transpose(1, 2).to(dtype)
    phase = torch.pi * (2 * torch.rand(*shape[is_shared:], device=DEVICE) - 1)
    weight = torch.randn(batch, length, heads, 2 * dims, device=DEVICE).to(dtype)
    sign = -1 if is_inverse else 1

    def eager(x, precision):
        return rotate(x.to(precision), sign * phase.to(precision)).to(torch.promote_types(dtype, precision))

    def with_gradient(run):
        leaf = exact.clone().requires_grad_()
        y = run(leaf)
        return y, *torch.autograd.grad((y * weight).sum(), leaf)

    actual = with_gradient(lambda x: fused_rotation(x, phase=phase, is_inverse=is_inverse)[0])
    truth = eager(exact, torch.float64), rotate(weight.double(), -sign * phase.double())

    def errors(found):
        return {name: relative_error(x, y) for name, x, y in zip(("value", "gradient"), found, truth, strict=True)}

    assert all(x.dtype == dtype for x in actual)
    assert_within_rounding(
        errors(actual), lambda: errors(with_gradient(lambda x: eager(x, torch.float32).to(dtype))), dtype
    )


def test_learned_frequencies_get_their_gradient():
    inputs = small(length=7)
    omegas = [inputs.dynamics.omega.clone().requires_grad_() for _ in range(2)]
    gradients = [
        torch.autograd.grad(
            robust_filter_attention(*inputs[:3], replace(inputs.dynamics, omega=omega), impl=impl).out.square().sum(),
            omega,
        )[0]
        for omega, impl in zip(omegas, ("triton", "reference"), strict=True)
    ]
    # The loss does not depend on the turn of the frame, but each of its parts does.
    assert gradients[0].abs().max() > 0
    assert relative_error(*gradients) <= 1e-3


# At real sizes.


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", ["student_t", "gaussian"])
@pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])  # with and without distant blocks
@pytest.mark.parametrize("shape", [(2, 2048, 4, 32), (1, 1999, 4, 64), (1, 1025, 4, 128), (2, 1024, 4, 12)], ids=str)
def test_matches_the_reference_on_a_gpu(shape, irregular, kernel, dtype):
    assert_matches_reference(fused, small(*shape, dtype=dtype, irregular=irregular), kernel=kernel)


def peak_memory(length):
    """Bytes of a forward and a backward pass in bfloat16, over those of the inputs."""
    q, k, v, dynamics, _ = small(1, length, 2, 32, dtype=torch.bfloat16)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = fused(*leaves, dynamics)
    gradients = torch.autograd.grad(sum(part.float().sum() for part in result), leaves)
    torch.cuda.synchronize()
    assert all(bool(x.isfinite().all()) for x in (*result, *gradients))
    return torch.cuda.max_memory_allocated() - before


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_sequences_match_the_reference_on_a_gpu(dtype):
    lengths = (1, 700, 129, 1, 1000)
    inputs = small(1, sum(lengths), 4, 32, dtype=dtype, irregular=True)
    assert_matches_reference(fused, inputs, cu_seqlens=starts_of(lengths))


@needs_gpu
def test_memory_is_linear_in_the_length():
    peak_memory(4096)
    assert peak_memory(65536) <= 4.4 * peak_memory(16384)


@needs_gpu
def test_runs_at_real_sizes_are_the_same_bit_for_bit():
    inputs = small(1, 65536, 2, 32, dtype=torch.bfloat16)

    def run():
        leaves = [x.clone().requires_grad_() for x in inputs[:3]]
        result = fused(*leaves, inputs.dynamics)
        return (*result, *torch.autograd.grad(sum(part.float().sum() for part in result), leaves))

    for a, b in zip(run(), run(), strict=True):
        assert torch.equal(a, b)
