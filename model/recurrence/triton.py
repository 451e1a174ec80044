"""Gated memory slots on a GPU, as the torch operator `rfa::slot_scan`. A single step is in `decoder_triton.py`.

The equations are in `slots_reference.py`. The operator is opaque to `torch.compile` and `torch.export`, accepts any
strides and returns contiguous tensors. With one reweighting pass and the innovation of the key, all inputs, the initial
state and all parameters have gradients, from every output and the final state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from rfa.model.placement import is_gpu
from rfa.model.recurrence import triton_backward as backward
from rfa.model.recurrence import triton_forward as forward
from rfa.model.recurrence.slots_reference import (
    USUAL,
    SlotInputs,
    SlotOptions,
    SlotParameters,
    SlotReadout,
    wants_gradients,
)

# Whether kernels are defined for the interpreter rather than for a GPU, which is determined at import.
IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
TOKEN_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_SLOTS = 32
MAX_WIDTH = 128
MAX_INNER = 3  # reweighting passes, which are unrolled


def refusal(
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    options: SlotOptions,
    *,
    with_gradients: bool = False,
) -> str | None:
    """Return the reason why the kernels do not support the given inputs, or None if they do. `with_gradients` is True
    if gradients may be requested."""
    slots, width = precisions.shape[-1], tokens.k.shape[-1]
    if not is_gpu(tokens.k.device) and not IS_INTERPRETED:
        return f"it requires tensors on a CUDA device, got {tokens.k.device.type}"
    if any(tensor.dtype not in TOKEN_DTYPES for tensor in tokens):
        return f"it supports float32, bfloat16 and float16, got {sorted({str(tensor.dtype) for tensor in tokens})}"
    if means.dtype != torch.float32 or precisions.dtype != torch.float32:
        return f"it requires float32 states, got {means.dtype} and {precisions.dtype}"
    if (reason := size_refusal(slots, width, options.inner)) is not None:
        return reason
    return _gradient_refusal(options) if with_gradients else None


def size_refusal(slots: int, width: int, inner: int) -> str | None:
    """Return the reason why the kernels do not support `slots` slots, keys of `width` real dimensions and `inner`
    passes. Return None if they do."""
    if slots > MAX_SLOTS:
        return f"it supports up to {MAX_SLOTS} slots, got {slots}"
    if width > MAX_WIDTH:
        return f"it supports keys with up to {MAX_WIDTH} real dimensions, got {width}"
    if width % 2:
        return f"it requires an even number of real dimensions per key, got {width}"
    if not 1 <= inner <= MAX_INNER:
        return f"it supports inner=1 to {MAX_INNER}, got inner={inner}"
    return None


def _gradient_refusal(options: SlotOptions) -> str | None:
    if options.inner > 1:
        return f"it supports gradients only for inner=1, got inner={options.inner}"
    if options.innovation != "key":
        return f"it supports gradients only for innovation 'key', got {options.innovation!r}"
    return None if options.lengths is None else "it does not support gradients if lengths are set"


# Fields of `SlotInputs` and `SlotParameters`. They are separate arguments, because schemas of torch do not support
# nested tuples.
_TOKENS = "Tensor q, Tensor k, Tensor v, Tensor measurement, Tensor process"
_PARAMETERS = (
    "Tensor decay, Tensor nu, Tensor kappa, Tensor weight_exponent, Tensor residual_noise, Tensor gamma2, Tensor tau, "
    "Tensor delta"
)
N_TOKENS, N_PARAMETERS = len(SlotInputs._fields), len(SlotParameters._fields)


def _inputs(tokens: Sequence[Tensor], parameters: Sequence[Tensor]) -> tuple[SlotInputs, SlotParameters]:
    """Return contiguous tokens, and contiguous parameters in float32."""
    return SlotInputs(*(x.contiguous() for x in tokens)), SlotParameters(*(x.float().contiguous() for x in parameters))


@torch.library.custom_op(
    "rfa::slot_scan",
    mutates_args=(),
    schema=(
        f"({_TOKENS}, Tensor means, Tensor precisions, {_PARAMETERS}, Tensor? lengths, SymInt inner, bool by_value, "
        "SymInt interval) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def _scan(*arguments: Any) -> tuple[Tensor, ...]:
    """Implement the operator. See `triton_forward.scan`."""
    *tensors, lengths, inner, by_value, interval = arguments
    tokens, parameters = _inputs(tensors[:N_TOKENS], tensors[-N_PARAMETERS:])
    means, precisions = (x.contiguous() for x in tensors[N_TOKENS:-N_PARAMETERS])
    lengths = None if lengths is None else lengths.long().contiguous()
    options = forward.ScanOptions(inner, by_value, interval, lengths)
    return forward.scan(tokens, means, precisions, parameters, options)


@_scan.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return forward.scan_outputs(arguments[1], arguments[N_TOKENS], arguments[N_TOKENS + 1], arguments[-1])


@torch.library.custom_op(
    "rfa::slot_scan_backward",
    mutates_args=(),
    schema=(
        "(Tensor grad_out, Tensor grad_log_norm, Tensor grad_precision, Tensor grad_means, Tensor grad_precisions, "
        f"{_TOKENS}, {_PARAMETERS}, Tensor kept_means, Tensor kept_precisions, SymInt interval) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def _scan_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Implement the gradient of the operator. See `triton_backward.scan_gradient`."""
    *tensors, kept_means, kept_precisions, interval = arguments
    gradients = tuple(x.contiguous() for x in tensors[:5])
    tokens, parameters = _inputs(tensors[5 : 5 + N_TOKENS], tensors[5 + N_TOKENS :])
    return backward.scan_gradient(gradients, tokens, parameters, kept_means, kept_precisions, interval)


@_scan_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    *tensors, kept_means, _, _ = arguments
    decay, nu = tensors[5 + N_TOKENS : 7 + N_TOKENS]
    of_tokens, of_state = ([x.new_empty(x.shape) for x in part] for part in (tensors[5 : 5 + N_TOKENS], tensors[3:5]))
    return (*of_tokens, *of_state, kept_means.new_empty(decay.shape), kept_means.new_empty((7, len(nu))))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, _, _, _, ctx.interval = inputs
    checkpoints = output[5:]
    ctx.save_for_backward(*tensors, *checkpoints)
    # Without these two lines, tensors of zeros would be created as gradients of the checkpoints.
    ctx.mark_non_differentiable(*checkpoints)
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
    # Gradients of lengths, inner, by_value and interval are None.
    return (*(gradient.to(tensor.dtype) for gradient, tensor in zip(found, tensors, strict=True)), *(None,) * 4)


_scan.register_autograd(_backward, setup_context=_save)


def slot_scan_triton(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters, options: SlotOptions = USUAL
) -> tuple[SlotReadout, Tensor, Tensor]:
    """Compute `slot_scan_reference` with kernels. `refusal` checks which inputs they support. The readout is float32.

    The result of a row depends neither on other rows nor on tokens after its length. Lengths below 0 or above N give
    NaN precisions instead of an error, because a check would wait for the GPU.
    """
    tensors = (*tokens, means, precisions, *parameters)
    is_training = wants_gradients(*tensors)
    reason = _gradient_refusal(options) if is_training else None
    if reason is not None:
        raise ValueError(f"slot_scan_triton cannot be used here: {reason}")
    interval = backward.checkpoint_interval(tokens.k.shape[1]) if is_training else 0
    out, log_norm, precision, means, precisions, _, _ = torch.ops.rfa.slot_scan(
        *tensors, options.lengths, options.inner, options.innovation == "value", interval
    )
    return SlotReadout(out, log_norm, precision), means, precisions


def slot_states_triton(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters
) -> tuple[Tensor, Tensor]:
    """Return the states before each of N >= 1 tokens and after the last one. Gradients are not supported.

    Returns:
        Means `[B, N + 1, H, S, 4D]` and precisions `[B, N + 1, H, S]`.
    """
    *_, last_means, last_precisions, kept_means, kept_precisions = torch.ops.rfa.slot_scan(
        *tokens, means, precisions, *parameters, None, 1, False, 1
    )
    return (
        torch.cat([kept_means.transpose(1, 2), last_means[:, None]], 1),
        torch.cat([kept_precisions.transpose(1, 2), last_precisions[:, None]], 1),
    )
