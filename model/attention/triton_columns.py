"""Kernel that computes |k|² / 2 of each key, and its decay and variance over the time to the end of its block."""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.attention.triton_blocks import LENGTHS, block_place, elapsed, first_block, sequence
from rfa.model.attention.triton_distant import is_slow_head
from rfa.model.attention.triton_score import exponential, spread

# Number of values per key: E(s); sigma2 phi(s) + eta2 E(s)²; |k|² / 2; and K for distant blocks (`triton_distant.py`).
COLUMNS = tl.constexpr(4)


@triton.jit
def _describe_block(
    p_k, p_heads, p_stamps, p_columns, p_pages, stride_kb, stride_kt, stride_kh, stride_stamps, n_keys, n_blocks,
    i_block, i_head, i_sequence, i_batch, first, length,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """Store the values of one block. p_pages points to the pages of its sequence."""
    mu = tl.load(p_heads + i_head * 6)
    sigma2 = tl.load(p_heads + i_head * 6 + 1)
    eta2 = tl.load(p_heads + i_head * 6 + 2)
    nu = tl.load(p_heads + i_head * 6 + 4)
    o_key = i_block * BN + tl.arange(0, BN)  # [BN]
    m_key = o_key < length
    o_w = tl.arange(0, BLOCK_W)  # [W]
    token = first + o_key
    p_row = p_k + i_batch * stride_kb + i_head.to(tl.int64) * stride_kh
    m_k = m_key[:, None] & (o_w < WIDTH)[None, :]
    place = token
    if PAGE > 0:
        place = block_place(p_pages, i_block, BN, PAGE) + tl.arange(0, BN)
    b_k = tl.load(p_row + place[:, None] * stride_kt + o_w[None, :], mask=m_k, other=0.0).to(tl.float32)  # [BN, W]
    if HAS_STAMPS:
        p_time = p_stamps + i_batch * stride_stamps
        # The values are only used for complete blocks, so the anchor of the last block may be any key.
        p_anchor = p_time + (first + tl.minimum(i_block * BN + BN, length) - 1) * 2
        b_hi = tl.load(p_time + token * 2, mask=m_key, other=0.0)
        b_lo = tl.load(p_time + token * 2 + 1, mask=m_key, other=0.0)
        b_lag = elapsed(tl.load(p_anchor), tl.load(p_anchor + 1), b_hi, b_lo)  # [BN]
    else:
        b_lag = (BN - 1 - tl.arange(0, BN)).to(tl.float32)  # [BN]
    b_decay = exponential(-mu * b_lag)  # [BN]
    b_variance = spread(b_lag, exponential(-2.0 * mu * b_lag), mu, sigma2, eta2, 0.0)  # [BN]
    i_column = first_block(first, i_sequence, n_keys, BN, IS_PACKED) + i_block
    p_out = p_columns + (i_head.to(tl.int64) * n_blocks + i_column) * (COLUMNS * BN) + tl.arange(0, BN)
    tl.store(p_out, b_decay)
    tl.store(p_out + BN, b_variance)
    b_half_k2 = 0.5 * tl.sum(b_k * b_k, 1)  # [BN]
    tl.store(p_out + 2 * BN, b_half_k2)
    is_slow = is_slow_head(mu, BN)
    b_slow = b_variance / tl.where(is_slow, b_decay * b_decay, 1.0)  # [BN]
    steady = sigma2 / tl.where(is_slow, 1.0, 2.0 * mu)
    tl.store(p_out + 3 * BN, b_half_k2 + 0.5 * nu * tl.where(is_slow, b_slow, eta2 - steady))


@triton.jit(do_not_specialize=LENGTHS)
def _columns_kernel(
    p_k, p_heads, p_stamps, p_starts, p_columns, p_pages,
    stride_kb, stride_kt, stride_kh, stride_stamps, stride_pages, n_keys, n_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """Store the values of each block of keys, [H, blocks, COLUMNS, BN].

    With pages, a program processes several blocks, because a captured graph has a fixed number of programs.
    """
    i_block, i_head, i_sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first, length = sequence(p_starts, i_sequence, n_keys, IS_PACKED)
    if i_block * BN >= length:
        return
    if PAGE == 0:
        _describe_block(
            p_k, p_heads, p_stamps, p_columns, p_pages, stride_kb, stride_kt, stride_kh, stride_stamps, n_keys,
            n_blocks, i_block, i_head, i_sequence, i_batch, first, length,
            WIDTH, BLOCK_W, BN, HAS_STAMPS, IS_PACKED, PAGE,
        )  # fmt: skip
    else:
        for i_own in range(i_block, tl.cdiv(length, BN), tl.num_programs(0)):
            _describe_block(
                p_k, p_heads, p_stamps, p_columns, p_pages + i_sequence * stride_pages, stride_kb, stride_kt, stride_kh,
                stride_stamps, n_keys, n_blocks, i_own, i_head, i_sequence, i_batch, first, length,
                WIDTH, BLOCK_W, BN, HAS_STAMPS, IS_PACKED, PAGE,
            )  # fmt: skip
