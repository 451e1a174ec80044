"""log V between distant blocks as a matrix product, so that a score of the forward pass costs two hardware functions.

With token numbers as times log V depends on the lag only, and between BM queries and BN keys that are `gap` and more
apart it is smooth. Per column c it is therefore interpolated over the rows r, in NODES Chebyshev nodes x_m:

    f(r, c) = tau (kappa - 1) log2 V(gap + r + BN - 1 - c)  ≈  Σ_m l_m(r) f(x_m, c)

a product [BM, TERMS] @ [TERMS, BN] of bfloat16 numbers: both factors split in high + low (three products), and three
more terms each for the row's shift and the block's constant. The second factor is the same for all pairs of blocks of a
head that are equally far apart: a table over that distance, computed here with 1/BM of the work of the pairs.

Error: the same kernel forms the product and the exact f of all pairs of the block and marks the distance as one to be
computed exactly unless every difference of exponents is <= BOUND, a relative error of the weights of 1.7e-4.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from model.attention.triton_score import accumulated, exponential, log2, spread

PI = tl.constexpr(3.141592653589793)
NODES = tl.constexpr(8)
# NODES high, low, high against high, high, low; 3 of the row's shift; 3 of the block's constant; rounded up.
TERMS = tl.constexpr(32)
BOUND = tl.constexpr(2.0**-12)


@triton.jit
def is_slow_head(mu, BN: tl.constexpr):
    """Whether phi(u + s) = phi(u) + E(u + s)² phi(s) / E(s)² is good for a distant block; else (1 - E²) / (2 mu) is."""
    return 2.0 * mu * BN < 1.0


@triton.jit
def rounded(x):
    """To bfloat16 and back."""
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def with_parts(b_terms, o_term, first, x):
    """`b_terms` with x, split in three bfloat16 numbers, at the terms first … first + 2; all broadcast."""
    high = rounded(x)
    middle = rounded(x - high)
    low = rounded(x - high - middle)
    b_terms = tl.where(o_term == first, high, b_terms)
    b_terms = tl.where(o_term == first + 1, middle, b_terms)
    return tl.where(o_term == first + 2, low, b_terms)


@triton.jit
def product(b_left, b_right, INTERPRETED: tl.constexpr):
    """Product of two matrices of rounded numbers."""
    if INTERPRETED:
        return tl.dot(b_left.to(tl.float32), b_right.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(b_left.to(tl.bfloat16), b_right.to(tl.bfloat16))


@triton.jit
def _node(o_term):
    """Position of a term's node in [-1, 1] and its barycentric weight."""
    i_node = o_term % NODES
    angle = (2 * i_node + 1).to(tl.float32) * (PI / (2 * NODES))
    return tl.cos(angle), tl.sin(angle) * (1 - 2 * (i_node % 2)).to(tl.float32)


@triton.jit
def row_terms(BM: tl.constexpr):
    """First factor [BM, TERMS]: l_m(r) high, low, high; 0 for the row's shift; 1 for the block's constant."""
    o_term = tl.arange(0, TERMS)  # [TERMS]
    position = tl.arange(0, BM).to(tl.float32) * (2.0 / (BM - 1)) - 1.0  # [BM]
    node, weight = _node(o_term)
    ratio = weight[None, :] / (position[:, None] - node[None, :])  # [BM, TERMS]
    basis = ratio * (TERMS / NODES) / tl.sum(ratio, 1)[:, None]  # [BM, TERMS]
    high = rounded(basis)
    low = rounded(basis - high)
    is_low = (o_term >= NODES) & (o_term < 2 * NODES)
    terms = tl.where(is_low[None, :], low, high)
    constant = tl.where((o_term >= 3 * NODES + 3) & (o_term < 3 * NODES + 6), 1.0, 0.0)
    return tl.where((o_term < 3 * NODES)[None, :], terms, constant[None, :])


@triton.jit
def table_kernel(
    p_heads, p_rows, p_table, p_marks, n_distances,
    WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, FAST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """One distance of one head: second factor [H, T, TERMS, BN]; the first one [BM, TERMS].

    And, [H, T] int32, distance + 1 where the product is too far off, else 0.
    """
    i_distance, i_head = tl.program_id(0), tl.program_id(1)
    mu = tl.load(p_heads + i_head * 6)
    sigma2 = tl.load(p_heads + i_head * 6 + 1)
    eta2 = tl.load(p_heads + i_head * 6 + 2)
    gamma2 = tl.load(p_heads + i_head * 6 + 3)
    nu = tl.load(p_heads + i_head * 6 + 4)
    tau = tl.load(p_heads + i_head * 6 + 5)
    slope = tau * nu / (WIDTH // 2)
    gap = (i_distance * BN + 1).to(tl.float32)
    o_term = tl.arange(0, TERMS)  # [TERMS]
    o_row = tl.arange(0, BM).to(tl.float32)  # [BM]
    before_anchor = (BN - 1 - tl.arange(0, BN)).to(tl.float32)  # [BN]

    node, _ = _node(o_term)
    b_lag = gap + (0.5 * (BM - 1) * (1.0 + node))[:, None] + before_anchor[None, :]  # [TERMS, BN]
    centre = gap + 0.5 * (BM + BN) - 1.0
    level = slope * tl.log2(spread(centre, exponential(-2.0 * mu * centre), mu, sigma2, eta2, gamma2))
    # U is computed as nu / 2 times itself.
    constant = level + (slope + tau) * (tl.log2(nu) - 1.0)
    b_value = slope * tl.log2(spread(b_lag, exponential(-2.0 * mu * b_lag), mu, sigma2, eta2, gamma2)) - level
    b_high = rounded(b_value)  # [TERMS, BN]
    b_low = rounded(b_value - b_high)  # [TERMS, BN]
    b_terms = tl.where((o_term < 2 * NODES)[:, None], b_high, b_low)
    b_terms = tl.where((o_term < 3 * NODES)[:, None], b_terms, tl.where(o_term < 3 * NODES + 3, 1.0, 0.0)[:, None])
    b_terms = with_parts(b_terms, o_term[:, None], 3 * NODES + 3, constant)  # [TERMS, BN]
    b_rows = row_terms(BM)  # [BM, TERMS]

    gap_decay = exponential(-mu * gap)
    gap_process = sigma2 * accumulated(gap, exponential(-2.0 * mu * gap), mu)
    b_row_decay = exponential(-mu * o_row) * gap_decay  # [BM]
    b_row_process = sigma2 * accumulated(o_row, exponential(-2.0 * mu * o_row), mu)  # [BM]
    b_row_variance = gamma2 + gap_process + gap_decay * gap_decay * b_row_process  # [BM]
    b_key_variance = spread(before_anchor, exponential(-2.0 * mu * before_anchor), mu, sigma2, eta2, 0.0)  # [BN]
    b_variance = b_row_variance[:, None] + (b_row_decay * b_row_decay)[:, None] * b_key_variance[None, :]  # [BM, BN]
    b_exact = slope * log2(b_variance, FAST) + (constant - level)  # [BM, BN]
    error = tl.max(tl.max(tl.abs(product(b_rows, b_terms, INTERPRETED) - b_exact), 1), 0)

    i_entry = i_head.to(tl.int64) * n_distances + i_distance
    o_table = o_term[:, None] * BN + tl.arange(0, BN)[None, :]  # [TERMS, BN]
    tl.store(p_table + i_entry * (TERMS * BN) + o_table, b_terms.to(tl.bfloat16))
    tl.store(p_marks + i_entry, tl.where(error <= BOUND, 0, i_distance + 1))
    if (i_distance == 0) & (i_head == 0):
        o_rows = tl.arange(0, BM)[:, None] * TERMS + o_term[None, :]  # [BM, TERMS]
        tl.store(p_rows + o_rows, b_rows.to(tl.bfloat16))
