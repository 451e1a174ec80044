"""Divide sequences into blocks, for the forward and backward kernels.

A batch contains one sequence per row or, if it is packed, several sequences in one row that begin at `starts`. A block
never contains tokens of two sequences.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from rfa.model.placement import is_simulated

# Length-dependent arguments that Triton must not specialise. Otherwise, prompts whose length is 1 or a multiple of 16
# would compile new variants while requests wait.
LENGTHS = [
    "n_queries", "n_keys", "n_blocks", "n_query_blocks", "n_key_blocks", "n_distances",
    "stride_stamps", "stride_query_stamps", "stride_key_stamps", "stride_pages",
]  # fmt: skip


@triton.jit
def sequence(p_starts, i_sequence, length, IS_PACKED: tl.constexpr):
    """Return the batch row of a sequence, its first token in that row, and its number of tokens."""
    if IS_PACKED:
        first = tl.load(p_starts + i_sequence)
        return tl.cast(0, tl.int64), first.to(tl.int64), tl.load(p_starts + i_sequence + 1) - first
    else:
        return i_sequence.to(tl.int64), tl.cast(0, tl.int64), length


@triton.jit
def spans(p_query_starts, p_key_starts, n_queries, n_keys, IS_PACKED: tl.constexpr):
    """Return the batch row of the sequence of a program, its first query and number of queries, and its first key and
    number of keys."""
    i_sequence = tl.program_id(2)
    i_batch, first_query, n_own = sequence(p_query_starts, i_sequence, n_queries, IS_PACKED)
    _, first_key, length = sequence(p_key_starts, i_sequence, n_keys, IS_PACKED)
    return i_batch, first_query, n_own, first_key, length


@triton.jit
def first_block(first, i_sequence, length, BLOCK: tl.constexpr, IS_PACKED: tl.constexpr):
    """Return the index of the first block of a sequence among the blocks of all sequences."""
    if IS_PACKED:
        return first // BLOCK + i_sequence
    else:
        return i_sequence.to(tl.int64) * tl.cdiv(length, BLOCK)


@triton.jit
def block_place(p_pages, i_block, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """Return the row of the first key of a block. In a paged cache, the row is in the page that contains the block.

    p_pages: Pages of the sequence, in order. PAGE: Number of keys per page, which is a multiple of BLOCK. It is 0 if
    the keys are not paged.
    """
    first = tl.cast(i_block, tl.int64) * BLOCK
    if PAGE == 0:
        return first
    else:
        return tl.load(p_pages + first // PAGE).to(tl.int64) * PAGE + first % PAGE


@triton.jit
def elapsed(hi, lo, earlier_hi, earlier_lo):
    """Return the time between two stamps hi + lo, which is at least 0."""
    return tl.maximum((hi - earlier_hi) + (lo - earlier_lo), 0.0)


def is_interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter, which supports neither inline PTX nor bfloat16 products."""
    return not isinstance(sequence, triton.JITFunction) and not is_simulated()


def blocks_of(n_tokens: int, block: int) -> int:
    """Return the number of blocks for a number of tokens. `triton.cdiv` is ten times slower."""
    return -(-n_tokens // block)


def all_blocks(n_tokens: int, sequences: int, block: int, is_packed: bool) -> int:
    """Return the number of blocks of all sequences. If sequences are packed, each may need one more block, because no
    block contains tokens of two sequences."""
    return n_tokens // block + sequences if is_packed else sequences * blocks_of(n_tokens, block)


def last_contiguous(x: Tensor) -> Tensor:
    """Return x with a contiguous last dimension."""
    return x if x.stride(-1) == 1 else x.contiguous()


def batch_stride(stamps: Tensor | None) -> int:
    """Return the stride between the stamps of two batch rows, or 0 if all rows have the same stamps."""
    return 0 if stamps is None or stamps.shape[0] == 1 else stamps.stride(0)
