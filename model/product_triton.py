"""Products of rows by a matrix on a GPU, with what comes before and behind them: x Wᵀ, float32 sums.

    product        x Wᵀ, of x or of its norm, with or without GELU behind it
    add_product    total += x Wᵀ, the residual sum

A decode step is short of time, not of arithmetic: each kernel in its graph takes longer to begin than a row takes to
compute. So what is between two products has no kernel of its own: each program makes the norm of its rows anew.

A library's product takes another algorithm for another number of rows, and a text would change with its company. Here
a matrix has one tile, whatever the rows. A program takes `BLOCK_ROWS` of them and few columns, for many programs read a
matrix sooner, and its warps share the factors out among themselves; of a vocabulary it takes many, and its warps share
them. Every row is summed in one order, each part from its first factor to its last and then the parts by pairs,
whatever lies beside it.

Layout: rows `[B, in]`, matrices `[out, in]` in float32, float16 or bfloat16, contiguous. Products in 16 bits take
factors that are rounded to them; those of float32 are not.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.attention.triton_blocks import is_interpreted

# Rows and warps of a program. Its kernel asks for what comes next by itself, and needs no stages for it.
BLOCK_ROWS, WARPS, STAGES = 16, 8, 1
# Factors that a program takes at once, of 16 bits and of 32, and the fewest of a part: a tensor core's.
BLOCK_FACTORS, LEAST_FACTORS = {2: 1024, 4: 128}, 16
# Columns of a program: as few as a tensor core takes, but no more programs than this, and no larger piece of W.
LEAST_COLUMNS, PROGRAMS, BLOCK_BYTES = 4, 128, 32 << 10
# Columns, and factors at once, of a program whose warps share the columns: of matrices that have many of them.
WIDE_COLUMNS, WIDE_FACTORS = 128, 256
SQRT_HALF = tl.constexpr(0.7071067811865476)


class Norm(NamedTuple):
    """x / sqrt(mean x² + eps) times the weight `[in]`."""

    weight: Tensor
    eps: float


class Tile(NamedTuple):
    """What a program of a product takes, as a kernel's constants have it. PARTS: of a sum, one a warp; 1: the warps
    share the columns."""

    FACTORS: int
    COLUMNS: int
    BM: int
    BN: int
    BK: int
    PARTS: int
    INTERPRETED: bool

    @classmethod
    def of(cls, weight: Tensor) -> Tile:
        """The one for a matrix."""
        columns, factors = weight.shape
        size = weight.dtype.itemsize
        if size == 2 and columns >= PROGRAMS * WIDE_COLUMNS:
            block, parts, own = min(WIDE_FACTORS, triton.next_power_of_2(factors)), 1, WIDE_COLUMNS
        else:
            block, parts = min(BLOCK_FACTORS[size], triton.next_power_of_2(factors)), WARPS
            block = max(block, LEAST_FACTORS * WARPS)
            own = min(triton.next_power_of_2(triton.cdiv(columns, PROGRAMS)), BLOCK_BYTES // size // block)
        block, own = max(block, LEAST_FACTORS), max(own, LEAST_COLUMNS)
        return cls(factors, columns, BLOCK_ROWS, own, block, parts, is_interpreted())

    def grid(self, rows: int) -> tuple[int, int]:
        """Programs for so many rows: columns go first, for those of a row read the same."""
        return triton.cdiv(self.COLUMNS, self.BN), triton.cdiv(rows, self.BM)


@triton.jit
def in_parts(b_x, PARTS: tl.constexpr):
    """[R, K] as [P, R, K / P]."""
    return tl.permute(tl.reshape(b_x, [b_x.shape[0], PARTS, b_x.shape[1] // PARTS]), (1, 0, 2))


@triton.jit
def sum_of_parts(b_sum, BM: tl.constexpr, BN: tl.constexpr):
    """Of [8, BM, BN] neighbours are added, and neighbours of these. As a reduction it would leave all of it with every
    warp, and GELU be computed by each."""
    b_sum = tl.reshape(tl.permute(b_sum, (1, 2, 0)), [BM, BN, 2, 2, 2])
    b_one, b_other = tl.split(b_sum)
    b_one, b_other = tl.split(b_one + b_other)
    b_one, b_other = tl.split(b_one + b_other)
    return b_one + b_other


@triton.jit
def within(m_other, o_factor, first, FACTORS: tl.constexpr, BK: tl.constexpr):
    """Of a block whose rows are masked, which of the factors from `first` on there are."""
    if FACTORS % BK != 0:
        m_other = m_other & (o_factor < FACTORS - first)
    return m_other


@triton.jit
def inverse_length(
    p_row, m_row, o_factor, FACTORS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, EPS: tl.constexpr
):
    """1 / sqrt(mean x² + eps) of the rows at p_row [BM, BK], [BM]."""
    b_square = tl.zeros([BM], tl.float32)  # [BM]
    for first in range(0, FACTORS, BK):
        b_x = tl.load(p_row + first, mask=within(m_row, o_factor, first, FACTORS, BK), other=0.0)  # [BM, BK]
        b_square += tl.sum(b_x * b_x, axis=1)
    return tl.rsqrt(b_square / FACTORS + EPS)


@triton.jit
def multiplied(
    p_x, p_norm, p_weight, m_row, m_column,
    FACTORS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    INTERPRETED: tl.constexpr, WITH_NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """The rows at p_x, or their norm, by those of the matrix at p_weight, [BM, BN]; m_row [BM, 1], m_column [BN, 1]:
    which there are."""
    o_factor = tl.arange(0, BK)[None, :]  # [1, BK]
    o_row = tl.arange(0, BM)[:, None]  # [BM, 1]
    p_row = p_x + o_row * FACTORS + o_factor  # [BM, BK]
    p_column = p_weight + tl.arange(0, BN)[:, None] * FACTORS + o_factor  # [BN, BK]
    # The matrix comes from farther away than all else: it is asked for first, and of the next turn before this one.
    b_weight = tl.load(p_column, mask=within(m_column, o_factor, 0, FACTORS, BK), other=0.0)  # [BN, BK]
    if WITH_NORM:
        b_scale = inverse_length(p_row, m_row, o_factor, FACTORS, BM, BK, EPS)  # [BM]
    b_sum = tl.zeros([BM, BN] if PARTS == 1 else [PARTS, BM, BN], tl.float32)
    for first in range(0, FACTORS, BK):
        m_next = m_column & (o_factor < FACTORS - BK - first)  # [BN, BK]
        b_next = tl.load(p_column + first + BK, mask=m_next, other=0.0)  # [BN, BK]
        m_factor = within(m_row, o_factor, first, FACTORS, BK)
        b_x = tl.load(p_row + first, mask=m_factor, other=0.0)  # [BM, BK]
        if WITH_NORM:
            # Of every row, as x is laid out.
            b_norm = tl.load(p_norm + first + 0 * o_row + o_factor, mask=m_factor, other=0.0)  # [BM, BK]
            b_x = b_x * b_scale[:, None] * b_norm
        if INTERPRETED:  # which cuts bfloat16 off where the hardware rounds, and knows no product of it
            b_x, b_weight = b_x.to(tl.float32), b_weight.to(tl.float32)
        else:
            b_x = b_x.to(b_weight.dtype)
        if PARTS == 1:
            b_sum = tl.dot(b_x, tl.trans(b_weight), b_sum, input_precision="ieee")
        else:
            b_columns = tl.permute(in_parts(b_weight, PARTS), (0, 2, 1))  # [P, BK / P, BN]
            b_sum = tl.dot(in_parts(b_x, PARTS), b_columns, b_sum, input_precision="ieee")
        b_weight = b_next
    if PARTS > 1:
        b_sum = sum_of_parts(b_sum, BM, BN)
    return b_sum


@triton.jit(do_not_specialize=["n_rows"])
def product_kernel(
    p_x, p_norm, p_weight, p_out, n_rows,
    FACTORS: tl.constexpr, COLUMNS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PARTS: tl.constexpr, INTERPRETED: tl.constexpr, WITH_NORM: tl.constexpr, EPS: tl.constexpr,
    WITH_GELU: tl.constexpr, IS_ADDED: tl.constexpr,
):  # fmt: skip
    """Program (j, i): BM rows by BN columns. IS_ADDED: to what is there."""
    i_row, i_column = tl.program_id(1).to(tl.int64) * BM, tl.program_id(0).to(tl.int64) * BN
    o_row, o_column = tl.arange(0, BM), tl.arange(0, BN)  # [BM], [BN]
    m_row, m_column = o_row < (n_rows - i_row).to(tl.int32), o_column < (COLUMNS - i_column).to(tl.int32)
    p_out += i_row * COLUMNS + i_column
    o_out = o_row[:, None] * COLUMNS + o_column[None, :]  # [BM, BN]
    m_out = m_row[:, None] & m_column[None, :]  # [BM, BN]
    if IS_ADDED:
        b_before = tl.load(p_out + o_out, mask=m_out, other=0.0)  # [BM, BN]
    b_out = multiplied(
        p_x + i_row * FACTORS, p_norm, p_weight + i_column * FACTORS, m_row[:, None], m_column[:, None],
        FACTORS, BM, BN, BK, PARTS, INTERPRETED, WITH_NORM, EPS,
    )  # fmt: skip
    if IS_ADDED:
        b_out += b_before
    if WITH_GELU:
        b_out = 0.5 * b_out * (1.0 + tl.erf(b_out * SQRT_HALF))
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_out)


def _launch(
    x: Tensor, weight: Tensor, out: Tensor, norm: Norm | None, *, with_gelu: bool = False, is_added: bool = False
) -> None:
    tile = Tile.of(weight)
    with torch.cuda.device_of(x):
        product_kernel[tile.grid(len(x))](
            x, x if norm is None else norm.weight, weight, out, len(x), **tile._asdict(),
            WITH_NORM=norm is not None, EPS=0.0 if norm is None else norm.eps,
            WITH_GELU=with_gelu, IS_ADDED=is_added, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip


def product(x: Tensor, weight: Tensor, norm: Norm | None = None, *, with_gelu: bool = False) -> Tensor:
    """x `[B, in]`, or its norm, times weightᵀ, weight `[out, in]`: `[B, out]` float32, or GELU of it in the dtype of
    the weight."""
    dtype = weight.dtype if with_gelu else torch.float32
    out = x.new_empty((len(x), len(weight)), dtype=dtype)
    _launch(x, weight, out, norm, with_gelu=with_gelu)
    return out


def add_product(total: Tensor, x: Tensor, weight: Tensor) -> None:
    """`total += x weightᵀ`: total `[B, out]` float32, x `[B, in]`."""
    _launch(x, weight, total, None, is_added=True)
