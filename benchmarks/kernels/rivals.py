"""Other implementations of attention. Each function maps rotated q, k, v `[B, N, H, W]` and the dynamics to the output.

`flash` is softmax attention with the same matrix work. `flex` and `eager` compute what the fused kernels compute.
FlexAttention has no factor after the softmax, so RFA takes two passes:

    out = flex(L + log E) · exp(lse₂ - lse₁),   L = tau ((kappa - 1) log V - kappa log(V + R² / nu))

Its backward pass adds the gradients of |q|² and |k|² to memory atomically.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rfa.model.attention.reference import relative_attention
from rfa.model.dynamics import Dynamics

Attention = Callable[[Tensor, Tensor, Tensor, Dynamics], Tensor]


def flash(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics) -> Tensor:
    """Run causal softmax attention with SDPA's flash backend, or raise an error."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
    return out.transpose(1, 2)


def eager(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics) -> Tensor:
    """Run the reference one sequence at a time, because its memory is O(N²) for each."""
    rows = []
    for own in zip(q.split(1), k.split(1), v.split(1), strict=True):
        one_q, one_k, one_v = (x.float() for x in own)
        rows.append(relative_attention(one_q, one_k, one_v, dynamics, with_precision=False).out)
    return torch.cat(rows).to(q.dtype)


def flex(length: int, device: torch.device | str, *, is_compiled: bool = True) -> Attention:
    """Return RFA by FlexAttention for one length, compiled at its first call."""
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=str(device))

    def attention(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics) -> Tensor:
        d = dynamics
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        q2, k2 = (x.float().square().sum(-1) for x in (q, k))  # [B, H, N]
        kappa = d.kappa
        # phi = (1 - E²) / (2 mu), or the lag for mu = 0.
        is_still = d.mu == 0
        half_life = 1 / (2 * torch.where(is_still, torch.ones_like(d.mu), d.mu))

        def past(i: Tensor, j: Tensor) -> Tensor:
            # Masked pairs enter the gradients of q2 and k2 with weight 0, so their E must be finite.
            return (i - j).clamp_min(0).to(torch.float32)

        def logit(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            lag = past(i, j)
            decay = torch.exp(-d.mu[h] * lag)
            accumulated = torch.where(is_still[h], lag, (1 - decay * decay) * half_life[h])
            spread = d.sigma2[h] * accumulated + d.eta2[h] * decay * decay + d.gamma2[h]
            residual2 = q2[b, h, i] + decay * (decay * k2[b, h, j] - 2 * score)
            total = spread + residual2.clamp_min(0) / d.nu[h]
            return d.tau[h] * ((kappa[h] - 1) * torch.log(spread) - kappa[h] * torch.log(total))

        def transported(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return logit(score, b, h, i, j) - d.mu[h] * past(i, j)

        options: dict[str, Any] = {"block_mask": mask, "scale": 1.0, "return_aux": AuxRequest(lse=True)}
        unused, plain = flex_attention(q, k, v, score_mod=logit, **options)
        out, decayed = flex_attention(q, k, v, score_mod=transported, **options)
        # torch 2.11 compiles no backward pass of an output without a gradient, so this output gets a gradient of zero.
        norm = plain.lse + 0 * unused[..., 0]
        return (out * torch.exp(decayed.lse - norm)[..., None]).to(q.dtype).transpose(1, 2)

    if not is_compiled:
        return attention
    import torch._functorch.config as functorch_config

    # The backward pass is timed repeatedly over one graph, so its buffers must be kept after a call.
    functorch_config.donated_buffer = False
    return torch.compile(attention, dynamic=False)
