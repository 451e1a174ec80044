"""Compute log V between distant blocks as a matrix product, so that a score of the forward pass takes only two hardware
functions.

If times are token numbers, log V depends on the lag only. Between BM queries and BN keys that are at least `gap` apart,
it is smooth. For each column c, its Chebyshev series in the row r is cut after ORDERS terms:

    f(r, c) = tau (kappa - 1) log2 V(gap + r + BN - 1 - c) + constant  ≈  Σ_k a_k(c) T_k(x_r),    -1 <= x_r <= 1

This is a product [BM, TERMS] @ [TERMS, BN] of float16 numbers. Large coefficients and T_2 are split into high and low
parts, and two terms subtract the shift of the row. The second factor depends only on the head and on the distance of
the blocks. The table over distances that is computed here takes BM times less work than all pairs. In the blocks that
contain the queries, there are only BM different lags. A second table contains E, V and log V of each of these lags.

Error: the kernel compares the product with the exact f for all pairs of the blocks. If a difference of exponents
exceeds BOUND (a relative error of the weights of 1.7e-4), the distance is marked to be computed exactly. Beyond
LARGEST_SHIFT, the rounding of the shift would exceed BOUND.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.attention.launch import Launch, PassName, launch
from rfa.model.attention.triton_blocks import LENGTHS, blocks_of, is_interpreted
from rfa.model.attention.triton_score import LOG2E, accumulated, exponential, log2, spread
from rfa.model.placement import capability_of

ORDERS = tl.constexpr(10)
# Number of Chebyshev nodes, padded to the size of a matrix product.
NODES = tl.constexpr(16)
# Number of terms. They are 1 and T_1, each with the high and the low part of the coefficient; T_2, as the products high
# high, high low and low high; T_3 and further orders; and the high and the low part of the shift of the row.
TERMS = tl.constexpr(16)
# Number of values for each lag from BM to 1 - BM: E; V; tau (kappa - 1) log2 V; 0. Negative lags are clamped to 0.
LAG_NUMBERS = tl.constexpr(4)
SHIFT_TERM = tl.constexpr(14)
BOUND = tl.constexpr(2.0**-12)
LARGEST_SHIFT = tl.constexpr(1024.0)
# If E is above 2^-LIGHT_EXPONENT, it may be included in the exponent of a weight.
LIGHT_EXPONENT = tl.constexpr(60.0)


@triton.jit
def is_slow_head(mu, BN: tl.constexpr):
    """Return whether phi(u + s) = phi(u) + E(u + s)² phi(s) / E(s)² is accurate for a distant block, because mu is
    small. Otherwise, phi = (1 - E²) / (2 mu) must be used."""
    return 2.0 * mu * BN < 1.0


@triton.jit
def n_light_distances(mu, BM: tl.constexpr, BN: tl.constexpr):
    """Return the number of block distances at which E is at least 2^-LIGHT_EXPONENT for all pairs."""
    longest = LIGHT_EXPONENT * 0.6931471805599453 / tl.maximum(mu, 1e-9) - (BM + BN)
    return tl.cast(tl.maximum(longest / BN, 0.0), tl.int32)


@triton.jit
def _low(x):
    """Return the difference between x and x rounded to float16."""
    return x - x.to(tl.float16).to(tl.float32)


@triton.jit
def _order(o_term):
    """Return the order of the Chebyshev polynomial of a term. For the terms that contain the shift of the row, it is at
    least ORDERS."""
    lowest = tl.where(o_term < 2, 0, tl.where(o_term < 4, 1, 2))
    return tl.where(o_term < 7, lowest, o_term - 4)


@triton.jit
def _cosine(i_step):
    """Return cos(pi i / (2 ORDERS)) for i >= 0. It is computed by the series of the sine of an angle of at most a
    quarter turn."""
    step = i_step.to(tl.float32)
    from_turn = step - 4 * ORDERS * tl.floor(step * (0.25 / ORDERS) + 0.5)
    x = (ORDERS - tl.abs(from_turn)) * (1.5707963267948966 / ORDERS)
    x2 = x * x
    series = 1.0 - x2 * (1.0 / 156.0)
    series = 1.0 - x2 * (1.0 / 110.0) * series
    series = 1.0 - x2 * (1.0 / 72.0) * series
    series = 1.0 - x2 * (1.0 / 42.0) * series
    series = 1.0 - x2 * (1.0 / 20.0) * series
    return x * (1.0 - x2 * (1.0 / 6.0) * series)


@triton.jit
def _row_terms(BM: tl.constexpr):
    """Return the first factor [BM, TERMS] without the shift. T_1 is scaled to numbers that float16 can represent."""
    o_term = tl.arange(0, TERMS)[None, :]  # [1, TERMS]
    order = _order(o_term)  # [1, TERMS]
    b_whole = (2 * tl.arange(0, BM) - (BM - 1)).to(tl.float32)[:, None]  # [BM, 1]
    b_x = b_whole * (1.0 / (BM - 1))  # [BM, 1]
    b_previous, b_current = b_x * 0.0 + 1.0, b_x  # [BM, 1]
    b_terms = tl.where(order == 0, 1.0, tl.where(order == 1, b_whole * (1.0 / BM), 0.0))  # [BM, TERMS]
    for k in tl.static_range(2, ORDERS):
        b_previous, b_current = b_current, 2.0 * b_x * b_current - b_previous
        b_terms = tl.where(order == k, b_current, b_terms)
    return tl.where(o_term == 6, _low(b_terms), b_terms)


@triton.jit
def shifted_row_terms(p_rows, b_shift, BM: tl.constexpr):
    """Return the first factor [BM, TERMS] in float16, with the shift of the row."""
    o_term = tl.arange(0, TERMS)[None, :]  # [1, TERMS]
    b_terms = tl.load(p_rows + tl.arange(0, BM)[:, None] * TERMS + o_term)  # [BM, TERMS]
    b_terms = tl.where(o_term == SHIFT_TERM, -b_shift[:, None].to(tl.float16), b_terms)
    return tl.where(o_term == SHIFT_TERM + 1, -_low(b_shift)[:, None].to(tl.float16), b_terms)


@triton.jit
def numbers_of_lags(p_lag, FAST: tl.constexpr):
    """Load E, V and tau (kappa - 1) log2 V at addresses of the table of lags.

    With FAST, one instruction loads them directly into the threads that use them. A load by Triton would use shared
    memory.
    """
    if FAST:
        b_decay, b_variance, b_level, _ = tl.inline_asm_elementwise(
            "ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", [p_lag],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
        return b_decay, b_variance, b_level
    else:
        return tl.load(p_lag), tl.load(p_lag + 1), tl.load(p_lag + 2)


@triton.jit(do_not_specialize=LENGTHS)
def table_kernel(
    p_heads, p_rows, p_table, p_marks, p_lags, n_distances,
    WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Compute the tables for one block distance and one head: the second factor [H, T, TERMS, BN] and the mark [H, T]
    int32. Also store the first factor without shifts.

    A mark is distance + 1 if the product is too inaccurate, else 0. The program of distance 0 also writes the table of
    lags, [H, 2 BM, LAG_NUMBERS].
    """
    i_distance, i_head = tl.program_id(0), tl.program_id(1)
    mu = tl.load(p_heads + i_head * 6)
    sigma2 = tl.load(p_heads + i_head * 6 + 1)
    eta2 = tl.load(p_heads + i_head * 6 + 2)
    gamma2 = tl.load(p_heads + i_head * 6 + 3)
    nu = tl.load(p_heads + i_head * 6 + 4)
    tau = tl.load(p_heads + i_head * 6 + 5)
    slope = tau * nu / (WIDTH // 2)
    # U is computed as nu / 2 times its value.
    constant = (slope + tau) * (tl.log2(nu) - 1.0)
    gap = (i_distance * BN + 1).to(tl.float32)
    before_anchor = (BN - 1 - tl.arange(0, BN)).to(tl.float32)  # [BN]
    # If E is above 2^-LIGHT_EXPONENT at this distance, the table includes the exponent of E.
    transported = tl.where(i_distance < n_light_distances(mu, BM, BN), mu * LOG2E, 0.0)

    o_term = tl.arange(0, TERMS)  # [TERMS]
    order = _order(o_term)  # [TERMS]
    o_node = tl.arange(0, NODES)  # [NODES]
    b_node = _cosine(2 * o_node + 1)  # [NODES]
    # The values of the keys are an additional row, at its lag before the anchor, because a thread of the pairs has too
    # many columns.
    is_key = o_node == ORDERS  # [NODES]
    b_from_anchor = tl.where(is_key, 0.0, gap + 0.5 * (BM - 1) * (1.0 + b_node))  # [NODES]
    b_lag = b_from_anchor[:, None] + before_anchor[None, :]  # [NODES, BN]
    b_spread = spread(b_lag, exponential(-2.0 * mu * b_lag), mu, sigma2, eta2, 0.0)  # [NODES, BN]
    b_key_variance = tl.sum(tl.where(is_key[:, None], b_spread, 0.0), 0)  # [BN]
    b_exponents = slope * log2(b_spread + gamma2, FAST) + constant - transported * b_lag  # [NODES, BN]
    b_exponents = tl.where(is_key[:, None], 0.0, b_exponents)  # the exponent is infinite if V = 0
    scale = tl.where(order == 0, 0.5, tl.where(order == 1, BM / (BM - 1.0), 1.0)) * (2.0 / ORDERS)  # [TERMS]
    m_polynomials = (order < ORDERS)[:, None] & (o_node < ORDERS)[None, :]  # [TERMS, NODES]
    b_polynomials = scale[:, None] * _cosine(order[:, None] * (2 * o_node + 1)[None, :])  # [TERMS, NODES]
    b_polynomials = tl.where(m_polynomials, b_polynomials, 0.0)
    b_terms = tl.dot(b_polynomials, b_exponents, input_precision="ieee")  # [TERMS, BN]
    is_low = (o_term == 1) | (o_term == 3) | (o_term == 5)
    b_terms = tl.where(is_low[:, None], _low(b_terms), b_terms)
    b_terms = tl.where(o_term[:, None] < SHIFT_TERM, b_terms, 1.0).to(tl.float16)  # [TERMS, BN]
    b_rows = _row_terms(BM).to(tl.float16)  # [BM, TERMS]

    o_row = tl.arange(0, BM).to(tl.float32)  # [BM]
    gap_decay = exponential(-mu * gap)
    gap_process = accumulated(gap, exponential(-2.0 * mu * gap), mu)
    b_row_decay = exponential(-mu * o_row) * gap_decay  # [BM]
    b_row_process = accumulated(o_row, exponential(-2.0 * mu * o_row), mu)  # [BM]
    b_row_variance = gamma2 + sigma2 * (gap_process + gap_decay * gap_decay * b_row_process)  # [BM]
    b_variance = b_row_variance[:, None] + (b_row_decay * b_row_decay)[:, None] * b_key_variance[None, :]  # [BM, BN]
    b_transported = transported * (gap + o_row)[:, None] + (transported * before_anchor)[None, :]  # [BM, BN]
    b_exact = slope * log2(b_variance, FAST) + (constant - b_transported)  # [BM, BN]
    b_product = tl.dot(b_rows, b_terms)  # [BM, BN]
    # Interpreted as integers, positive floats keep their order, and NaN is the largest.
    b_error = tl.abs(b_product - b_exact).to(tl.int32, bitcast=True)  # [BM, BN]
    error = tl.max(b_error).to(tl.float32, bitcast=True)

    i_entry = i_head.to(tl.int64) * n_distances + i_distance
    o_table = o_term[:, None] * BN + tl.arange(0, BN)[None, :]  # [TERMS, BN]
    tl.store(p_table + i_entry * (TERMS * BN) + o_table, b_terms)
    tl.store(p_marks + i_entry, tl.where(error <= BOUND, 0, i_distance + 1))
    if i_distance == 0:
        lag = tl.maximum(BM - tl.arange(0, 2 * BM), 0).to(tl.float32)  # [2 BM]
        variance = spread(lag, exponential(-2.0 * mu * lag), mu, sigma2, eta2, gamma2)  # [2 BM]
        p_lag = p_lags + (i_head.to(tl.int64) * 2 * BM + tl.arange(0, 2 * BM)) * LAG_NUMBERS
        tl.store(p_lag, exponential(-mu * lag))
        tl.store(p_lag + 1, variance)
        tl.store(p_lag + 2, slope * tl.log2(variance))
        tl.store(p_lag + 3, lag * 0.0)
    if (i_distance == 0) & (i_head == 0):
        o_rows = tl.arange(0, BM)[:, None] * TERMS + o_term[None, :]  # [BM, TERMS]
        tl.store(p_rows + o_rows, b_rows)


class Distances(NamedTuple):
    """Tables over lags for H heads and T block distances.

    Attributes:
        rows, table: Factors of the product, `[BM, TERMS]` and `[H, T, TERMS, BN]` float16.
        marks: `[H, T]` int32, distance + 1 if log V must be computed exactly at this distance, else 0.
        lags: `[H, 2 BM, LAG_NUMBERS]` float32.
    """

    rows: Tensor
    table: Tensor
    marks: Tensor
    lags: Tensor


def forward_launch(device: torch.device, width: int, dtype: torch.dtype, with_precision: bool) -> Launch:
    """Return the launch parameters of the forward pass. Without a GPU, return those of the oldest architecture in the
    table."""
    name: PassName = "forward_precision" if with_precision else "forward"
    return launch(name, capability_of(device), width, dtype)


def distances(
    heads: Tensor, width: int, dtype: torch.dtype, longest: int, *, with_precision: bool,
    blocks: Launch | None = None,
) -> Distances:  # fmt: skip
    """Compute the tables for up to `longest` keys. They are valid for 16-bit inputs and the Student-t kernel, if times
    are token positions.

    Args:
        heads: Parameters of the heads, `[H, 6]`.
        width: Number of real dimensions per head.
        dtype: Dtype of the inputs.
        longest: Number of keys.
        with_precision: Whether the forward pass computes the precision.
        blocks: Launch parameters that replace those of the launch table.
    """
    shape = blocks or forward_launch(heads.device, width, dtype, with_precision)
    n_heads, count = heads.shape[0], blocks_of(longest, shape.block_n)
    found = Distances(
        heads.new_empty((shape.block_m, TERMS.value), dtype=torch.float16),
        heads.new_empty((n_heads, count, TERMS.value, shape.block_n), dtype=torch.float16),
        heads.new_empty((n_heads, count), dtype=torch.int32),
        heads.new_empty((n_heads, 2 * shape.block_m, LAG_NUMBERS.value)),
    )
    table_kernel[(count, n_heads)](
        heads, *found, count,
        WIDTH=width, BM=shape.block_m, BN=shape.block_n,
        FAST=not is_interpreted(), num_warps=4,
    )  # fmt: skip
    return found
