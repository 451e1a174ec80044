"""Gated filter slots on a GPU, as an operator of torch: `slot_scan_triton`. A step is `rfa.model.decoder_triton`'s.

Equations: `slots_reference.py`. The operator is opaque (`torch.compile` and `torch.export` call it and do not look
inside), takes tensors of any strides and hands out contiguous ones. Gradients of a scan of one reweighting pass, by the
key's innovation, reach all inputs, the initial state and all parameters, from every output and from the final state.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from rfa.model.placement import is_gpu
from rfa.model.recurrence import triton_backward as backward
from rfa.model.recurrence import triton_forward as forward
from rfa.model.recurrence.slots_reference import SlotInputs, SlotParameters, SlotReadout, wants_gradients
from rfa.runtime.text.config import Innovation

# Kernels were defined for the interpreter or for a GPU when they were imported.
IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
TOKEN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_SLOTS = 32
MAX_WIDTH = 128
MAX_INNER = 3  # passes of reweighting, each of them code


def refusal(
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    inner: int,
    innovation: Innovation,
    lengths: Tensor | None = None,
    with_gradients: bool = False,
) -> str | None:
    """Why the kernels cannot run these inputs, or None. with_gradients: somebody will ask for them."""
    slots, width = precisions.shape[-1], tokens.k.shape[-1]
    if not is_gpu(tokens.k.device) and not IS_INTERPRETED:
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
    if not 1 <= inner <= MAX_INNER:
        return f"it runs inner=1 to {MAX_INNER}, got inner={inner}"
    return _gradient_refusal(inner, innovation, lengths) if with_gradients else None


def _gradient_refusal(inner: int, innovation: Innovation, lengths: Tensor | None) -> str | None:
    if inner > 1:
        return f"it has gradients of inner=1 alone, got inner={inner}"
    if innovation != "key":
        return f"it has gradients where the key's innovation weighs tokens, got {innovation!r}"
    return None if lengths is None else "rows of different lengths have no gradients"


@torch.library.custom_op("rfa::slot_scan", mutates_args=())
def _scan(
    q: Tensor, k: Tensor, v: Tensor, measurement: Tensor, process: Tensor, means: Tensor, precisions: Tensor,
    decay: Tensor, nu: Tensor, kappa: Tensor, weight_exponent: Tensor, residual_noise: Tensor, gamma2: Tensor,
    tau: Tensor, delta: Tensor, lengths: Tensor | None, inner: int, by_value: bool, interval: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    tokens = SlotInputs(*(x.contiguous() for x in (q, k, v, measurement, process)))
    parameters = SlotParameters(
        *(x.float().contiguous() for x in (decay, nu, kappa, weight_exponent, residual_noise, gamma2, tau, delta))
    )
    lengths = None if lengths is None else lengths.long().contiguous()
    return forward.scan(
        tokens, means.contiguous(), precisions.contiguous(), parameters, inner, by_value, interval, lengths
    )


@_scan.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, measurement: Tensor, process: Tensor, means: Tensor, precisions: Tensor,
    decay: Tensor, nu: Tensor, kappa: Tensor, weight_exponent: Tensor, residual_noise: Tensor, gamma2: Tensor,
    tau: Tensor, delta: Tensor, lengths: Tensor | None, inner: int, by_value: bool, interval: int,
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
    gdecay = kept_means.new_empty(decay.shape)
    return gq, gk, gv, gmeasurement, gprocess, gmeans, gprecisions, gdecay, kept_means.new_empty((7, len(nu)))


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, _, _, _, ctx.interval = inputs
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
    return (
        *(gradient.to(tensor.dtype) for gradient, tensor in zip(found, tensors, strict=True)),
        None,
        None,
        None,
        None,
    )


_scan.register_autograd(_backward, setup_context=_keep_for_backward)


def slot_scan_triton(
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    parameters: SlotParameters,
    *,
    inner: int = 1,
    innovation: Innovation = "key",
    lengths: Tensor | None = None,
) -> tuple[SlotReadout, Tensor, Tensor]:
    """`slot_scan_reference`; see `refusal` for what it takes. The read-out is float32.

    A row's numbers do not depend on the other rows, nor on what is behind its length. A length that is none, below 0 or
    above N, makes the precisions after it NaN: a check would have to wait for the GPU.
    """
    tensors = (*tokens, means, precisions, *parameters)
    is_training = wants_gradients(*tensors)
    reason = _gradient_refusal(inner, innovation, lengths) if is_training else None
    if reason is not None:
        raise ValueError(f"slot_scan_triton cannot run this: {reason}")
    interval = backward.checkpoint_interval(tokens.k.shape[1]) if is_training else 0
    out, log_norm, precision, means, precisions, _, _ = torch.ops.rfa.slot_scan(
        *tensors, lengths, inner, innovation == "value", interval
    )
    return SlotReadout(out, log_norm, precision), means, precisions


def slot_states_triton(
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    parameters: SlotParameters,
    *,
    inner: int = 1,
    innovation: Innovation = "key",
) -> tuple[Tensor, Tensor]:
    """The states that a scan goes through, without gradients: before each of N >= 1 tokens and after the last,
    `[B, N + 1, H, S, 4D]` and `[B, N + 1, H, S]`."""
    _, _, _, last_means, last_precisions, kept_means, kept_precisions = torch.ops.rfa.slot_scan(
        *tokens, means, precisions, *parameters, None, inner, innovation == "value", 1
    )
    return (
        torch.cat([kept_means.transpose(1, 2), last_means[:, None]], 1),
        torch.cat([kept_precisions.transpose(1, 2), last_precisions[:, None]], 1),
    )
