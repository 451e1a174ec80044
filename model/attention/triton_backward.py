"""Fused backward pass of Robust Filter Attention: gradients of q, k, v and of the parameters of the heads, in O(N)
memory.

The notation is that of `triton_score.py`, and the reference implementation is `reference.py`. Let dO, g and h be the
gradients of out, log_norm and precision:

    p = exp(L - log_norm)    dL = p (E dO·v - dO·out + g)    s = -dR² nu / c, c = tau kappa (Gaussian: tau)
    Student-t: s = (dL + h / (c U)) / U            m = -dV / c = s - (1 - 1 / kappa) dL / V
    Gaussian:  s = (dL + h e^{-x} / (c V)) / V     m = s (1 - x),  x = R² / (nu V)
    dq_i = -(2 c / nu) Σ_j s (q_i - E k_j)    dk_j = -(2 c / nu) Σ_i s E (E k_j - q_i)    dv_j = Σ_i p E dO_i
    dgamma2 = -c Σ m    deta2 = -c Σ m E²    dsigma2 = -c Σ m phi    dtau = Σ dL L / tau
    dnu = c Σ s R² / nu² + (tau / D) Σ dL log(V / U)
    dmu = -Σ lag (E p dO·v - (2 c / nu) s E (E |k|² - q·k)) - c Σ m dV/dmu

If rounding makes R² negative, R² and its gradient are set to 0.

One kernel iterates over the keys of a block of queries (dq, the parameters), and one over the queries of a block of
keys (dk, dv). Two kernels before them store values of every token. For float32, a third kernel recomputes the norms of
the rows. Sums have a fixed order. Where all keys of a block precede all queries, E and V follow from factors of the
query (at u after an instant between them) and of the key (at s before it):

    E = E(u) E(s)    phi = phi(u) + E(u)² phi(s)    V = sigma2 phi(u) + gamma2 + E(u)² (sigma2 phi(s) + eta2 E(s)²)

Variances are in units of the smallest V of the head, so that s fits into 16 bits if dL does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from rfa.model.attention.call import AttentionCall
from rfa.model.attention.launch import Launch, launch
from rfa.model.attention.triton_backward_columns import _columns_kernel
from rfa.model.attention.triton_backward_common import KEY_NUMBERS, QUERY_NUMBERS
from rfa.model.attention.triton_backward_rows import _rows_kernel
from rfa.model.attention.triton_backward_tokens import _describe_keys, _describe_queries, _normalise_rows
from rfa.model.attention.triton_blocks import all_blocks, batch_stride, is_interpreted
from rfa.model.placement import capability_of


class OutputGradients(NamedTuple):
    """Gradients of out `[B, n, H, W]`, log_norm and precision `[B, n, H]`. The last one may be None."""

    out: Tensor
    log_norm: Tensor
    precision: Tensor | None


def backward(
    gradients: OutputGradients,
    call: AttentionCall,
    out: Tensor,
    log_norm: Tensor,
    *,
    needs_heads: bool = True,
    row_blocks: Launch | None = None,
    column_blocks: Launch | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of the rotated q, k, v and of the parameters of the heads. The caller must have validated the
    inputs.

    Args:
        gradients: Gradients of the results.
        call: Arguments of the forward pass.
        out, log_norm: Results of the forward pass.
        needs_heads: Whether to compute the gradients of the heads. Otherwise, they are 0.
        row_blocks, column_blocks: Launch parameters that replace those of the launch table.

    Returns:
        Contiguous gradients of q, k, v in their dtypes, and of heads `[H, 6]` in float32. In 16 bits, dO·out is
        computed from the rounded `out`, as in FlashAttention.
    """
    call, n_heads, sequences = call.normalised(), call.q.shape[2], call.sequences
    q, k, v, heads = call[:4]
    gradients = OutputGradients(*(None if x is None else x.contiguous() for x in gradients))  # type: ignore[arg-type]
    needs_decay, where = needs_heads and call.needs_decay, (capability_of(q.device), q.shape[-1], q.dtype)
    rows = row_blocks or launch("backward_rows_decay" if needs_decay else "backward_rows", *where)
    columns = column_blocks or launch("backward_columns", *where)
    constants, arithmetic = _constants(call), _arithmetic(call, gradients.precision is not None)
    keys, queries = _describe(gradients, call, out.contiguous(), log_norm.contiguous(), rows, columns)
    layout = call[4:8]
    sizes = _sizes(call, queries)
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    row_grid = (triton.cdiv(call.longest, rows.block_m), n_heads, sequences)
    # The sums are initialised with zeros, because programs after the end of a packed sequence do not write.
    sums = heads.new_zeros((n_heads, 6, row_grid[0] * sequences))
    _rows_kernel[row_grid](
        q, k, v, gradients.out, heads, queries, keys, *layout, dq, sums, *sizes, keys.shape[1],
        **constants, **arithmetic, BM=rows.block_m, BN=rows.block_n, BD=max(16, rows.block_n // 2),
        QUERY_BLOCK=columns.block_m, NEEDS_DYNAMICS=needs_heads, NEEDS_DECAY=needs_decay,
        num_warps=rows.num_warps, num_stages=rows.num_stages,
    )  # fmt: skip
    _columns_kernel[(triton.cdiv(call.longest_keys, columns.block_n), n_heads, sequences)](
        q, k, v, gradients.out, heads, queries, *layout, dk, dv, *sizes,
        **constants, **arithmetic, BM=columns.block_m, BN=columns.block_n,
        num_warps=columns.num_warps, num_stages=columns.num_stages,
    )  # fmt: skip
    return dq, dk, dv, sums.sum(-1, dtype=torch.float64).to(torch.float32)


def _describe(
    gradients: OutputGradients, call: AttentionCall, out: Tensor, log_norm: Tensor, rows: Launch, columns: Launch
) -> tuple[Tensor, Tensor]:
    """Compute the values of keys, `[H, blocks, KEY_NUMBERS, BN]`, and of queries, `[H, blocks, QUERY_NUMBERS, BM]`,
    that the gradient kernels read.
    """
    q, k, _, heads = call[:4]
    n_queries, n_heads, is_packed = q.shape[1], q.shape[2], call.query_starts is not None
    key_blocks = all_blocks(k.shape[1], call.sequences, rows.block_n, is_packed)
    query_blocks = all_blocks(n_queries, call.sequences, columns.block_m, is_packed)
    keys = heads.new_empty((n_heads, key_blocks, KEY_NUMBERS.value, rows.block_n))
    queries = heads.new_empty((n_heads, query_blocks, QUERY_NUMBERS.value, columns.block_m))
    constants = _constants(call)
    _describe_keys[(triton.cdiv(call.longest_keys, rows.block_n), n_heads, call.sequences)](
        k, heads, call.key_stamps, call.key_starts, keys,
        *k.stride()[:3], batch_stride(call.key_stamps), k.shape[1], key_blocks,
        **constants, BN=rows.block_n, num_warps=4,
    )  # fmt: skip
    _describe_queries[(triton.cdiv(call.longest, columns.block_m), n_heads, call.sequences)](
        q, out, gradients.out, log_norm, gradients.log_norm, gradients.precision, heads, call.query_stamps,
        call.query_starts, queries, *q.stride()[:3], batch_stride(call.query_stamps), n_heads, n_queries, query_blocks,
        **constants, BM=columns.block_m, HAS_PRECISION=gradients.precision is not None, num_warps=4,
    )  # fmt: skip
    if q.dtype == torch.float32:
        _normalise_rows[(triton.cdiv(call.longest, columns.block_m), n_heads, call.sequences)](
            *call[:3], *gradients[:2], heads, queries, keys, *call[4:8], *_sizes(call, queries),
            key_blocks, **constants, BM=columns.block_m, BN=rows.block_n,
            FAST=False, UPCAST=False, num_warps=4, num_stages=1,
        )  # fmt: skip
    return keys, queries


def _sizes(call: AttentionCall, queries: Tensor) -> tuple[int, ...]:
    """Return strides and lengths in the order of the kernel arguments."""
    q, k, v = call[:3]
    return (
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], batch_stride(call.query_stamps),
        batch_stride(call.key_stamps), q.shape[2], q.shape[1], k.shape[1], queries.shape[1],
    )  # fmt: skip


def _constants(call: AttentionCall) -> dict[str, Any]:
    """Return the compile-time constants that all gradient kernels share."""
    width = call.q.shape[-1]
    return {
        "WIDTH": width,
        "BLOCK_W": max(16, triton.next_power_of_2(width)),
        "HAS_STAMPS": call.query_stamps is not None,
        "IS_PACKED": call.query_starts is not None,
        "IS_GAUSSIAN": call.is_gaussian,
    }


def _arithmetic(call: AttentionCall, has_precision: bool) -> dict[str, Any]:
    """Return the compile-time constants that the kernels over rows and over columns share."""
    interpreted = is_interpreted()
    return {
        "HAS_PRECISION": has_precision,
        "FAST": call.q.dtype.itemsize == 2 and not interpreted,
        "UPCAST": interpreted and call.q.dtype == torch.bfloat16,
    }
