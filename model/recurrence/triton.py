"""Gated filter slots on a GPU, as operators of torch: `slot_scan_triton` and `slot_step_pooled`.

Equations: `slots_reference.py`, with one reweighting pass. The operators are opaque (`torch.compile` and `torch.export`
call them and do not look inside), take tensors of any strides and hand out contiguous ones. Gradients of the scan
reach all inputs, the initial state and all parameters, from every output and from the final state.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from rfa.model.recurrence import triton_backward as backward
from rfa.model.recurrence import triton_forward as forward
from rfa.model.recurrence.slots_reference import SlotInputs, SlotParameters, SlotReadout

# Kernels were defined for the interpreter or for a GPU when they were imported.
IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
TOKEN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_SLOTS = 32
MAX_WIDTH = 128


def refusal(tokens: SlotInputs, means: Tensor, precisions: Tensor, inner: int) -> str | None:
    """Why the kernels cannot run these inputs, or None."""
    slots, width = precisions.shape[-1], tokens.k.shape[-1]
    if tokens.k.device.type != "cuda" and not IS_INTERPRETED:
        return f"it runs on cuda, got {tokens.k.device.type}"
    if any(tensor.dtype not in TOKEN_DTYPES for tensor in tokens):
        return f"it takes float32, bfloat16 and float16, got {sorted({str(tensor.dtype) for tensor in tokens})}"
    if means.dtype != torch.float32 or precisions.dtype != torch.float32:
        return f"it keeps its state in float32, got {means.dtype} and {precisions.dtype}"
    if slots > MAX_SLOTS:
        return f"it holds up to {MAX_SLOTS} slots, got {slots}"
    if width > MAX_WIDTH:
        return f"it holds keys of up to {MAX_WIDTH} reals, got {width}"
    if width % 2:
        return f"keys are complex, an even number of reals, got {width}"
    if inner != 1:
        return f"it runs inner=1, got inner={inner}"
    return None


@torch.library.custom_op("rfa::slot_scan", mutates_args=())
def _scan(
    q: Tensor, k: Tensor, v: Tensor, measurement: Tensor, process: Tensor, means: Tensor, precisions: Tensor,
    decay: Tensor, nu: Tensor, kappa: Tensor, weight_exponent: Tensor, residual_noise: Tensor, gamma2: Tensor,
    tau: Tensor, delta: Tensor, interval: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    tokens = SlotInputs(*(x.contiguous() for x in (q, k, v, measurement, process)))
    parameters = SlotParameters(
        *(x.float().contiguous() for x in (decay, nu, kappa, weight_exponent, residual_noise, gamma2, tau, delta))
    )
    return forward.scan(tokens, means.contiguous(), precisions.contiguous(), parameters, interval)


@_scan.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, measurement: Tensor, process: Tensor, means: Tensor, precisions: Tensor,
    decay: Tensor, nu: Tensor, kappa: Tensor, weight_exponent: Tensor, residual_noise: Tensor, gamma2: Tensor,
    tau: Tensor, delta: Tensor, interval: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return forward.scan_outputs(k, means, precisions, interval)


@torch.library.custom_op("rfa::slot_scan_backward", mutates_args=())
def _scan_backward(
    grad_out: Tensor, grad_log_norm: Tensor, grad_precision: Tensor, grad_means: Tensor, grad_precisions: Tensor,
    q: Tensor, k: Tensor, v: Tensor, measurement: Tensor, process: Tensor,
    decay: Tensor, nu: Tensor, kappa: Tensor, weight_exponent: Tensor, residual_noise: Tensor, gamma2: Tensor,
    tau: Tensor, delta: Tensor, kept_means: Tensor, kept_precisions: Tensor, interval: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    parameters = (decay, nu, kappa, weight_exponent, residual_noise, gamma2, tau, delta)
    return backward.scan_gradient(
        (
            grad_out.contiguous(),
            grad_log_norm.contiguous(),
            grad_precision.contiguous(),
            grad_means.contiguous(),
            grad_precisions.contiguous(),
        ),
        SlotInputs(*(x.contiguous() for x in (q, k, v, measurement, process))),
        SlotParameters(*(x.float().contiguous() for x in parameters)),
        kept_means,
        kept_precisions,
        interval,
    )


@_scan_backward.register_fake
def _(
    grad_out: Tensor, grad_log_norm: Tensor, grad_precision: Tensor, grad_means: Tensor, grad_precisions: Tensor,
    q: Tensor, k: Tensor, v: Tensor, measurement: Tensor, process: Tensor,
    decay: Tensor, nu: Tensor, kappa: Tensor, weight_exponent: Tensor, residual_noise: Tensor, gamma2: Tensor,
    tau: Tensor, delta: Tensor, kept_means: Tensor, kept_precisions: Tensor, interval: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    gq, gk, gv, gmeasurement, gprocess = (x.new_empty(x.shape) for x in (q, k, v, measurement, process))
    gmeans, gprecisions = grad_means.new_empty(grad_means.shape), grad_precisions.new_empty(grad_precisions.shape)
    heads, slots = decay.shape
    gdecay = kept_means.new_empty((heads, slots))
    return gq, gk, gv, gmeasurement, gprocess, gmeans, gprecisions, gdecay, kept_means.new_empty((7, heads))


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.interval = inputs
    checkpoints = output[5:]
    ctx.save_for_backward(*tensors, *checkpoints)
    ctx.mark_non_differentiable(*checkpoints)
    # Else the checkpoints, too, would be handed zeros of their size.
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, kept_means, kept_precisions = ctx.saved_tensors
    tokens, state, parameters = tensors[:5], tensors[5:7], tensors[7:]
    row = tokens[0].shape[:3]
    shapes = (tokens[0].shape, row, row, *(x.shape for x in state))
    upstream = [
        kept_means.new_zeros(shape) if gradient is None else gradient
        for gradient, shape in zip(gradients, shapes, strict=False)
    ]
    *found, gscalars = torch.ops.rfa.slot_scan_backward(
        *upstream, *tokens, *parameters, kept_means, kept_precisions, ctx.interval
    )
    found = [*found, *gscalars.unbind()]
    return (*(gradient.to(tensor.dtype) for gradient, tensor in zip(found, tensors, strict=True)), None)


_scan.register_autograd(_backward, setup_context=_keep_for_backward)


def slot_scan_triton(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters
) -> tuple[SlotReadout, Tensor, Tensor]:
    """`slot_scan_reference` with K = 1; see `refusal` for what it takes. The read-out is float32."""
    tensors = (*tokens, means, precisions, *parameters)
    is_training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    interval = backward.checkpoint_interval(tokens.k.shape[1]) if is_training else 0
    out, log_norm, precision, means, precisions, _, _ = torch.ops.rfa.slot_scan(*tensors, interval)
    return SlotReadout(out, log_norm, precision), means, precisions


@torch.library.custom_op("rfa::slot_step_pooled", mutates_args={"pool_means", "pool_precisions"})
def _step(
    q: Tensor, k: Tensor, v: Tensor, measurement: Tensor, process: Tensor,
    pool_means: Tensor, pool_precisions: Tensor, rows: Tensor,
    decay: Tensor, nu: Tensor, kappa: Tensor, weight_exponent: Tensor, residual_noise: Tensor, gamma2: Tensor,
    tau: Tensor, delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    token = SlotInputs(*(x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v, measurement, process)))
    parameters = SlotParameters(
        *(x.float().contiguous() for x in (decay, nu, kappa, weight_exponent, residual_noise, gamma2, tau, delta))
    )
    return forward.step(token, pool_means, pool_precisions, rows.contiguous(), parameters)


@_step.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, measurement: Tensor, process: Tensor,
    pool_means: Tensor, pool_precisions: Tensor, rows: Tensor,
    decay: Tensor, nu: Tensor, kappa: Tensor, weight_exponent: Tensor, residual_noise: Tensor, gamma2: Tensor,
    tau: Tensor, delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return forward.step_outputs(q, pool_means)


def slot_step_pooled(
    token: SlotInputs, pool_means: Tensor, pool_precisions: Tensor, rows: Tensor, parameters: SlotParameters
) -> SlotReadout:
    """One token of many streams in one launch, on states that lie in a pool. No gradients.

    A stream's numbers do not depend on the other streams, and are those of `slot_scan_triton` on the same tokens.

    Args:
        token: leading dims `[B]`, any strides.
        pool_means: `[P, H, S, 4D]`, pool_precisions `[P, H, S]`, float32, updated in place; they may be a layer's part
            of a larger pool, as long as the means of a head are contiguous.
        rows: `[B]` int64, the row of every stream. No row may occur twice. A negative row is padding: nothing is read
            or written for it, and its outputs are 0. A row >= P writes nothing and its outputs are NaN: a check would
            have to wait for the GPU.

    Raises:
        ValueError: shapes that do not fit, or inputs that the kernel cannot take.
    """
    batch, heads, width = token.k.shape
    slots = parameters.decay.shape[-1]
    expected = {
        "q": (token.q, (batch, heads, width)),
        "v": (token.v, (batch, heads, width)),
        "measurement": (token.measurement, (batch, heads, slots)),
        "process": (token.process, (batch, heads, slots)),
        "pool_means": (pool_means, (pool_means.shape[0], heads, slots, 2 * width)),
        "pool_precisions": (pool_precisions, (pool_means.shape[0], heads, slots)),
        "rows": (rows, (batch,)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if rows.dtype != torch.int64:
        raise ValueError(f"rows must be int64, got {rows.dtype}")
    if pool_means.stride()[2:] != (2 * width, 1) or pool_precisions.stride(2) != 1:
        raise ValueError(
            f"the means and precisions of a head must be contiguous, got strides {pool_means.stride()} and "
            f"{pool_precisions.stride()}"
        )
    reason = refusal(token, pool_means, pool_precisions, inner=1)
    if reason is not None:
        raise ValueError(f"slot_step_pooled cannot run this: {reason}")
    return SlotReadout(*torch.ops.rfa.slot_step_pooled(*token, pool_means, pool_precisions, rows, *parameters))
