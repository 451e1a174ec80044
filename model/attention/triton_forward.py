"""Fused forward pass of Robust Filter Attention. It computes out, log_norm and precision in one pass over the keys.

Memory is O(N). The equations are in `triton_score.py`, and the reference implementation is in `reference.py`. A program
processes the queries at positions P0 … P0 + BM - 1 of one head and sequence (position p is the token of key p). It
reads the keys in blocks of BN:

* First, it reads the blocks at P0 … P0 + BM - 1, with a mask, a lag per pair and a running maximum. If distant blocks
  use a table, E and V of these lags are also read from a table. Afterwards, the exponents of a row are shifted by its
  maximum, which remains fixed. The key of the query's token is among these keys, so no row underflows. If the sum of a
  row exceeds LIMIT, the program processes all keys again with a running maximum.
* After that, it reads the blocks before them, without a mask or a maximum. An anchor (the last key of the block) is
  between these keys and the queries, so E and V follow from factors of rows and columns, with s = anchor - key and
  u = query - anchor, without cancellation and for any mu >= 0:

      E = E(u) E(s)     V = [sigma2 phi(u) + gamma2] + E(u)² [sigma2 phi(s) + eta2 E(s)²]

  `triton_columns.py` computes the column factors. The row factors follow from the offset to the first query and one
  scalar per block.
* If times are token numbers, inputs have 16 bits and the kernel is Student-t, log V of distant blocks is a product with
  a table (`triton_distant.py` states the error). E is part of the exponent of a weight if it is above 2^-60, and is
  divided out of the sum of the weights.

Layout: q [B, n, H, W], k and v [B, M, H, W], where W = 2D is from 16 to 256. Inputs are float32, float16 or bfloat16,
and sums are accumulated in float32. float16 weights are scaled by 2^HEADROOM, because they underflow below 2^-24.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rfa.model.attention.call import AttentionCall
from rfa.model.attention.launch import Launch
from rfa.model.attention.pages import PAGE_KEYS, KeyPages
from rfa.model.attention.triton_blocks import all_blocks, batch_stride, blocks_of, is_interpreted
from rfa.model.attention.triton_columns import COLUMNS, _columns_kernel
from rfa.model.attention.triton_distant import Distances, distances, forward_launch
from rfa.model.attention.triton_forward_kernel import _forward_kernel

# Maximum number of programs that compute values of paged keys. A GPU runs them in one or two waves.
COLUMN_PROGRAMS = 4096


def forward(
    call: AttentionCall,
    *,
    pages: KeyPages | None = None,
    out_dtype: torch.dtype | None = None,
    table: Distances | None = None,
    blocks: Launch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute out, log_norm and precision of rotated, validated inputs.

    Args:
        call: Arguments of the operator.
        pages: Pages of the keys in k and v, for packed sequences without stamps. By default, sequences start at
            `key_starts`.
        out_dtype: Dtype of out. The default is that of q.
        table: Result of `distances` for these heads and at least as many keys. By default, it is computed here.
        blocks: Launch parameters that replace those of the launch table. `block_n` must divide `block_m`.

    Returns:
        out `[B, n, H, W]`, log_norm and precision `[B, n, H]` float32. precision is `[0]` without `with_precision`.
    """
    call = call.normalised()
    q, k, v = call[:3]
    batch, n_queries, n_heads, width = q.shape
    shape = blocks or forward_launch(q.device, width, q.dtype, call.with_precision)
    _check_blocks(shape, pages)
    n_keys, longest_keys = (k.shape[1], k.shape[1] - n_queries + call.longest) if pages is None else pages[1:]
    n_blocks = all_blocks(n_keys, call.sequences, shape.block_n, call.query_starts is not None)
    constants = _constants(call, shape, pages)
    columns = q.new_empty((n_heads, n_blocks, COLUMNS.value, shape.block_n), dtype=torch.float32)
    pointers = (pages.table, pages.table.stride(0)) if pages else (None, 0)
    n_programs = _column_programs(call, blocks_of(longest_keys, shape.block_n), pages)
    _columns_kernel[(n_programs, n_heads, call.sequences)](
        k, call.heads, call.key_stamps, call.key_starts, columns, pointers[0],
        *k.stride()[:3], batch_stride(call.key_stamps), pointers[1], n_keys, n_blocks, **constants, num_warps=4,
    )  # fmt: skip
    table = _table(call, shape, longest_keys, table)
    out = q.new_empty((batch, n_queries, n_heads, width), dtype=out_dtype or q.dtype)
    log_norm = q.new_empty((batch, n_queries, n_heads), dtype=torch.float32)
    precision = torch.empty_like(log_norm) if call.with_precision else log_norm.new_empty(0)
    _forward_kernel[(blocks_of(call.longest - 1, shape.block_m) + 1, n_heads, call.sequences)](
        *call[:8], columns, *(table or (None,) * 4), pointers[0], out, log_norm, precision,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], batch_stride(call.query_stamps),
        batch_stride(call.key_stamps), pointers[1], n_heads, n_queries, n_keys, n_blocks,
        table.marks.shape[1] if table else 0,
        **constants, **_options(call, shape), HAS_TABLE=table is not None,
        num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
    return out, log_norm, precision


def _check_blocks(shape: Launch, pages: KeyPages | None) -> None:
    if shape.block_m % shape.block_n:
        raise ValueError(f"block_m must be a multiple of block_n, got {shape.block_m} and {shape.block_n}")
    if pages is not None and PAGE_KEYS % shape.block_n:
        raise ValueError(f"block_n must divide {PAGE_KEYS}, the number of keys in a page, got {shape.block_n}")


def _column_programs(call: AttentionCall, n_blocks: int, pages: KeyPages | None) -> int:
    """Return the number of programs per head and sequence that compute values of `n_blocks` blocks of keys."""
    if pages is None:
        return n_blocks
    return min(n_blocks, max(1, COLUMN_PROGRAMS // (call.q.shape[2] * call.sequences)))


def _constants(call: AttentionCall, shape: Launch, pages: KeyPages | None) -> dict[str, Any]:
    """Return the compile-time constants that both kernels share."""
    width = call.q.shape[-1]
    return {
        "WIDTH": width,
        "BLOCK_W": max(16, 1 << (width - 1).bit_length()),
        "BN": shape.block_n,
        "HAS_STAMPS": call.query_stamps is not None,
        "IS_PACKED": call.query_starts is not None,
        "PAGE": PAGE_KEYS if pages else 0,
    }


def _options(call: AttentionCall, shape: Launch) -> dict[str, Any]:
    """Return the compile-time constants that only the forward kernel has."""
    is_half, interpreted = call.q.dtype == torch.float16, is_interpreted()
    return {
        "BM": shape.block_m,
        "IS_GAUSSIAN": call.is_gaussian,
        "WITH_PRECISION": call.with_precision,
        "HEADROOM": 5.0 if is_half else 0.0,
        "LIMIT": 2.0**15 if is_half else 2.0**100,
        "FAST": call.q.dtype.itemsize == 2 and not interpreted,
        "INTERPRETED": interpreted,
    }


def _table(call: AttentionCall, shape: Launch, longest_keys: int, table: Distances | None) -> Distances | None:
    """Return the table of distances. Return None if it cannot be used, which is the case for stamps, the Gaussian
    kernel, and float32, for which it is too inaccurate."""
    if call.query_stamps is not None or call.is_gaussian or call.q.dtype == torch.float32:
        return None
    if table is None:
        return distances(
            call.heads, call.q.shape[-1], call.q.dtype, longest_keys,
            with_precision=call.with_precision, blocks=shape,
        )  # fmt: skip
    if (count := table.marks.shape[1] * shape.block_n) < longest_keys:
        raise ValueError(f"the table of distances covers {count} keys, but the longest sequence has {longest_keys}")
    return table
