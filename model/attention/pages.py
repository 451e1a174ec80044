"""Keys and values of many sequences in pages of one size, and attention over them: the serving form of the cache.

A sequence holds as many pages as its tokens need, anywhere in the pool, and its next tokens go behind the last one
without moving any. The fused kernel reads the keys where they lie, and looks up the page of each block.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rfa.model.attention.reference import AttentionResult
from rfa.model.config import Kernel

# Keys of a page: a multiple of every block of the launch table.
PAGE_KEYS = 64


class KeyPages(NamedTuple):
    """Where the keys of packed sequences lie.

    Attributes:
        table: `[S, most pages]` int32, the pages of each sequence in order; what follows its last page is not read.
        n_keys: of all sequences together.
        longest: most keys of one.
    """

    table: Tensor
    n_keys: int
    longest: int


class Pieces(NamedTuple):
    """The next tokens of S sequences, one sequence behind the other, and how many keys each has with them.

    Attributes:
        query_starts, key_starts: `[S + 1]` int32 on the device, from 0.
        pages: of all keys, those of the tokens themselves, the last ones of each sequence, among them.
        longest: most tokens of a sequence.
    """

    query_starts: Tensor
    key_starts: Tensor
    pages: KeyPages
    longest: int


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, heads: Tensor, pieces: Pieces, kernel: Kernel, *, with_precision: bool
) -> AttentionResult:
    """RFA of the rotated queries of many sequences, each over the pages of its own, by the fused kernel.

    Args:
        q: `[T, H, 2D]`, T of all pieces.
        keys, values: `[pages · PAGE_KEYS, H, 2D]` in the dtype of q.
        heads: `[H, 6]` float32 (`triton.stack_heads`).
        with_precision: False leaves the evidence out.

    Returns:
        out `[T, H, 2D]`, log_norm and precision `[T, H]`, float32; precision `[0]` where it is left out.
    """
    from rfa.model.attention.triton import paged_attention_op

    found = paged_attention_op(
        q, keys, values, heads, pieces.query_starts, pieces.key_starts, *pieces.pages, pieces.longest,
        kernel == "gaussian", with_precision,
    )  # fmt: skip
    return AttentionResult(*found)


def places_of(pages: Tensor, index: Tensor) -> Tensor:
    """Rows of the pool that these tokens of a sequence have."""
    return pages[index // PAGE_KEYS].long() * PAGE_KEYS + index % PAGE_KEYS
