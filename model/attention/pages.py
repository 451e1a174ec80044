"""Paged attention: keys and values of many sequences in pages of one size, as serving keeps them.

The pages of a sequence may be anywhere in the pool, so its next tokens are appended without moving the others. The
fused kernel looks up the page of each block of keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.attention.reference import AttentionResult
from rfa.runtime.text.config import Kernel

# Keys of a page: a multiple of every block of the launch table.
PAGE_KEYS = 64
# Keys for which the table of distances is made at least.
LEAST_DISTANCES = 1024


class KeyPages(NamedTuple):
    """Pages of the keys of packed sequences.

    Attributes:
        table: `[S, most pages]` int32, the pages of each sequence in order; entries after its last page are not read.
        n_keys: of all sequences together, or more.
        longest: most keys of one, or more.
    """

    table: Tensor
    n_keys: int
    longest: int


class Pieces(NamedTuple):
    """The next tokens of S packed sequences, and their numbers of keys.

    Attributes:
        query_starts, key_starts: `[S + 1]` int32 on the device, from 0.
        pages: of all keys, including those of the tokens.
        longest: most tokens of a sequence, or more.
    """

    query_starts: Tensor
    key_starts: Tensor
    pages: KeyPages
    longest: int


class PagedHeads:
    """The heads of a trained layer, with the tables over lags that depend on their dynamics alone.

    Args:
        heads: `[H, 6]` float32 (`triton.stack_heads`).
        width: reals of a head.
        dtype: of queries, keys and values.
        with_precision: whether precision is computed.

    Attributes:
        parameters: `heads`.
    """

    def __init__(self, heads: Tensor, width: int, dtype: torch.dtype, kernel: Kernel, *, with_precision: bool) -> None:
        self.parameters, self.kernel, self.with_precision = heads, kernel, with_precision
        self._width, self._dtype = width, dtype
        # Number of keys and table in one attribute: two prompts may read them at once.
        self._table: tuple[int, tuple[Tensor, ...]] = 0, ()

    def distances(self, longest: int) -> tuple[Tensor, ...]:
        """`triton_distant.Distances` for at least `longest` keys; empty if the kernel uses no table."""
        if self.kernel == "gaussian" or self._dtype == torch.float32:
            return ()
        count, table = self._table
        if longest > count:
            from rfa.model.attention.triton_distant import distances

            # A power of two, so that a growing text computes few tables.
            count = max(LEAST_DISTANCES, 1 << (longest - 1).bit_length())
            with torch.cuda.device_of(self.parameters):
                table = distances(self.parameters, self._width, self._dtype, count, with_precision=self.with_precision)
            self._table = count, table
        return table


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, heads: PagedHeads, pieces: Pieces) -> AttentionResult:
    """RFA of the rotated queries of many sequences over their pages, by the fused kernel; no gradient.

    Args:
        q: `[T, H, 2D]`, the tokens of all sequences.
        keys, values: `[pages · PAGE_KEYS, H, 2D]` in the dtype of q.

    Returns:
        out `[T, H, 2D]`, log_norm and precision `[T, H]`, float32; precision `[0]` without `with_precision`.
    """
    # Not an operator of torch: calling one takes the host longer than the launches.
    from rfa.model.attention.call import AttentionCall
    from rfa.model.attention.triton_distant import Distances
    from rfa.model.attention.triton_forward import forward

    table = heads.distances(pieces.pages.longest)
    call = AttentionCall(
        q[None], keys[None], values[None], heads.parameters, query_starts=pieces.query_starts,
        key_starts=pieces.key_starts, longest=pieces.longest, is_gaussian=heads.kernel == "gaussian",
        with_precision=heads.with_precision,
    )  # fmt: skip
    with torch.cuda.device_of(q):
        out, log_norm, precision = forward(
            call, pages=pieces.pages, out_dtype=torch.float32, table=Distances(*table) if table else None
        )
    return AttentionResult(out[0], log_norm[0], precision[0] if heads.with_precision else precision)


def places_of(pages: Tensor, index: Tensor) -> Tensor:
    """Rows of the pool for tokens `index` of a sequence with these pages."""
    return pages[index // PAGE_KEYS].long() * PAGE_KEYS + index % PAGE_KEYS
