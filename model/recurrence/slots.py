"""Scan with gated memory slots: validate the inputs and choose the implementation. The equations are in
`slots_reference.py`."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor

from rfa.model.placement import is_gpu
from rfa.model.recurrence.slots_reference import (
    SlotInputs,
    SlotLag,
    SlotOptions,
    SlotParameters,
    SlotReadout,
    slot_scan_reference,
    wants_gradients,
)
from rfa.runtime.text.config import INNOVATIONS, Innovation, check_choice

SlotImpl = Literal["auto", "reference", "numba", "triton"]
IMPLS = ("auto", "reference", "numba", "triton")
LENGTH_DTYPES = (torch.int32, torch.int64)
T = TypeVar("T")


def call_untraced(function: Callable[..., T], *arguments: object) -> T:
    """Call a function that calls numba, and return its result. The function is excluded from torch.compile.

    Otherwise, torch traces the compiler of numba at the first call, which fails (KeyError: parfor_index). The compiler
    of torch is not imported here, because that takes longer than the import of torch.
    """
    if "torch._dynamo" in sys.modules:
        function = torch.compiler.disable(function)
    return function(*arguments)


def _numba_refusal(tokens: SlotInputs) -> str | None:
    """Return the reason why the compiled scan does not support the given inputs, or None if it does."""
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    if tokens.k.device.type != "cpu":
        return f"it requires tensors on the CPU, got {tokens.k.device.type}"
    if any(tensor.dtype != torch.float32 for tensor in tokens):
        return f"it supports only float32, got {sorted({str(tensor.dtype) for tensor in tokens})}"
    return None


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether `impl="auto"` selects a GPU kernel for the given tensor, provided that the kernel supports the
    inputs."""
    return is_gpu(tensor.device)


def warn_eager(reason: str) -> None:
    """Warn that the memory slots are processed one token at a time on the GPU, because the kernels do not support the
    inputs."""
    warnings.warn(
        f"the GPU kernel cannot process these memory slots: {reason}; they are processed one token at a time, which is "
        "slow",
        RuntimeWarning,
        stacklevel=3,
    )


def triton_refusal(
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    options: SlotOptions,
    *,
    with_gradients: bool = True,
) -> str | None:
    """Return the reason why the Triton kernels do not support the given inputs, or None if they do.

    Args:
        tokens, means, precisions: See `slot_scan`.
        options: Options of the scan.
        with_gradients: Whether gradients may be requested.
    """
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if options.lag is not None:
        return "it requires lag 0 and no window"
    from rfa.model.recurrence.triton import refusal

    return refusal(tokens, means, precisions, options, with_gradients=with_gradients)


def _check(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters, options: SlotOptions
) -> None:
    inner, innovation, lengths = options.inner, options.innovation, options.lengths
    batch, length, heads, width = tokens.k.shape
    slots = parameters.decay.shape[-1]
    expected = {
        "q": (tokens.q, (batch, length, heads, width)),
        "v": (tokens.v, (batch, length, heads, width)),
        "measurement": (tokens.measurement, (batch, length, heads, slots)),
        "process": (tokens.process, (batch, length, heads, slots)),
        "means": (means, (batch, heads, slots, 2 * width)),
        "precisions": (precisions, (batch, heads, slots)),
    }
    if parameters.decay.dim() > 2:
        expected["decay"] = (parameters.decay, (batch, length, heads, slots))
    if lengths is not None:
        expected["lengths"] = (lengths, (batch,))
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if length < 1:
        raise ValueError("a scan requires at least one token, got 0")
    if inner < 1:
        raise ValueError(f"inner must be >= 1, got {inner}")
    check_choice("innovation", innovation, INNOVATIONS)
    if lengths is None:
        return
    if lengths.dtype not in LENGTH_DTYPES:
        raise ValueError(f"lengths must be int32 or int64, got {lengths.dtype}")
    if lengths.device.type == "cpu" and not bool(((lengths >= 0) & (lengths <= length)).all()):
        raise ValueError(f"lengths must be between 0 and {length}, the number of tokens, got {lengths.tolist()}")


def _scan_on_gpu(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters, options: SlotOptions
) -> tuple[SlotReadout, Tensor, Tensor]:
    from rfa.model.recurrence.triton import slot_scan_triton

    return slot_scan_triton(tokens, means, precisions, parameters, options)


def _scan_on_cpu(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters, options: SlotOptions
) -> tuple[SlotReadout, Tensor, Tensor]:
    from rfa.model.recurrence.slots_numba import slot_scan_numba

    return call_untraced(slot_scan_numba, tokens, means, precisions, parameters, options)


def slot_scan(
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    parameters: SlotParameters,
    *,
    inner: int = 1,
    innovation: Innovation = "key",
    lag: SlotLag | None = None,
    lengths: Tensor | None = None,
    impl: SlotImpl = "auto",
) -> tuple[SlotReadout, Tensor, Tensor]:
    """Process a sequence with gated memory slots.

    Args:
        tokens: Inputs with leading dimensions `[B, N]`.
        means, precisions: State before the first token, `[B, H, S, 4D]` and `[B, H, S]` > 0, float32.
        parameters: Parameters of the slots.
        inner, innovation: Number of reweighting passes K, and innovation that determines the weight.
        lag: Lag between the slots and the query. None means 0.
        lengths: Number of tokens of each row, `[B]` int32 or int64, from 0 to N. The default is N. On a GPU, invalid
            lengths are not rejected but give NaN precisions.
        impl: "reference" (eager), "numba" (float32 on a CPU), "triton" (GPU, K <= 3, no lag; gradients with K = 1,
            innovation "key" and no lengths) or "auto". If an implementation does not support the inputs, "auto" uses
            another one, and warns if the GPU then runs eager code.

    Returns:
        The readout of every token, which is 0 after the length of a row, and the state after the last token of each
        row.

    Raises:
        ValueError: If an argument is invalid, or an explicit impl does not support the inputs.
    """
    check_choice("impl", impl, IMPLS)
    options = SlotOptions(inner, innovation, lag, lengths)
    _check(tokens, means, precisions, parameters, options)
    if impl == "triton" or (impl == "auto" and is_on_gpu(tokens.k)):
        with_gradients = wants_gradients(*tokens, means, precisions, *parameters)
        refusal = triton_refusal(tokens, means, precisions, options, with_gradients=with_gradients)
        if refusal is None:
            return _scan_on_gpu(tokens, means, precisions, parameters, options)
        if impl == "triton":
            raise ValueError(f"impl='triton' cannot be used here: {refusal}")
        warn_eager(refusal)
    if impl in ("auto", "numba"):
        if (refusal := _numba_refusal(tokens)) is None:
            return _scan_on_cpu(tokens, means, precisions, parameters, options)
        if impl == "numba":
            raise ValueError(f"impl='numba' cannot be used here: {refusal}")
    return slot_scan_reference(tokens, means, precisions, parameters, options)
