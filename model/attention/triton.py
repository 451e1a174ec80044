"""Robust Filter Attention by the fused kernels: their registration as operators of torch, and the way in from Python.

The equations are those of `reference.py`; `triton_forward.py` and `triton_backward.py` compute them, and
`triton_rotation.py` the way into the rotating frame and back. The operators `rfa::attention`,
`rfa::attention_backward` and `rfa::rotate` are opaque: compilers and `torch.export` see their
shapes and no more. Memory is O(N), gradients are the same from run to run, and there is no second derivative. The
scalars of the heads travel as one tensor `heads` `[H, 6]`: mu, sigma2, eta2, gamma2, nu, tau. A time travels as two
float32 whose sum it is, counted from the first key: a single float32 resolves minutes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfa.model.attention.reference import AttentionResult
from rfa.model.attention.triton_backward import backward
from rfa.model.attention.triton_far import far_horizons
from rfa.model.attention.triton_forward import forward
from rfa.model.attention.triton_rotation import rotation
from rfa.model.attention.validation import check_far_field
from rfa.model.dynamics import Dynamics, rotate
from rfa.runtime.text.config import KERNELS, Kernel, check_choice

_PLACES = (
    "Tensor? query_stamps, Tensor? key_stamps, Tensor? query_starts, Tensor? key_starts, "
    "SymInt longest, SymInt longest_keys, bool is_gaussian"
)


@torch.library.custom_op(
    "rfa::attention",
    mutates_args=(),
    schema=(
        f"(Tensor q, Tensor k, Tensor v, Tensor heads, {_PLACES}, bool with_precision, Tensor? horizons=None, "
        "bool needs_decay=True) -> (Tensor, Tensor, Tensor)"
    ),
)
def attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Tensor,
    query_stamps: Tensor | None,
    key_stamps: Tensor | None,
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    longest: int,
    longest_keys: int,
    is_gaussian: bool,
    with_precision: bool,
    horizons: Tensor | None = None,
    needs_decay: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """out `[B, n, H, W]`, log_norm `[B, n, H]` float32, precision likewise, or `[0]` where it is not wanted.

    `longest_keys` and `needs_decay` are for the gradient only: without the latter that of mu is 0. `horizons` `[H]`
    int32, the first far lag of each head, for times that are token numbers: what is beyond is taken in closed form.
    """
    places = (query_stamps, key_stamps, query_starts, key_starts)
    with torch.cuda.device_of(q):
        return forward(q, k, v, heads, *places, longest, is_gaussian, with_precision, horizons)


@attention_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Tensor,
    query_stamps: Tensor | None,
    key_stamps: Tensor | None,
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    longest: int,
    longest_keys: int,
    is_gaussian: bool,
    with_precision: bool,
    horizons: Tensor | None = None,
    needs_decay: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = q.shape[:3]
    # Not `empty_like`: it would promise the strides of a transposed q, and compiled code would believe it.
    log_norm = heads.new_empty(rows)
    return q.new_empty(q.shape), log_norm, heads.new_empty(rows if with_precision else (0,))


@torch.library.custom_op(
    "rfa::attention_backward",
    mutates_args=(),
    schema=(
        "(Tensor grad_out, Tensor grad_log_norm, Tensor? grad_precision, Tensor q, Tensor k, Tensor v, Tensor heads, "
        f"Tensor out, Tensor log_norm, {_PLACES}, Tensor? horizons=None, bool needs_heads=True, "
        "bool needs_decay=True) "
        "-> (Tensor, Tensor, Tensor, Tensor)"
    ),
)
def attention_backward_op(
    grad_out: Tensor,
    grad_log_norm: Tensor,
    grad_precision: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Tensor,
    out: Tensor,
    log_norm: Tensor,
    query_stamps: Tensor | None,
    key_stamps: Tensor | None,
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    longest: int,
    longest_keys: int,
    is_gaussian: bool,
    horizons: Tensor | None = None,
    needs_heads: bool = True,
    needs_decay: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v in their dtypes and of heads `[H, 6]`, zeros where they are not needed."""
    gradients = (grad_out, grad_log_norm, grad_precision)
    places = (query_stamps, key_stamps, query_starts, key_starts)
    with torch.cuda.device_of(q):
        return backward(
            *gradients, q, k, v, heads, out, log_norm, *places, longest, longest_keys, is_gaussian, horizons,
            needs_dynamics=needs_heads, needs_decay=needs_decay,
        )  # fmt: skip


@attention_backward_op.register_fake
def _(
    grad_out: Tensor,
    grad_log_norm: Tensor,
    grad_precision: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), heads.new_empty(heads.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """Save what the gradient needs."""
    q, k, v, heads, *places, longest, longest_keys, is_gaussian, with_precision, horizons, needs_decay = inputs
    out, log_norm, _ = output
    ctx.save_for_backward(q, k, v, heads, out, log_norm, horizons, *places)
    ctx.sizes = longest, longest_keys, is_gaussian
    ctx.with_precision, ctx.needs_decay = with_precision, needs_decay
    ctx.set_materialize_grads(False)


def _gradient(
    ctx: Any, grad_out: Tensor | None, grad_log_norm: Tensor | None, grad_precision: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Of q, k, v and heads; the other arguments have none."""
    q, k, v, heads, out, log_norm, horizons, *places = ctx.saved_tensors
    gradients = attention_backward_op(
        torch.zeros_like(out) if grad_out is None else grad_out,
        torch.zeros_like(log_norm) if grad_log_norm is None else grad_log_norm,
        grad_precision if ctx.with_precision else None,
        # Of the heads a third of what the pass over rows issues, and half as much again with that of mu.
        q, k, v, heads, out, log_norm, *places, *ctx.sizes, horizons, ctx.needs_input_grad[3], ctx.needs_decay,
    )  # fmt: skip
    return (*gradients, *(None,) * 10)


attention_op.register_autograd(_gradient, setup_context=_keep)


@torch.library.custom_op(
    "rfa::rotate", mutates_args=(), schema="(Tensor x, Tensor cos, Tensor sin, bool is_inverse) -> Tensor"
)
def rotate_op(x: Tensor, cos: Tensor, sin: Tensor, is_inverse: bool) -> Tensor:
    """x `[B, N, H, 2D]` turned by the phase whose cosine and sine these are, `[1 or B, N, H, D]`."""
    with torch.cuda.device_of(x):
        return rotation(x, cos, sin, is_inverse)


@rotate_op.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, is_inverse: bool) -> Tensor:
    return x.new_empty(x.shape)


def _keep_phase(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
    _, cos, sin, ctx.is_inverse = inputs
    ctx.save_for_backward(cos, sin)


def _rotate_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return rotate_op(gradient, *ctx.saved_tensors, not ctx.is_inverse), None, None, None


rotate_op.register_autograd(_rotate_back, setup_context=_keep_phase)


def fused_rotation(*tensors: Tensor, phase: Tensor, is_inverse: bool = False) -> tuple[Tensor, ...]:
    """Tensors `[B, N, H, 2D]` times e^{i phase}, or e^{-i phase}, each rounded to its dtype.

    phase: `[N, H, D]` or `[B, N, H, D]`, float32, wrapped.
    """
    if phase.requires_grad:  # learned frequencies: the kernel has no gradient of the phase
        turn = -phase if is_inverse else phase
        return tuple(rotate(x.float(), turn).to(x.dtype) for x in tensors)
    shape = (-1, *phase.shape[-3:])
    cos, sin = torch.cos(phase).reshape(shape), torch.sin(phase).reshape(shape)
    return tuple(rotate_op(x, cos, sin, is_inverse) for x in tensors)


def stack_heads(dynamics: Dynamics) -> Tensor:
    """mu, sigma2, eta2, gamma2, nu, tau of every head, `[H, 6]` float32; differentiable."""
    d = dynamics
    return torch.stack([x.to(torch.float32) for x in (d.mu, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau)], dim=-1)


def _stamps(times: Tensor, origin: Tensor) -> Tensor:
    """Times since `origin`, both float64, as hi + lo `[1 or B, n, 2]` float32: 48 bits of the difference."""
    since = times - origin
    high = since.to(torch.float32)
    return torch.stack([high, (since - high).to(torch.float32)], dim=-1)


def _origin(key_times: Tensor, starts: Tensor, key_starts: Tensor, length: int) -> Tensor:
    """Time of the first key of the packed sequence that each of `length` tokens belongs to, `[1, length]`."""
    return key_times[:, key_starts[:-1]].repeat_interleave(starts.diff(), dim=1, output_size=length)


def _stamps_of_both(
    query_times: Tensor, key_times: Tensor, query_starts: Tensor | None, key_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Stamps of queries and keys, from the first key of each batch row or of each packed sequence."""
    own, past = (times.to(torch.float64).reshape(-1, times.shape[-1]) for times in (query_times, key_times))
    query_origin = key_origin = past[:, :1]
    if query_starts is not None and key_starts is not None:
        query_origin = _origin(past, query_starts, key_starts, own.shape[1])
        key_origin = _origin(past, key_starts, key_starts, past.shape[1])
    return _stamps(own, query_origin), _stamps(past, key_origin)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dynamics: Dynamics,
    *,
    query_times: Tensor | None = None,
    key_times: Tensor | None = None,
    query_starts: Tensor | None = None,
    key_starts: Tensor | None = None,
    kernel: Kernel = "student_t",
    with_precision: bool = True,
    far_field: float | None = None,
) -> AttentionResult:
    """RFA of rotated queries over rotated keys, each query seeing the keys up to its own.

    The caller has asked `fused_refusal` whether the kernels run these inputs, and vouches for the values.

    Args:
        q: `[B, n, H, 2D]`; k, v: `[B, M, H, 2D]`, M >= n, of one dtype: float32, float16 or bfloat16. The last n keys
            are the queries' own; those before them are a prefix cache.
        query_times, key_times: `[n]` and `[M]`, or `[B, n]` and `[B, M]`; None = the token numbers.
        query_starts, key_starts: `[S + 1]` int32, both or neither: S sequences one behind the other in a batch of one,
            each with at least one query and aligned as above.
        with_precision: False leaves the evidence out (zeros).
        far_field: as in `robust_filter_attention`.

    Returns:
        out in the dtype of q, log_norm and precision in float32.
    """
    check_choice("kernel", kernel, KERNELS)
    check_far_field(far_field, query_times)
    for name, ours, theirs in (("times", query_times, key_times), ("starts", query_starts, key_starts)):
        if (ours is None) != (theirs is None):
            raise ValueError(f"query_{name} and key_{name} go together, got one of them")
    longest, longest_keys = q.shape[1], k.shape[1]
    if query_starts is not None and key_starts is not None:
        longest, longest_keys = int(query_starts.diff().max()), int(key_starts.diff().max())
    query_stamps = key_stamps = None
    if query_times is not None and key_times is not None:
        query_stamps, key_stamps = _stamps_of_both(query_times, key_times, query_starts, key_starts)
    heads = stack_heads(dynamics)
    horizons = None if far_field is None else far_horizons(heads, far_field)
    out, log_norm, precision = attention_op(
        q, k, v, heads, query_stamps, key_stamps, query_starts, key_starts,
        longest, longest_keys, kernel == "gaussian", with_precision, horizons, dynamics.mu.requires_grad,
    )  # fmt: skip
    return AttentionResult(out, log_norm, precision if with_precision else torch.zeros_like(log_norm))
