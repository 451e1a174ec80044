"""How the kernels of attention cut sequences into blocks: places of sequences, blocks and instants; for both passes.

A batch holds one sequence a row, or, packed, several in one row, one behind the other, that begin at `starts`. Each is
cut into blocks of its own, every one whole, so a packed sequence may take one block more than its length asks for.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from rfa.model.placement import is_stood_in_for

# Those numbers of the kernels that follow from the lengths of a batch. Of others Triton makes a variant each where they
# are 1, divisible by 16 or neither: seconds of compiling for which the first prompt of such a length would wait.
LENGTHS = [
    "n_queries", "n_keys", "n_blocks", "n_query_blocks", "n_key_blocks", "n_distances",
    "stride_stamps", "stride_query_stamps", "stride_key_stamps", "stride_pages",
]  # fmt: skip


@triton.jit
def sequence(p_starts, i_sequence, length, IS_PACKED: tl.constexpr):
    """Batch row, first token in it and number of tokens of a sequence: a stretch of row 0 if packed, else a row."""
    if IS_PACKED:
        first = tl.load(p_starts + i_sequence)
        return tl.cast(0, tl.int64), first.to(tl.int64), tl.load(p_starts + i_sequence + 1) - first
    else:
        return i_sequence.to(tl.int64), tl.cast(0, tl.int64), length


@triton.jit
def first_block(first, i_sequence, length, BLOCK: tl.constexpr, IS_PACKED: tl.constexpr):
    """Index of a sequence's first block of tokens among those of all sequences."""
    if IS_PACKED:
        return first // BLOCK + i_sequence
    else:
        return i_sequence.to(tl.int64) * tl.cdiv(length, BLOCK)


@triton.jit
def block_place(p_pages, i_block, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """Where the first key of a block lies: behind the blocks before it, or, of a paged cache, in the block's page.

    p_pages: the pages of the sequence, in order; PAGE, a multiple of BLOCK, is how many keys one holds, 0 for none.
    """
    first = tl.cast(i_block, tl.int64) * BLOCK
    if PAGE == 0:
        return first
    else:
        return tl.load(p_pages + first // PAGE).to(tl.int64) * PAGE + first % PAGE


@triton.jit
def elapsed(hi, lo, earlier_hi, earlier_lo):
    """Time between two stamps of the form hi + lo, >= 0."""
    return tl.maximum((hi - earlier_hi) + (lo - earlier_lo), 0.0)


def is_interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, which knows neither inline PTX nor products of bfloat16."""
    return not isinstance(sequence, triton.JITFunction) and not is_stood_in_for()


def blocks_of(n_tokens: int, block: int) -> int:
    """Blocks for so many tokens; `triton.cdiv` takes the host ten times as long."""
    return -(-n_tokens // block)


def all_blocks(n_tokens: int, sequences: int, block: int, is_packed: bool) -> int:
    """Blocks for the tokens of all sequences; a packed one may begin anywhere in a block, so each has one more."""
    return n_tokens // block + sequences if is_packed else sequences * blocks_of(n_tokens, block)


def last_contiguous(x: Tensor) -> Tensor:
    """The same values, the last dim contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def batch_stride(stamps: Tensor | None) -> int:
    """Elements between the stamps of two batch rows; 0 where all share them."""
    return 0 if stamps is None or stamps.shape[0] == 1 else stamps.stride(0)
