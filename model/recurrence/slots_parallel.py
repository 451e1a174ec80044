"""Gated filter slots without the robust weight, in parallel over the tokens: an associative scan in torch operations.

Equations: `slots_reference.py` with kappa' = 0: every slot is a Kalman filter with input-dependent noises, whatever K.

The variance c = 1/p of a slot goes through a Möbius map per token, and maps compose as their matrices multiply:

    c_t = (E² c + q) / (pi (E² c + q) + 1)          [[E², q], [pi E², pi q + 1]]

Prefix products by doubling are log2 N deep. No entry is negative, so nothing cancels; a matrix counts up to a factor,
so the largest entry is kept at one. Their derivative would cancel (it is a determinant of matrices that tend to rank
one); the gradient runs back through p_t = f(p_{t-1}) instead, whose slopes are positive.

Given the gains g = delta pi / p the means are linear, m_t = e_t m_{t-1} + g_t z_t with e = E (1 - g): √N steps inside
all chunks at once, √N steps from chunk to chunk.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rfa.model.recurrence.slots_reference import SlotInputs, SlotLag, SlotParameters, SlotReadout, slot_read


def _scan_(x: Tensor, factor: Tensor, *, is_reversed: bool = False) -> Tensor:
    """x_t += factor_t x_{t-1} in place for t = 1 … N-1 along dim 1; reversed: factor_t x_{t+1}, from the end.

    factor: of as many dims as x, broadcastable to it.
    """
    length = x.shape[1]
    chunk = max(1, math.isqrt(length))
    full = length // chunk * chunk
    before = 1 if is_reversed else -1
    if is_reversed:  # what is behind the last chunk comes first
        for t in range(length - 2, full - 2, -1):
            x[:, t].addcmul_(factor[:, t], x[:, t + 1])
    chunks, factors = (part[:, :full].unflatten(1, (-1, chunk)) for part in (x, factor))
    inside = range(chunk - 2, -1, -1) if is_reversed else range(1, chunk)
    for i in inside:
        chunks[:, :, i].addcmul_(factors[:, :, i], chunks[:, :, i + before])
    from_edge = factors.flip(2).cumprod(2).flip(2) if is_reversed else factors.cumprod(2)
    count = chunks.shape[1]
    for i in range(count - 2, -1, -1) if is_reversed else range(1, count):
        edge = chunks[:, i + before, :1] if is_reversed else chunks[:, i + before, -1:]
        chunks[:, i].addcmul_(from_edge[:, i], edge)
    if not is_reversed:
        for t in range(full, length):
            x[:, t].addcmul_(factor[:, t], x[:, t - 1])
    return x


def _next(factor: Tensor) -> Tensor:
    """factor_{t+1} at t; what the last token holds is never used."""
    return factor.roll(-1, dims=1)


class _Chained(torch.autograd.Function):
    """p_t = f(p_{t-1}, …) of known values: hands them on, and its gradient back along the chain of slopes f'."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(slopes)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (slopes,) = ctx.saved_tensors
        return _scan_(gradient.clone(), _next(slopes), is_reversed=True), None


class _Means(torch.autograd.Function):
    """m_t = keep_t m_{t-1} + gain_t z_t: keep, gain `[B, N, H, S]`, z `[B, N, H, 4D]`, start `[B, H, S, 4D]`."""

    @staticmethod
    def forward(ctx: Any, keep: Tensor, gain: Tensor, z: Tensor, start: Tensor) -> Tensor:
        means = gain[..., None] * z[..., None, :]
        means[:, 0].addcmul_(keep[:, 0, ..., None], start)
        _scan_(means, keep[..., None])
        ctx.save_for_backward(keep, gain, z, start, means)
        return means

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        keep, gain, z, start, means = ctx.saved_tensors
        adjoint = gradient.clone(memory_format=torch.contiguous_format)
        _scan_(adjoint, _next(keep)[..., None], is_reversed=True)
        of_keep = torch.empty_like(keep)
        of_keep[:, 0] = (adjoint[:, 0] * start).sum(-1)
        of_keep[:, 1:] = (adjoint[:, 1:] * means[:, :-1]).sum(-1)
        of_gain = (adjoint * z[..., None, :]).sum(-1)
        of_z = (gain[..., None] * adjoint).sum(-2)
        return of_keep, of_gain, of_z, keep[:, 0, ..., None] * adjoint[:, 0]


@torch.no_grad()
def _precisions(decay2: Tensor, measurement: Tensor, process: Tensor, start: Tensor) -> Tensor:
    """p after every token, `[B, N, H, S]`: prefix products of the Möbius matrices [[a, b], [c, d]]."""
    a, b = decay2.expand_as(process), process
    c, d = measurement * decay2, measurement * process + 1
    shift = 1
    while shift < process.shape[1]:
        late, early = ([x[:, shift:] for x in (a, b, c, d)], [x[:, :-shift] for x in (a, b, c, d)])
        composed = (
            late[0] * early[0] + late[1] * early[2],
            late[0] * early[1] + late[1] * early[3],
            late[2] * early[0] + late[3] * early[2],
            late[2] * early[1] + late[3] * early[3],
        )
        largest = torch.stack(composed).amax(0)
        a, b, c, d = (
            torch.cat([x[:, :shift], product / largest], dim=1)
            for x, product in zip((a, b, c, d), composed, strict=True)
        )
        shift *= 2
    start = start[:, None]
    return (c + d * start) / (a + b * start)


def slot_scan_parallel(
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    parameters: SlotParameters,
    *,
    lag: SlotLag | None = None,
) -> tuple[SlotReadout, Tensor, Tensor]:
    """`slot_scan_reference` with a weight of one, whatever `weight_exponent` is. Gradients as there, from everything.

    Memory is that of all means, `[B, N, H, S, 4D]`, several times when gradients are wanted.
    """
    decay, process = parameters.decay, tokens.process
    known = _precisions(decay.square(), tokens.measurement, process, precisions)
    before = torch.cat([precisions[:, None], known[:, :-1]], dim=1)
    predicted = 1 / (decay.square() / before + process)
    slopes = (decay * predicted / before).square().detach()
    posterior = _Chained.apply(predicted + tokens.measurement, slopes)
    gain = parameters.delta[:, None] * tokens.measurement / posterior
    joint = torch.cat([tokens.k, tokens.v], dim=-1)
    all_means = _Means.apply(decay * (1 - gain), gain, joint, means)
    readout = slot_read(tokens.q, all_means, posterior, parameters, lag)
    return readout, all_means[:, -1], posterior[:, -1]
