"""Fused Robust Filter Attention as torch operators: `fused_attention` and `fused_rotation`.

The equations are in `reference.py`, and the kernels in `triton_forward.py`, `triton_backward.py` and
`triton_rotation.py`. Memory is O(N). Gradients are deterministic; second derivatives are not supported. The parameters
of the heads are one tensor `heads` `[H, 6]`: mu, sigma2, eta2, gamma2, nu, tau. Times are sums of two float32 numbers
relative to the first key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfa.model.attention.call import AttentionCall
from rfa.model.attention.reference import AttentionResult
from rfa.model.attention.triton_backward import OutputGradients, backward
from rfa.model.attention.triton_forward import forward
from rfa.model.attention.triton_rotation import rotation
from rfa.model.dynamics import Dynamics, rotate
from rfa.runtime.text.config import KERNELS, Kernel, check_choice

# Fields of `AttentionCall`. They are separate arguments, because schemas of torch do not support nested tuples.
_CALL = (
    "Tensor q, Tensor k, Tensor v, Tensor heads, Tensor? query_stamps, Tensor? key_stamps, Tensor? query_starts, "
    "Tensor? key_starts, SymInt longest, SymInt longest_keys, bool is_gaussian, bool with_precision, "
    "bool needs_decay=True"
)
# Number of tensors, which are the first fields of the call.
_TENSORS = 8


@torch.library.custom_op("rfa::attention", mutates_args=(), schema=f"({_CALL}) -> (Tensor, Tensor, Tensor)")
def attention_op(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute out `[B, n, H, W]`, and log_norm and precision `[B, n, H]` in float32."""
    call = AttentionCall(*arguments)
    with torch.cuda.device_of(call.q):
        return forward(call)


@attention_op.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call = AttentionCall(*arguments)
    rows = call.q.shape[:3]
    # For a transposed q, `empty_like` would return other strides than the kernel does, on which compiled code relies.
    log_norm = call.heads.new_empty(rows)
    return call.q.new_empty(call.q.shape), log_norm, call.heads.new_empty(rows if call.with_precision else (0,))


@torch.library.custom_op(
    "rfa::attention_backward",
    mutates_args=(),
    schema=(
        "(Tensor grad_out, Tensor grad_log_norm, Tensor? grad_precision, Tensor out, Tensor log_norm, "
        f"bool needs_heads, {_CALL}) -> (Tensor, Tensor, Tensor, Tensor)"
    ),
)
def attention_backward_op(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v in their dtypes, and of heads `[H, 6]`. The gradients of heads are zeros if
    they are not needed.
    """
    *gradients, out, log_norm, needs_heads = arguments[:6]
    call = AttentionCall(*arguments[6:])
    with torch.cuda.device_of(call.q):
        return backward(OutputGradients(*gradients), call, out, log_norm, needs_heads=needs_heads)


@attention_backward_op.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v, heads = (x.new_empty(x.shape) for x in AttentionCall(*arguments[6:])[:4])
    return q, k, v, heads


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    call = AttentionCall(*inputs)
    ctx.save_for_backward(*call[:_TENSORS], *output[:2])
    ctx.numbers = call[_TENSORS:]
    ctx.set_materialize_grads(False)


def _gradient(
    ctx: Any, grad_out: Tensor | None, grad_log_norm: Tensor | None, grad_precision: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k, v and heads, and None for the other arguments."""
    *tensors, out, log_norm = ctx.saved_tensors
    call = AttentionCall._make((*tensors, *ctx.numbers))
    gradients = attention_backward_op(
        torch.zeros_like(out) if grad_out is None else grad_out,
        torch.zeros_like(log_norm) if grad_log_norm is None else grad_log_norm,
        grad_precision if call.with_precision else None,
        # The gradient of heads takes a third of the row kernel's time, and the gradient of mu half as much again.
        out, log_norm, ctx.needs_input_grad[3], *call,
    )  # fmt: skip
    return (*gradients, *(None,) * (len(call) - 4))


attention_op.register_autograd(_gradient, setup_context=_save)


@torch.library.custom_op(
    "rfa::rotate", mutates_args=(), schema="(Tensor x, Tensor cos, Tensor sin, bool is_inverse) -> Tensor"
)
def rotate_op(x: Tensor, cos: Tensor, sin: Tensor, is_inverse: bool) -> Tensor:
    """Rotate x `[B, N, H, 2D]` by a phase, of which `cos` and `sin` `[1 or B, N, H, D]` are the cosine and sine."""
    with torch.cuda.device_of(x):
        return rotation(x, cos, sin, is_inverse)


@rotate_op.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, is_inverse: bool) -> Tensor:
    return x.new_empty(x.shape)


def _save_phase(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
    _, cos, sin, ctx.is_inverse = inputs
    ctx.save_for_backward(cos, sin)


def _rotate_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return rotate_op(gradient, *ctx.saved_tensors, not ctx.is_inverse), None, None, None


rotate_op.register_autograd(_rotate_back, setup_context=_save_phase)


def fused_rotation(*tensors: Tensor, phase: Tensor, is_inverse: bool = False) -> tuple[Tensor, ...]:
    """Multiply tensors by e^{i phase} or, if `is_inverse`, by e^{-i phase}, and round to their dtype.

    Args:
        tensors: Tensors `[B, N, H, 2D]`.
        phase: Wrapped phase `[N, H, D]` or `[B, N, H, D]`, float32.
        is_inverse: Whether to rotate back.
    """
    if phase.requires_grad:  # the kernel does not compute the gradient of the phase
        turn = -phase if is_inverse else phase
        return tuple(rotate(x.float(), turn).to(x.dtype) for x in tensors)
    shape = (-1, *phase.shape[-3:])
    cos, sin = torch.cos(phase).reshape(shape), torch.sin(phase).reshape(shape)
    return tuple(rotate_op(x, cos, sin, is_inverse) for x in tensors)


def stack_heads(dynamics: Dynamics) -> Tensor:
    """Stack mu, sigma2, eta2, gamma2, nu and tau of every head as `[H, 6]` float32. The result is differentiable."""
    d = dynamics
    return torch.stack([x.to(torch.float32) for x in (d.mu, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau)], dim=-1)


def _stamps(times: Tensor, origin: Tensor) -> Tensor:
    """Return the times since `origin` as sums hi + lo of two float32 numbers with 48 bits of precision,
    `[1 or B, n, 2]`."""
    since = times - origin
    high = since.to(torch.float32)
    return torch.stack([high, (since - high).to(torch.float32)], dim=-1)


def _origin(key_times: Tensor, starts: Tensor, key_starts: Tensor, length: int) -> Tensor:
    """Return the time of the first key of the packed sequence of each token, `[1, length]`."""
    return key_times[:, key_starts[:-1]].repeat_interleave(starts.diff(), dim=1, output_size=length)


def _stamps_of_both(
    query_times: Tensor, key_times: Tensor, query_starts: Tensor | None, key_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the stamps of queries and keys, relative to the first key of each row or packed sequence."""
    queries, keys = (times.to(torch.float64).reshape(-1, times.shape[-1]) for times in (query_times, key_times))
    query_origin = key_origin = keys[:, :1]
    if query_starts is not None and key_starts is not None:
        query_origin = _origin(keys, query_starts, key_starts, queries.shape[1])
        key_origin = _origin(keys, key_starts, key_starts, keys.shape[1])
    return _stamps(queries, query_origin), _stamps(keys, key_origin)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics, *,
    query_times: Tensor | None = None, key_times: Tensor | None = None,
    query_starts: Tensor | None = None, key_starts: Tensor | None = None,
    kernel: Kernel = "student_t", with_precision: bool = True,
) -> AttentionResult:  # fmt: skip
    """Compute causal RFA of rotated queries over rotated keys.

    The caller must validate the inputs, including with `fused_refusal`.

    Args:
        q: Queries `[B, n, H, 2D]` in float32, float16 or bfloat16.
        k, v: Keys and values `[B, M, H, 2D]`, M >= n, in the dtype of q. The last n keys are those of the queries;
            earlier keys are cached.
        dynamics: Dynamics of the heads.
        query_times, key_times: Times `[n]` and `[M]`, or `[B, n]` and `[B, M]`. The default is the token positions.
        query_starts, key_starts: Cumulative lengths `[S + 1]` int32 of S sequences packed into a batch of one, each
            with at least one query. Set both or neither.
        kernel: "student_t" or "gaussian".
        with_precision: Whether to compute the precision. Otherwise, the result contains zeros.

    Returns:
        `AttentionResult` with out in the dtype of q, and log_norm and precision in float32.
    """
    check_choice("kernel", kernel, KERNELS)
    for name, first, second in (("times", query_times, key_times), ("starts", query_starts, key_starts)):
        if (first is None) != (second is None):
            raise ValueError(f"query_{name} and key_{name} must be set together")
    longest, longest_keys = q.shape[1], k.shape[1]
    if query_starts is not None and key_starts is not None:
        longest, longest_keys = int(query_starts.diff().max()), int(key_starts.diff().max())
    query_stamps = key_stamps = None
    if query_times is not None and key_times is not None:
        query_stamps, key_stamps = _stamps_of_both(query_times, key_times, query_starts, key_starts)
    heads = stack_heads(dynamics)
    out, log_norm, precision = attention_op(
        q, k, v, heads, query_stamps, key_stamps, query_starts, key_starts,
        longest, longest_keys, kernel == "gaussian", with_precision, dynamics.mu.requires_grad,
    )  # fmt: skip
    return AttentionResult(out, log_norm, precision if with_precision else torch.zeros_like(log_norm))
