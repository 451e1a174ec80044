"""The fused backward kernels of attention, in Triton's interpreter, against autograd through the reference in float64.

The one tolerance is that of `tests.rounding`: what autograd through the eager code may be
off on any processor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from rfa.benchmarks.kernels.cases import AttentionInputs, rfa_inputs
from rfa.model.attention.reference import attend
from rfa.model.dynamics import Dynamics
from tests.rounding import allowed_errors, assert_within_rounding, relative_error

pytest.importorskip("triton")

from rfa.model.attention.call import AttentionCall
from rfa.model.attention.launch import Launch
from rfa.model.attention.triton import stack_heads
from rfa.model.attention.triton_backward import OutputGradients, backward
from tests.kernels import assert_variants_agree

NAMES = ("q", "k", "v", "mu", "sigma2", "eta2", "gamma2", "nu", "tau")
pytestmark = pytest.mark.usefixtures("on_the_gpu")
slow = partial(pytest.param, marks=pytest.mark.slow)
ROWS, COLUMNS = Launch(32, 32, 4, 1), Launch(16, 32, 4, 1)


class Weights(NamedTuple):
    """Gradients of out, log_norm and precision."""

    out: Tensor
    log_norm: Tensor
    precision: Tensor | None

    def of(self, start: int, stop: int) -> Weights:
        """Those of a stretch of queries."""
        return Weights(*(None if x is None else x[:, start:stop] for x in self))


def random_weights(inputs: AttentionInputs, queries: int, with_precision: bool, seed: int = 1) -> Weights:
    generator = torch.Generator("cpu").manual_seed(seed)
    batch, _, heads, width = inputs.q.shape
    out = torch.randn(batch, queries, heads, width, generator=generator, device="cpu").to(inputs.q)
    log_norm, precision = torch.randn(2, batch, queries, heads, generator=generator, device="cpu").to(inputs.q.device)
    return Weights(out, log_norm, precision if with_precision else None)


class Oracle(NamedTuple):
    """What the reference returns, and its gradients by name."""

    out: Tensor
    log_norm: Tensor
    gradients: dict[str, Tensor]


def reference(inputs: AttentionInputs, weights: Weights, kernel: str, dtype: torch.dtype) -> Oracle:
    """Autograd through the reference, computing in `dtype`; the last queries where there are fewer than keys."""
    d = inputs.dynamics
    queries, total = weights.out.shape[1], inputs.k.shape[1]
    tensors = (inputs.q[:, total - queries :], inputs.k, inputs.v, d.mu, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau)
    leaves = [x.detach().to(dtype).clone().requires_grad_() for x in tensors]
    mu, *rest = leaves[3:]
    times = torch.arange(total, dtype=torch.float64)[None] if inputs.times is None else inputs.times
    result = attend(
        *leaves[:3], Dynamics(mu, d.omega.to(dtype), *rest),
        query_times=times[:, total - queries :], key_times=times, kernel=kernel,
    )  # fmt: skip
    pairs = [(x, w) for x, w in zip(result, weights, strict=True) if w is not None]
    gradients = torch.autograd.grad([x for x, _ in pairs], leaves, [w.to(dtype) for _, w in pairs])
    return Oracle(result.out.detach(), result.log_norm.detach(), dict(zip(NAMES, gradients, strict=True)))


def stamps(times: Tensor | None) -> Tensor | None:
    """Times since the first key as hi + lo, `[1 or B, M, 2]`."""
    if times is None:
        return None
    since = times - times[:, :1]
    high = since.to(torch.float32)
    return torch.stack([high, (since - high).to(torch.float32)], -1)


def named(result: tuple[Tensor, ...]) -> dict[str, Tensor]:
    dq, dk, dv, dheads = result
    assert dheads.dtype == torch.float32
    return dict(zip(NAMES, (dq, dk, dv, *dheads.unbind(-1)), strict=True))


def fused(
    inputs: AttentionInputs, weights: Weights, oracle: Oracle, kernel: str = "student_t",
    rows: Launch | None = ROWS, columns: Launch | None = COLUMNS, *, needs_heads: bool = True, needs_decay: bool = True,
) -> dict[str, Tensor]:  # fmt: skip
    """The kernels on the last queries, with the row statistics of the oracle; blocks None are the launch table's."""
    queries, total = weights.out.shape[1], inputs.k.shape[1]
    key_stamps = stamps(inputs.times)
    query_stamps = None if key_stamps is None else key_stamps[:, total - queries :].contiguous()
    call = AttentionCall(
        inputs.q[:, total - queries :], inputs.k, inputs.v, stack_heads(inputs.dynamics), query_stamps, key_stamps,
        is_gaussian=kernel == "gaussian", needs_decay=needs_decay,
    )  # fmt: skip
    return named(backward(
        OutputGradients(*weights), call, oracle.out.to(inputs.q.dtype), oracle.log_norm.float(),
        row_blocks=rows, column_blocks=columns, needs_heads=needs_heads,
    ))  # fmt: skip


def errors(actual: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Relative errors; of the scalars the root mean square, for each is a few sums of terms that nearly cancel."""
    by_name = {name: relative_error(actual[name], expected) for name, expected in exact.items()}
    scalars = [by_name[name] for name in NAMES[3:]]
    return {name: by_name[name] for name in "qkv"} | {
        "scalars": sum(e * e for e in scalars) ** 0.5 / len(scalars) ** 0.5
    }


def assert_close(
    actual: dict[str, Tensor], eager: Callable[[], dict[str, Tensor]], exact: dict[str, Tensor], dtype: torch.dtype
) -> None:
    """`eager` runs the eager code, in float32."""
    for name, expected in exact.items():
        assert actual[name].shape == expected.shape, name
        assert actual[name].dtype == (dtype if name in "qkv" else torch.float32), name

    def eager_errors() -> dict[str, float]:
        return errors({name: x.to(dtype) if name in "qkv" else x for name, x in eager().items()}, exact)

    assert_within_rounding(errors(actual, exact), eager_errors, dtype)


def check(
    inputs: AttentionInputs, kernel: str = "student_t", *, queries: int | None = None, with_precision: bool = True,
    rows: Launch | None = ROWS, columns: Launch | None = COLUMNS,
) -> None:  # fmt: skip
    # What the kernels get is float32: the oracle must start from the same numbers.
    inputs = inputs._replace(dynamics=inputs.dynamics.to(torch.float32))
    weights = random_weights(inputs, queries or inputs.q.shape[1], with_precision)
    oracle = reference(inputs, weights, kernel, torch.float64)
    actual = fused(inputs, weights, oracle, kernel, rows, columns)
    exact = oracle.gradients
    if inputs.q.dtype != torch.float32:
        # dO·out is formed from `out` as it was handed on, in 16 bits. To the scalars that is a change of g.
        lost = oracle.out - oracle.out.to(inputs.q.dtype).double()
        changed = weights.log_norm.double() + (weights.out.double() * lost).sum(-1)
        given = reference(inputs, weights._replace(log_norm=changed), kernel, torch.float64).gradients
        exact = {name: exact[name] if name in "qkv" else given[name] for name in NAMES}
    assert_close(actual, lambda: reference(inputs, weights, kernel, torch.float32).gradients, exact, inputs.q.dtype)


def with_mu(inputs: AttentionInputs, *mu: float) -> AttentionInputs:
    dynamics = replace(inputs.dynamics, mu=torch.tensor(mu, dtype=inputs.dynamics.mu.dtype))
    return inputs._replace(dynamics=dynamics)


@pytest.mark.slow  # Triton's interpreter; test_triton_ops.py compares every gradient
@pytest.mark.parametrize(
    ("is_half", "irregular", "with_precision", "is_gaussian"),
    # Any three of the four choices meet in every way, in half of the runs.
    [choices for choices in itertools.product([False, True], repeat=4) if sum(choices) % 2 == 0],
)
def test_gradients(is_half: bool, irregular: bool, with_precision: bool, is_gaussian: bool) -> None:
    inputs = rfa_inputs(1, 75, 2, 12, dtype=torch.float16 if is_half else torch.float32, irregular=irregular)
    check(inputs, "gaussian" if is_gaussian else "student_t", with_precision=with_precision)


@pytest.mark.parametrize("kernel", ["student_t", "gaussian"])
def test_gradients_of_bfloat16(kernel: str) -> None:
    check(rfa_inputs(1, 75, 2, 8, dtype=torch.bfloat16), kernel)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(16, torch.float16), (40, torch.float32), (64, torch.float16), (128, torch.float32), (256, torch.float16)],
)
def test_widths(width: int, dtype: torch.dtype) -> None:
    check(rfa_inputs(1, 70, 2, width // 2, dtype=dtype, irregular=width == 40))


@pytest.mark.parametrize("length", [1, 2, 33, 64])
def test_lengths(length: int) -> None:
    check(rfa_inputs(2, length, 2, 8, dtype=torch.float32, seed=length))


@pytest.mark.parametrize(
    ("rows", "columns"), [((16, 64), (64, 16)), slow((64, 16), (16, 64)), slow((32, 32), (32, 32))]
)
def test_shapes_of_blocks(rows: tuple[int, int], columns: tuple[int, int]) -> None:
    inputs = rfa_inputs(1, 150, 2, 8, dtype=torch.float32, irregular=True)
    check(inputs, rows=Launch(*rows, 4, 1), columns=Launch(*columns, 4, 1))


@pytest.mark.parametrize(
    ("mu", "irregular"),
    [
        ((0.0, 1e-6), False),
        slow((1e-3, 5e-3), False),
        ((1e-6, 5e-3), True),
        slow((2.0, 40.0), False),
        ((2.0, 40.0), True),
    ],
)
def test_decay_rates(mu: tuple[float, float], irregular: bool) -> None:
    """Zero and tiny (the series), between, and decays that underflow within a block."""
    check(with_mu(rfa_inputs(1, 130, 2, 8, dtype=torch.float32, irregular=irregular), *mu))


def test_tails_that_are_nearly_gaussian() -> None:
    inputs = rfa_inputs(1, 90, 2, 8, dtype=torch.float32)
    check(inputs._replace(dynamics=replace(inputs.dynamics, nu=torch.tensor([1e4, 1e9], dtype=torch.float64))))


@pytest.mark.parametrize("irregular", [False, True])
@pytest.mark.parametrize("queries", [1, 33, 64])
def test_queries_behind_a_prefix(queries: int, irregular: bool) -> None:
    inputs = rfa_inputs(1, 110, 2, 8, dtype=torch.float32, irregular=irregular, seed=2)
    check(inputs, queries=queries)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_large_inputs(dtype: torch.dtype) -> None:
    check(rfa_inputs(1, 90, 2, 16, dtype=dtype, scale=30.0))


def test_times_far_from_zero() -> None:
    inputs = rfa_inputs(1, 90, 2, 8, dtype=torch.float32, irregular=True)
    assert inputs.times is not None
    check(inputs._replace(times=inputs.times * 1e-2 + 1e9))


@pytest.mark.parametrize(("irregular", "kernel"), [(False, "student_t"), (True, "gaussian")])
def test_packed_sequences(irregular: bool, kernel: str) -> None:
    """Sequences of several lengths in one row, some with a prefix, equal the same sequences one by one."""
    lengths = [(1, 1), (37, 37), (5, 70), (66, 66), (1, 20)]
    parts = [
        rfa_inputs(1, total, 2, 8, dtype=torch.float32, irregular=irregular, seed=i)
        for i, (_, total) in enumerate(lengths)
    ]
    dynamics = parts[0].dynamics
    parts = [part._replace(dynamics=dynamics) for part in parts]
    weights = [random_weights(p, n, True, seed) for seed, (p, (n, _)) in enumerate(zip(parts, lengths, strict=True))]
    exact = [reference(p, w, kernel, torch.float64) for p, w in zip(parts, weights, strict=True)]

    def eager() -> dict[str, Tensor]:
        return joined([reference(p, w, kernel, torch.float32) for p, w in zip(parts, weights, strict=True)])

    def joined(oracles: list[Oracle]) -> dict[str, Tensor]:
        by_name = {name: [oracle.gradients[name] for oracle in oracles] for name in NAMES}
        return {name: torch.cat(x, 1) if name in "qkv" else torch.stack(x).sum(0) for name, x in by_name.items()}

    def starts(counts: list[int]) -> Tensor:
        return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)

    queries, totals = [n for n, _ in lengths], [total for _, total in lengths]
    q = torch.cat([p.q[:, total - n :] for p, (n, total) in zip(parts, lengths, strict=True)], 1)
    k, v = (torch.cat([p[i] for p in parts], 1) for i in (1, 2))
    key_stamps = [stamps(p.times) for p in parts]
    pieces = [None if s is None else s[:, -n:] for s, n in zip(key_stamps, queries, strict=True)]
    places = (torch.cat(pieces, 1), torch.cat(key_stamps, 1)) if irregular else (None, None)
    gradients = OutputGradients(*(torch.cat(w, 1) for w in zip(*weights, strict=True)))
    call = AttentionCall(
        q, k, v, stack_heads(dynamics), *places, starts(queries), starts(totals), max(queries), max(totals),
        kernel == "gaussian",
    )  # fmt: skip
    out, log_norm = (torch.cat([getattr(oracle, name).float() for oracle in exact], 1) for name in ("out", "log_norm"))
    actual = backward(gradients, call, out, log_norm, row_blocks=ROWS, column_blocks=COLUMNS)
    assert_close(named(actual), eager, joined(exact), torch.float32)


@pytest.mark.usefixtures("functions_off")
def test_any_processor() -> None:
    """A row of one key, where the eager code is right by luck, and blocks of all kinds."""
    check(rfa_inputs(2, 1, 2, 8, dtype=torch.float32, seed=1))
    check(rfa_inputs(1, 64, 2, 8, dtype=torch.float32, irregular=True), rows=Launch(16, 64, 4, 1))


def assert_left_out(names: tuple[str, ...], inputs: AttentionInputs, **options: bool) -> None:
    """With these options the gradients of `names` are 0, and the others as they are without."""
    inputs = inputs._replace(dynamics=inputs.dynamics.to(torch.float32))
    weights = random_weights(inputs, inputs.q.shape[1], True)
    oracle, dtype = reference(inputs, weights, "student_t", torch.float64), inputs.q.dtype
    full, partial = fused(inputs, weights, oracle), fused(inputs, weights, oracle, **options)
    for name in names:
        assert full[name].abs().min() > 0 and not partial.pop(name).any(), name

    def eager_errors() -> dict[str, float]:
        found = reference(inputs, weights, "student_t", torch.float32).gradients
        return {
            name: relative_error(found[name].to(dtype) if name in "qkv" else found[name], exact)
            for name, exact in oracle.gradients.items()
        }

    kept = {name: full[name] for name in partial}
    assert_variants_agree(partial, kept, lambda: allowed_errors(eager_errors, dtype))


def test_without_gradients_of_the_dynamics() -> None:
    assert_left_out(NAMES[3:], rfa_inputs(1, 60, 2, 8, dtype=torch.float32), needs_heads=False)


@pytest.mark.parametrize("irregular", [False, True])
def test_without_the_gradient_of_the_decay(irregular: bool) -> None:
    inputs = rfa_inputs(1, 60, 2, 8, dtype=torch.float16, irregular=irregular)
    assert_left_out(("mu",), inputs, needs_decay=False)
