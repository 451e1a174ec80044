"""Reference implementation of Robust Filter Attention, with which the kernels are compared.

Source: Racioppo, Robust Filter Attention, section 3 and Algorithm 1. For a query at t_i and a key at t_j <= t_i, both
in the rotating frame (q̃ = e^{-i omega t} q), with lag = t_i - t_j, E and P = 1/V of `rfa.model.dynamics`:

    R² = |q|² + E² |k|² - 2 E Re(q̃† k̃)
    L  = tau (log P - kappa log(1 + P R² / nu))          Student-t
    L  = tau (log P - P R² / nu)                         Gaussian
    out = Σ_j softmax(L)_j E_j ṽ_j,   log_norm = log Σ_j exp L_j,   precision = Σ_j w_j P_j

with w = 1 / (1 + P R² / nu), or exp(-P R² / nu) for the Gaussian kernel. The layout is `[B, N, H, 2D]`, real parts
first. Memory is O(N²). The computation is in float32 or float64 even under autocast, because the terms of R² cancel if
a key is close to the query.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.dynamics import Dynamics, decay, variance
from rfa.runtime.text.config import Prior

# Number of queries per block if no gradients are computed. 64 is the fastest of 16 to 256 at 2,048 tokens.
QUERY_BLOCK = 64


class AttentionResult(NamedTuple):
    """Result of `robust_filter_attention`.

    Attributes:
        out: Estimates, `[B, N, H, 2D]`.
        log_norm: Logarithm of the sum of the weights of each row, `[B, N, H]`.
        precision: Total precision of each row, `[B, N, H]`.
    """

    out: Tensor
    log_norm: Tensor
    precision: Tensor


class _LagTables(NamedTuple):
    """Functions of the lag for each pair of tokens, broadcastable to `[B, H, n, M]`.

    Attributes:
        transport: E.
        log_precision: log P.
        scaled_precision: P / nu.
        is_causal: Whether the key does not follow the query.
    """

    transport: Tensor
    log_precision: Tensor
    scaled_precision: Tensor
    is_causal: Tensor


def _tables(dynamics: Dynamics, lag: Tensor, prior: Prior = "lyapunov") -> tuple[Tensor, Tensor, Tensor]:
    """Return E, log P and P / nu at every lag, `[H, *lag.shape]`."""
    transport, spread = decay(dynamics.mu, lag), variance(dynamics, lag)
    nu = dynamics.nu.reshape(-1, *(1,) * lag.dim())
    # In the ablations, P is that of lag 0, either everywhere or only in the weight of the residual.
    flat = (dynamics.eta2 + dynamics.gamma2).reshape(nu.shape).expand_as(spread)
    bias = flat if prior == "constant" else spread
    scale = spread if prior == "lyapunov" else flat
    return transport, -torch.log(bias), 1 / (nu * scale)


def _ahead(lag: Tensor, horizon: float) -> Tensor:
    """Return lag + horizon. If the horizon is 0, the lag itself is returned, so that exported graphs do not contain an
    addition of zero."""
    return lag + horizon if horizon else lag


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager that disables autocast. If autocast is already disabled, it does nothing, so exported
    graphs do not contain it."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _attend(
    q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics, tables: _LagTables, kernel: str, *, with_precision: bool
) -> AttentionResult:
    """Return the result of attention of rotated queries `[B, n, H, 2D]` over rotated keys and values `[B, M, H,
    2D]`."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, H, ., 2D]
    transport = tables.transport
    tau, kappa = (x[:, None, None] for x in (dynamics.tau, dynamics.kappa))
    with without_autocast(q.device):
        dot = q @ k.transpose(-1, -2)
    key_norm2 = k.square().sum(-1)[..., None, :]
    residual2 = q.square().sum(-1)[..., None] + transport * (transport * key_norm2 - 2 * dot)
    excess = tables.scaled_precision * residual2.clamp_min(0)
    fit = kappa * torch.log1p(excess) if kernel == "student_t" else excess
    logits = torch.where(tables.is_causal, tau * (tables.log_precision - fit), float("-inf"))
    with without_autocast(q.device):
        out = (torch.softmax(logits, dim=-1) * transport) @ v
    log_norm = torch.logsumexp(logits, dim=-1)
    precision = torch.zeros_like(log_norm)
    if with_precision:
        weight = 1 / (1 + excess) if kernel == "student_t" else torch.exp(-excess)
        evidence = weight * torch.exp(tables.log_precision)
        precision = torch.where(tables.is_causal, evidence, 0.0).sum(-1)
    return AttentionResult(out.transpose(1, 2), log_norm.transpose(1, 2), precision.transpose(1, 2))


def relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dynamics: Dynamics,
    *,
    kernel: str = "student_t",
    with_precision: bool = True,
    prior: Prior = "lyapunov",
    horizon: float = 0.0,
) -> AttentionResult:
    """Compute RFA of rotated q, k, v `[B, N, H, 2D]` at times 0, 1, … with lag tables of N entries.

    On a CPU without gradients, queries are processed in blocks, and memory is O(N).

    Args:
        q, k, v: Rotated inputs, `[B, N, H, 2D]`.
        dynamics: Dynamics of the heads.
        kernel: "student_t" or "gaussian".
        with_precision: Whether to compute the precision. Otherwise, the result contains zeros.
        prior: Where P(lag) is used: "lyapunov", "constant" or "additive". See `LanguageModelConfig`.
        horizon: Time that is added to each lag (RFA C.6: E → zeta E with zeta = e^{-mu horizon}).
    """
    length = q.shape[1]
    index = torch.arange(length, device=q.device)
    by_lag = _tables(dynamics, _ahead(index.to(q.dtype), horizon), prior)
    is_whole = torch.is_grad_enabled() or torch.compiler.is_compiling() or q.is_cuda
    block = length if is_whole else min(QUERY_BLOCK, length)
    lag = index[length - block :, None] - index
    transport, log_precision, scaled = (table[:, lag.clamp_min(0)] for table in by_lag)
    last = _LagTables(transport, log_precision, scaled, lag >= 0)
    if block == length:
        return _attend(q, k, v, dynamics, last, kernel, with_precision=with_precision)
    parts = []
    for end in range(length, 0, -block):
        rows = min(block, end)
        # The lags of earlier blocks are a subset of those of the last block.
        tables = _LagTables(*(table[..., -rows:, -end:] for table in last))
        parts.append(
            _attend(
                q[:, end - rows : end], k[:, :end], v[:, :end], dynamics, tables, kernel, with_precision=with_precision
            )
        )
    return AttentionResult(*(torch.cat(part, dim=1) for part in zip(*reversed(parts), strict=True)))


def banded_attention(
    q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics, *, window: int, is_token: Tensor
) -> AttentionResult:
    """Compute RFA of rotated queries at times 0, 1, … over the `window` most recent keys, including that of the query.

    Work and memory are O(N W), because queries are processed in blocks, each with the keys in its windows.

    Args:
        q: Queries `[B, N, H, 2D]`.
        k, v: Keys and values `[B, W - 1 + N, H, 2D]`, starting W - 1 tokens before the first query.
        dynamics: Dynamics of the heads.
        window: Number of keys W.
        is_token: Mask `[B, W - 1 + N]`, False for keys to ignore. It is True for the key of each query.
    """
    batch, length = q.shape[:2]
    block = min(length, max(window, 16))
    count = -(-length // block)
    span = block + window - 1
    missing = count * block - length

    def padded(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(batch, missing, *x.shape[2:])], dim=1) if missing else x

    blocks = padded(q).unflatten(1, (count, block)).flatten(0, 1)
    k, v, is_token = (padded(x).unfold(1, span, block).movedim(-1, 2).flatten(0, 1) for x in (k, v, is_token))
    lag = window - 1 + torch.arange(block, device=q.device)[:, None] - torch.arange(span, device=q.device)
    by_lag = _tables(dynamics, torch.arange(window, device=q.device).to(q.dtype))
    transport, log_precision, scaled = (table[:, lag.clamp(0, window - 1)] for table in by_lag)
    is_near = (lag >= 0) & (lag < window)
    # Padding rows attend to themselves, because a softmax over no keys is NaN.
    is_visible = is_near & is_token[:, None, None] | (lag == 0)
    tables = _LagTables(transport, log_precision, scaled, is_visible)
    result = _attend(blocks, k, v, dynamics, tables, "student_t", with_precision=True)
    return AttentionResult(*(x.unflatten(0, (batch, count)).flatten(1, 2)[:, :length] for x in result))


def windowed_attention(
    q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics, *, window: int, is_token: Tensor
) -> AttentionResult:
    """Return the result of `banded_attention`, computed over all pairs at once in O(N (N + W)). This is for exported
    graphs, in which N is unknown."""
    index = torch.arange(k.shape[1], device=q.device)
    lag = window - 1 + index[: q.shape[1], None] - index
    transport, log_precision, scaled = _tables(dynamics, lag.clamp(0, window - 1).to(q.dtype))
    is_visible = (lag >= 0) & (lag < window) & is_token[:, None, None] | (lag == 0)
    tables = _LagTables(transport, log_precision, scaled, is_visible)
    return _attend(q, k, v, dynamics, tables, "student_t", with_precision=True)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dynamics: Dynamics,
    *,
    query_times: Tensor,
    key_times: Tensor,
    key_valid: Tensor | None = None,
    kernel: str = "student_t",
    prior: Prior = "lyapunov",
    horizon: float = 0.0,
) -> AttentionResult:
    """Compute RFA of rotated queries and rotated keys of any number, for cached keys or irregular times.

    Args:
        q: Queries `[B, n, H, 2D]`.
        k, v: Keys and values `[B, M, H, 2D]`.
        dynamics: Dynamics of the heads.
        query_times, key_times: Times `[B, n]` and `[B, M]`, or `[1, n]` and `[1, M]` if all rows have the same times.
        key_valid: Mask `[B, M]`, False for empty cache rows, which must contain finite numbers. The last n keys are
            those of the query tokens and are valid. A query attends to the valid keys up to its own.
        kernel: "student_t" or "gaussian".
        prior, horizon: See `relative_attention`.
    """
    n, total = q.shape[1], k.shape[1]
    index = torch.arange(total, device=q.device)
    own = total - n + torch.arange(n, device=q.device)
    is_causal = index <= own[:, None]  # [n, M]
    visible = is_causal if key_valid is None else is_causal & key_valid[:, None]
    # Subtract in float64, because float32 timestamps only resolve minutes.
    lag = (query_times[:, :, None] - key_times[:, None, :]).clamp_min(0).to(q.dtype)  # [B, n, M]
    lag = _ahead(lag, horizon)
    transport, log_precision, scaled = (
        table.transpose(0, 1) for table in _tables(dynamics, lag, prior=prior)
    )  # [B, H, n, M]
    mask = visible[:, None] if visible.dim() == 3 else visible
    tables = _LagTables(transport, log_precision, scaled, mask)
    return _attend(q, k, v, dynamics, tables, kernel, with_precision=True)
