"""Compute matrix products x Wᵀ on a GPU with float32 sums, fused with the operations before and after them.

    product        x Wᵀ of x or of its norm, optionally with GELU
    add_product    total += x Wᵀ, the residual sum

In a decode step, kernel launches take longer than arithmetic, so each program recomputes the norm of its rows.

With the products of libraries, the rounding of a row depends on the number of rows, so a text would depend on its
batch. Here, the terms of every row are summed in the same order. A sum consists of consecutive parts of `PART` factors,
each summed from first to last, and the parts are added in pairs, regardless of the block sizes. For few rows, blocks
have 16 rows and few columns, with one warp per part, because a matrix is read faster by many programs. For many rows,
blocks are larger, so that the matrix is read less often, and a separate kernel computes the norm.

Layout: rows `[B, in]` and matrices `[out, in]` in float32, float16 or bfloat16, contiguous. In 16-bit products, the
factors are rounded to 16 bits.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.attention.triton_blocks import blocks_of, is_interpreted

# Number of factors per part, unless there would be more than MOST_PARTS parts.
PART, MOST_PARTS = 256, 8
# Number of factors per tensor-core instruction.
LEAST_FACTORS = 16
# Number of rows per block for few rows, and number of factors per iteration by the bytes of a factor.
FEW_ROWS, FACTORS_AT_ONCE = 16, {2: 1024, 4: 128}
# Minimum number of columns per block, maximum number of programs, and maximum number of bytes of W per block. The
# number of columns is as small as these limits allow.
LEAST_COLUMNS, PROGRAMS, PIECE_BYTES = 4, 128, 32 << 10
# Number of warps if there is not one warp per part, and number of pipeline stages, which is 1 because the kernels
# contain their own prefetching.
WARPS, STAGES = 4, 1
# Number of factors that a norm squares at once, in sums of four, and the number 2^23 by which the sums are multiplied.
AT_ONCE, UNITS = tl.constexpr(256), tl.constexpr(8388608.0)
# Mask of the exponent bits of a float, the exponent 254, and the bounds 2^-103 and 2^126 as exponent bits.
EXPONENT, INVERSE = tl.constexpr(0x7F800000), tl.constexpr(254 << 23)
LEAST_POWER, MOST_POWER = tl.constexpr(24 << 23), tl.constexpr(253 << 23)
SQRT_HALF = tl.constexpr(0.7071067811865476)


class Norm(NamedTuple):
    """RMS normalisation, which divides x by sqrt(mean x² + eps) and multiplies it by the weight `[in]`."""

    weight: Tensor
    eps: float


class ManyRows(NamedTuple):
    """Block sizes for many rows.

    Args:
        rows, columns: Size of a block of the result.
        factors: Number of factors of a part that are loaded at once.
        warps: Warps per program.
        programs: Minimum number of programs for which this size is used.
    """

    rows: int
    columns: int
    factors: int
    warps: int
    programs: int


# These were the fastest of a dozen settings for 64 and 1,024 rows on an H200. With four warps, the products of blocks
# of 64 rows would be compiled to wgmma, whose sums may differ.
LARGE, MEDIUM = ManyRows(64, 64, 64, 2, 128), ManyRows(32, 32, 64, WARPS, 64)


class Tile(NamedTuple):
    """Compile-time constants of a product kernel.

    Attributes:
        FACTORS, COLUMNS: Shape of the matrix, `[out, in]` = `[COLUMNS, FACTORS]`.
        BM, BN: Rows and columns of a block of the result.
        BK: Number of factors of a part that are loaded at once.
        PARTS, LENGTH: Number of parts of a sum, and number of factors per part.
        INTERPRETED: Whether the kernel runs in the interpreter.
    """

    FACTORS: int
    COLUMNS: int
    BM: int
    BN: int
    BK: int
    PARTS: int
    LENGTH: int
    INTERPRETED: bool

    @classmethod
    def of(cls, weight: Tensor, rows: int) -> Tile:
        """Return the constants for a matrix and a number of rows."""
        return _tile(*weight.shape, weight.dtype.itemsize, _block(weight, rows), is_interpreted())

    @property
    def is_of_many(self) -> bool:
        """Whether the block sizes are those for many rows."""
        return self.BM > FEW_ROWS

    @property
    def warps(self) -> int:
        """Number of warps per program."""
        if LARGE.rows == self.BM:
            return LARGE.warps
        return self.PARTS if self.PARTS > 1 and not self.is_of_many else max(WARPS, self.PARTS)

    def grid(self, rows: int) -> tuple[int, int]:
        """Return the grid of programs. The column varies fastest, because programs with the same rows read the same
        input."""
        return blocks_of(self.COLUMNS, self.BN), blocks_of(rows, self.BM)


def _block(weight: Tensor, rows: int) -> ManyRows | None:
    """Return the block sizes for many rows, or None for few rows or float32."""
    columns, factors = weight.shape
    if weight.dtype.itemsize == 2:
        for block in (LARGE, MEDIUM) if factors <= PART else (MEDIUM,):
            programs = blocks_of(rows, block.rows) * blocks_of(columns, block.columns)
            if rows >= block.rows and programs >= block.programs:
                return block
    return None


@functools.cache
def _tile(columns: int, factors: int, size: int, block: ManyRows | None, interpreted: bool) -> Tile:
    parts = min(triton.next_power_of_2(blocks_of(factors, PART)), MOST_PARTS)
    length = blocks_of(factors, parts * LEAST_FACTORS) * LEAST_FACTORS
    if block is not None:
        return Tile(factors, columns, block.rows, block.columns, block.factors, parts, length, interpreted)
    at_once = min(triton.next_power_of_2(length), FACTORS_AT_ONCE[size] // parts)
    own = min(triton.next_power_of_2(blocks_of(columns, PROGRAMS)), PIECE_BYTES // size // (parts * at_once))
    return Tile(factors, columns, FEW_ROWS, max(own, LEAST_COLUMNS), at_once, parts, length, interpreted)


@triton.jit
def in_parts(b_x, PARTS: tl.constexpr):
    """Return b_x [R, K] as [P, R, K / P]."""
    return tl.permute(tl.reshape(b_x, [b_x.shape[0], PARTS, b_x.shape[1] // PARTS]), (1, 0, 2))


@triton.jit
def sum_of_parts(b_sum, BM: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr):
    """Return the sum of [P, BM, BN] over P, added in pairs.

    The result of a reduction would be stored in every warp, each of which would then compute GELU.
    """
    b_sum = tl.permute(b_sum, (1, 2, 0))
    if PARTS == 8:
        b_one, b_other = tl.split(tl.reshape(b_sum, [BM, BN, 2, 2, 2]))
        b_one, b_other = tl.split(b_one + b_other)
        b_sum = b_one + b_other
    elif PARTS == 4:
        b_one, b_other = tl.split(tl.reshape(b_sum, [BM, BN, 2, 2]))
        b_sum = b_one + b_other
    b_one, b_other = tl.split(b_sum)
    return b_one + b_other


@triton.jit
def within(m_other, o_own, o_factor, first, FACTORS: tl.constexpr, PARTS: tl.constexpr, LENGTH: tl.constexpr):
    """Return the mask m_other without the factors after the end of their part, for a block that begins at factor
    `first` of each part."""
    if PARTS * LENGTH != FACTORS:
        m_other = m_other & (o_factor < FACTORS - first)
    return m_other & (o_own < LENGTH - first)


@triton.jit
def inverse_length(p_x, m_row, FACTORS: tl.constexpr, BM: tl.constexpr, EPS: tl.constexpr):
    """Return 1 / sqrt(mean x² + eps) of the rows at p_x, [BM]. It is NaN for non-finite rows. m_row is [BM, 1].

    Kernels arrange rows differently, and sums of floats depend on the order. Squares are therefore converted to
    integers, in units of 2^-23 of the power of two at or below the largest square.
    """
    o_factor = tl.arange(0, AT_ONCE)[None, :]  # [1, K]
    p_row = p_x + tl.arange(0, BM)[:, None] * FACTORS + o_factor  # [BM, K]
    b_square = tl.zeros([BM, AT_ONCE // 4], tl.float32)  # [BM, K / 4]
    for first in range(0, FACTORS, AT_ONCE):
        b_x = tl.load(p_row + first, mask=m_row & (o_factor < FACTORS - first), other=0.0)  # [BM, K]
        b_even, b_odd = tl.split(tl.reshape(b_x, [BM, AT_ONCE // 2, 2]))
        # With `fma`, the sum is fused in every kernel. Otherwise, the assembler may fuse it in some kernels only.
        b_one, b_other = tl.split(tl.reshape(tl.fma(b_odd, b_odd, b_even * b_even), [BM, AT_ONCE // 4, 2]))
        b_square += b_one + b_other
    b_top = tl.max(tl.where(b_square < float("inf"), b_square, float("inf")), axis=1)  # [BM]
    # The exponent bits give the power of two at or below the largest square. The exponent of its inverse is 254 minus
    # that of the power.
    b_power = tl.minimum(tl.maximum(b_top.to(tl.int32, bitcast=True) & EXPONENT, LEAST_POWER), MOST_POWER)  # [BM]
    b_units = (-(b_power - INVERSE)).to(tl.float32, bitcast=True) * UNITS  # [BM]
    b_unit = b_power.to(tl.float32, bitcast=True) / UNITS  # [BM]
    b_finite = tl.where(b_square < float("inf"), b_square, 0.0)  # [BM, K]
    b_sum = tl.sum((b_finite * b_units[:, None] + 0.5).to(tl.int32), axis=1).to(tl.float32) * b_unit  # [BM]
    return tl.where(b_top < float("inf"), tl.rsqrt(tl.fma(b_sum, 1.0 / FACTORS, EPS)), float("nan"))


@triton.jit
def multiplied(
    b_sum, p_x, p_norm, p_weight, m_row, m_column,
    FACTORS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    LENGTH: tl.constexpr, INTERPRETED: tl.constexpr, WITH_NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Return b_sum [BM, BN] plus x Wᵀ, for the rows at p_x, normalised if WITH_NORM, and the matrix at p_weight. The
    masks m_row and m_column are [BM, 1] and [BN, 1].
    """
    o_k = tl.arange(0, PARTS * BK)[None, :]  # [1, K], of all parts
    o_own = o_k % BK  # within a part
    o_factor = (o_k // BK) * LENGTH + o_own  # [1, K]
    o_row = tl.arange(0, BM)[:, None]  # [BM, 1]
    p_row = p_x + o_row * FACTORS + o_factor  # [BM, K]
    p_column = p_weight + tl.arange(0, BN)[:, None] * FACTORS + o_factor  # [BN, K]
    # The matrix is loaded first and one iteration ahead, because its latency is the highest.
    b_weight = tl.load(p_column, mask=within(m_column, o_own, o_factor, 0, FACTORS, PARTS, LENGTH), other=0.0)
    if WITH_NORM:
        b_scale = inverse_length(p_x, m_row, FACTORS, BM, EPS)  # [BM]
    b_parts = tl.zeros([PARTS, BM, BN], tl.float32)
    for first in range(0, LENGTH, BK):
        m_next = within(m_column, o_own, o_factor, first + BK, FACTORS, PARTS, LENGTH)  # [BN, K]
        b_next = tl.load(p_column + first + BK, mask=m_next, other=0.0)  # [BN, K]
        m_factor = within(m_row, o_own, o_factor, first, FACTORS, PARTS, LENGTH)  # [BM, K]
        b_x = tl.load(p_row + first, mask=m_factor, other=0.0)  # [BM, K]
        if WITH_NORM:
            # The weights of the norm are loaded in the layout of x.
            b_norm = tl.load(p_norm + first + 0 * o_row + o_factor, mask=m_factor, other=0.0)  # [BM, K]
            b_x = b_x * b_scale[:, None] * b_norm
        if INTERPRETED:  # the interpreter truncates to bfloat16 and cannot multiply it
            b_x, b_weight = b_x.to(tl.float32), b_weight.to(tl.float32)
        else:
            b_x = b_x.to(b_weight.dtype)
        if PARTS == 1:
            # If there were a single iteration and no accumulator, the compiler would fuse the product with a later sum.
            b_sum = tl.dot(b_x, tl.trans(b_weight), b_sum, input_precision="ieee")
        else:
            b_columns = tl.permute(in_parts(b_weight, PARTS), (0, 2, 1))  # [P, K / P, BN]
            b_parts = tl.dot(in_parts(b_x, PARTS), b_columns, b_parts, input_precision="ieee")
        b_weight = b_next
    if PARTS > 1:
        b_sum += sum_of_parts(b_parts, BM, BN, PARTS)
    return b_sum


@triton.jit(do_not_specialize=["n_rows"])
def normed_kernel(p_x, p_norm, p_out, n_rows, FACTORS: tl.constexpr, BM: tl.constexpr, EPS: tl.constexpr):
    """Normalise BM rows in program i, and store them in the dtype of p_out."""
    i_row = tl.program_id(0).to(tl.int64) * BM
    o_row, o_factor = tl.arange(0, BM)[:, None], tl.arange(0, AT_ONCE)[None, :]  # [BM, 1], [1, K]
    m_row = o_row < (n_rows - i_row).to(tl.int32)
    p_x += i_row * FACTORS
    p_out += i_row * FACTORS
    o_x = o_row * FACTORS + o_factor  # [BM, K]
    b_scale = inverse_length(p_x, m_row, FACTORS, BM, EPS)  # [BM]
    for first in range(0, FACTORS, AT_ONCE):
        m_x = m_row & (o_factor < FACTORS - first)  # [BM, K]
        b_norm = tl.load(p_norm + first + 0 * o_row + o_factor, mask=m_x, other=0.0)  # [BM, K]
        b_out = tl.load(p_x + o_x + first, mask=m_x, other=0.0) * b_scale[:, None] * b_norm  # [BM, K]
        tl.store(p_out + o_x + first, b_out.to(p_out.dtype.element_ty), mask=m_x)


@triton.jit(do_not_specialize=["n_rows"])
def product_kernel(
    p_x, p_norm, p_weight, p_out, n_rows,
    FACTORS: tl.constexpr, COLUMNS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PARTS: tl.constexpr, LENGTH: tl.constexpr, INTERPRETED: tl.constexpr, WITH_NORM: tl.constexpr,
    EPS: tl.constexpr, WITH_GELU: tl.constexpr, IS_ADDED: tl.constexpr,
):  # fmt: skip
    """Compute BM rows and BN columns of the product in program (j, i). If IS_ADDED, they are added to p_out."""
    i_row, i_column = tl.program_id(1).to(tl.int64) * BM, tl.program_id(0).to(tl.int64) * BN
    o_row, o_column = tl.arange(0, BM), tl.arange(0, BN)  # [BM], [BN]
    m_row, m_column = o_row < (n_rows - i_row).to(tl.int32), o_column < (COLUMNS - i_column).to(tl.int32)
    p_out += i_row * COLUMNS + i_column
    o_out = o_row[:, None] * COLUMNS + o_column[None, :]  # [BM, BN]
    m_out = m_row[:, None] & m_column[None, :]  # [BM, BN]
    b_out = tl.zeros([BM, BN], tl.float32)
    if IS_ADDED:
        b_out = tl.load(p_out + o_out, mask=m_out, other=0.0)  # [BM, BN]
    b_out = multiplied(
        b_out, p_x + i_row * FACTORS, p_norm, p_weight + i_column * FACTORS, m_row[:, None], m_column[:, None],
        FACTORS, BM, BN, BK, PARTS, LENGTH, INTERPRETED, WITH_NORM, EPS,
    )  # fmt: skip
    if WITH_GELU:
        b_out = 0.5 * b_out * (1.0 + tl.erf(b_out * SQRT_HALF))
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_out)


def normed(x: Tensor, norm: Norm, tile: Tile, dtype: torch.dtype) -> tuple[Tensor, Norm | None]:
    """Prepare the rows `[B, in]` for a product with the given tile. If there are many rows, apply the norm. Return the
    rows, and the norm that the product kernel must apply, which is None if it is already applied."""
    if not tile.is_of_many:
        return x, norm
    out = torch.empty_like(x, dtype=torch.float32 if tile.INTERPRETED else dtype)
    with torch.cuda.device_of(x):
        normed_kernel[(blocks_of(len(x), FEW_ROWS),)](
            x, norm.weight, out, len(x), FACTORS=tile.FACTORS, BM=FEW_ROWS, EPS=norm.eps, num_warps=WARPS,
        )  # fmt: skip
    return out, None


def _launch(
    x: Tensor, weight: Tensor, out: Tensor, norm: Norm | None, *, with_gelu: bool = False, is_added: bool = False
) -> None:
    tile = Tile.of(weight, len(x))
    if norm is not None:
        x, norm = normed(x, norm, tile, weight.dtype)
    with torch.cuda.device_of(x):
        product_kernel[tile.grid(len(x))](
            x, x if norm is None else norm.weight, weight, out, len(x), **tile._asdict(),
            WITH_NORM=norm is not None, EPS=0.0 if norm is None else norm.eps,
            WITH_GELU=with_gelu, IS_ADDED=is_added, num_warps=tile.warps, num_stages=STAGES,
        )  # fmt: skip


def product(x: Tensor, weight: Tensor, norm: Norm | None = None, *, with_gelu: bool = False) -> Tensor:
    """Multiply x or its norm by weightᵀ.

    Args:
        x: Rows, `[B, in]`.
        weight: Matrix, `[out, in]`.
        norm: Normalisation of the rows. If None, they are not normalised.
        with_gelu: Whether to return the GELU of the product.

    Returns:
        The product `[B, out]` in float32, or its GELU in the dtype of the weight.
    """
    dtype = weight.dtype if with_gelu else torch.float32
    out = x.new_empty((len(x), len(weight)), dtype=dtype)
    _launch(x, weight, out, norm, with_gelu=with_gelu)
    return out


def add_product(total: Tensor, x: Tensor, weight: Tensor) -> None:
    """Compute `total += x weightᵀ`, with total `[B, out]` float32 and x `[B, in]`."""
    _launch(x, weight, total, None, is_added=True)
