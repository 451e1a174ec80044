"""Reference implementation of the gated memory slots: one step, and the scan as a loop over steps.

A head has S slots. A slot is an isotropic Kalman filter over the joint key and value, with a mean m ∈ C^{2D} and one
scalar precision p. In the rotating frame, transport over a token multiplies by the real factor E. For each token and
slot (RFA's filter, AFA Alg. 4, with input-dependent noises):

    predict    m⁻ = E m                       1/p⁻ = E² / p + q
    weight     w = (1 + r² / (nu (1/p⁻ + R)))^(-kappa'),   r² = |k - m⁻_k|²,   R = gamma² + eta²      (K passes)
    update     p = p⁻ + w pi                  g = delta w pi / p              m = m⁻ + g (z - m⁻),     z = (k, v)
    readout    RFA over the S slots at lag 0: variance 1/p + gamma², residual |q - m_k|², values m_v

If kappa' = 0, then w = 1 and the slots are Kalman filters with input-dependent noises. The work per token is
O(S (D + K)).

Alternatively, the weight uses the innovation of the value, r² = |v - m⁻_v|². In a model with a window, queries attend
directly to the most recent tokens, and the slots contain the tokens before the window. The slots are then read at a lag
l, with mean E_l m and variance E_l² / p + q_l + gamma².
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rfa.runtime.text.config import INNOVATIONS, Innovation


class SlotInputs(NamedTuple):
    """Inputs of the memory slots of one layer for tokens `[...]`, which is `[B]` or `[B, N]`.

    Attributes:
        q, k, v: Query, key and value in the rotating frame, `[..., H, 2D]`.
        measurement: Measurement precision pi, `[..., H, S]`.
        process: Process variance q, `[..., H, S]`.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    measurement: Tensor
    process: Tensor


class SlotParameters(NamedTuple):
    """Parameters of the memory slots of one layer. decay is `[H, S]`, and all others are `[H]`.

    For irregular lags, decay is `[B, N, H, S]` and applies to the lag before each token.
    """

    decay: Tensor
    nu: Tensor
    kappa: Tensor
    weight_exponent: Tensor
    residual_noise: Tensor
    gamma2: Tensor
    tau: Tensor
    delta: Tensor


class SlotLag(NamedTuple):
    """Lag between the memory slots and the query.

    Attributes:
        transport: Factor E_l, `[H, S]`.
        noise: Process noise q_l, `[H, S]`.
    """

    transport: Tensor
    noise: Tensor


class SlotReadout(NamedTuple):
    """Output of the memory slots.

    Attributes:
        out: Estimate in the rotating frame, `[..., H, 2D]`.
        log_norm, precision: Logarithm of the sum of the weights of the slots, and their total precision, `[..., H]`, as
            in `AttentionResult`.
    """

    out: Tensor
    log_norm: Tensor
    precision: Tensor


class SlotOptions(NamedTuple):
    """Options of the memory slots.

    Attributes:
        inner: Number of reweighting passes K >= 1.
        innovation: Innovation that determines the weight: that of the key ("key") or that of the value ("value").
        lag: Lag between the slots and the query. None means 0.
        lengths: Number of tokens of each row of a scan, `[B]`. Later tokens do not change the state, and their readout
            is 0.
        passes: Number of passes of each row of a step, `[B]` from 1 to K. None means K.
    """

    inner: int = 1
    innovation: Innovation = "key"
    lag: SlotLag | None = None
    lengths: Tensor | None = None
    passes: Tensor | None = None


USUAL = SlotOptions()


def wants_gradients(*tensors: Tensor) -> bool:
    """Return whether gradients of any of the given tensors may be requested."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _gain(
    innovation: Tensor, variance: Tensor, token: SlotInputs, parameters: SlotParameters, options: SlotOptions
) -> tuple[Tensor, Tensor]:
    """Return the gain and the posterior precision after the reweighting passes, both `[B, H, S]`."""
    residual2 = innovation.square().sum(-1)
    scale = parameters.nu[:, None] * (variance + parameters.residual_noise[:, None])
    prior = 1 / variance
    exponent = -parameters.weight_exponent[:, None]
    remaining2 = residual2
    for done in range(options.inner):
        weighted = (1 + remaining2 / scale) ** exponent * token.measurement
        posterior = prior + weighted
        updated = parameters.delta[:, None] * weighted / posterior
        if done == 0 or options.passes is None:
            gain, precision = updated, posterior
        else:
            has_pass = (done < options.passes)[:, None, None]
            gain, precision = torch.where(has_pass, updated, gain), torch.where(has_pass, posterior, precision)
        # The mean moves along its innovation, so the residual is (1 - gain) times the innovation.
        remaining2 = (1 - gain).square() * residual2
    return gain, precision


def slot_step(
    token: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters, options: SlotOptions = USUAL
) -> tuple[SlotReadout, Tensor, Tensor]:
    """Process one token: predict, weigh, update, and read.

    Args:
        token: Inputs with the leading dimension `[B]`.
        means, precisions: State before the token, `[B, H, S, 4D]` and `[B, H, S]`.
        parameters: Parameters of the slots.
        options: Options of the slots.

    Returns:
        The readout, and the means and precisions after the token.
    """
    decay = parameters.decay
    predicted = decay[..., None] * means
    variance = decay.square() / precisions + token.process
    away = torch.cat([token.k, token.v], dim=-1)[:, :, None] - predicted
    driving = away.chunk(2, dim=-1)[INNOVATIONS.index(options.innovation)]
    gain, precisions = _gain(driving, variance, token, parameters, options)
    means = predicted + gain[..., None] * away
    return slot_read(token.q, means, precisions, parameters, options.lag), means, precisions


def slot_read(
    q: Tensor, means: Tensor, precisions: Tensor, parameters: SlotParameters, lag: SlotLag | None = None
) -> SlotReadout:
    """Compute RFA of queries over the memory slots, which are treated as S tokens, and return the readout. q is
    `[..., H, 2D]`. The lag is 0 by default."""
    width = q.shape[-1]
    variance = 1 / precisions + parameters.gamma2[:, None]
    if lag is not None:
        means = lag.transport[..., None] * means
        variance = lag.transport.square() / precisions + lag.noise + parameters.gamma2[:, None]
    residual2 = (q[..., None, :] - means[..., :width]).square().sum(-1)
    excess = residual2 / (parameters.nu[:, None] * variance)
    logits = parameters.tau[:, None] * (-torch.log(variance) - parameters.kappa[:, None] * torch.log1p(excess))
    weights = torch.softmax(logits, dim=-1)
    out = (weights[..., None] * means[..., width:]).sum(-2)
    precision = (1 / ((1 + excess) * variance)).sum(-1)
    return SlotReadout(out, torch.logsumexp(logits, dim=-1), precision)


def slot_scan_reference(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters, options: SlotOptions = USUAL
) -> tuple[SlotReadout, Tensor, Tensor]:
    """Apply `slot_step` to each token along dimension 1 of `[B, N]`. Return the readouts `[B, N, …]` and the final
    state."""
    readouts, lengths = [], options.lengths
    for i in range(tokens.k.shape[1]):
        token = SlotInputs(*(tensor[:, i] for tensor in tokens))
        own = parameters._replace(decay=parameters.decay[:, i]) if parameters.decay.dim() > 2 else parameters
        readout, *after = slot_step(token, means, precisions, own, options)
        if lengths is None:
            means, precisions = after
        else:
            is_there = (i < lengths)[:, None, None]  # [B, 1, 1]
            means = torch.where(is_there[..., None], after[0], means)
            precisions = torch.where(is_there, after[1], precisions)
            out = torch.where(is_there, readout.out, 0)
            readout = SlotReadout(out, *(torch.where(is_there[..., 0], part, 0) for part in readout[1:]))
        readouts.append(readout)
    stacked = SlotReadout(*(torch.stack(parts, dim=1) for parts in zip(*readouts, strict=True)))
    return stacked, means, precisions
