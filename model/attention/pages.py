"""Compute attention over the keys and values of many sequences, which are stored in pages of equal size.

The pages of a sequence may be anywhere in the pool, so a sequence can grow without moving other sequences. The fused
kernel looks up the page of each block of keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.attention.reference import AttentionResult
from rfa.runtime.text.config import Kernel

# Number of keys per page. It is a multiple of every block size in the launch table.
PAGE_KEYS = 64
# Smallest number of keys for which a table of distances is computed.
LEAST_DISTANCES = 1024


class KeyPages(NamedTuple):
    """Pages that store the keys of packed sequences.

    Attributes:
        table: Page numbers of each sequence in order, `[S, most pages]` int32. Entries after the last page of a
            sequence are not used.
        n_keys: Upper bound on the number of keys of all sequences.
        longest: Upper bound on the number of keys of one sequence.
    """

    table: Tensor
    n_keys: int
    longest: int


class Pieces(NamedTuple):
    """Next tokens of S packed sequences, and the number of keys of each sequence.

    Attributes:
        query_starts, key_starts: Cumulative counts `[S + 1]`, int32, on the device.
        pages: Pages of all keys, including those of the new tokens.
        longest: Upper bound on the number of new tokens of one sequence.
    """

    query_starts: Tensor
    key_starts: Tensor
    pages: KeyPages
    longest: int


class PagedHeads:
    """Parameters of the heads of a trained layer, with the tables over lags that the fused kernel uses.

    Args:
        heads: Parameters of the heads, `[H, 6]` float32 (`triton.stack_heads`).
        width: Number of real dimensions per head.
        dtype: Dtype of queries, keys and values.
        kernel: "student_t" or "gaussian".
        with_precision: Whether to compute the precision.

    Attributes:
        parameters: The argument `heads`.
    """

    def __init__(self, heads: Tensor, width: int, dtype: torch.dtype, kernel: Kernel, *, with_precision: bool) -> None:
        self.parameters, self.kernel, self.with_precision = heads, kernel, with_precision
        self._width, self._dtype = width, dtype
        # One attribute stores both the number of keys and the table, so concurrent prompts read a consistent pair.
        self._table: tuple[int, tuple[Tensor, ...]] = 0, ()

    def distances(self, longest: int) -> tuple[Tensor, ...]:
        """Return `triton_distant.Distances` for at least `longest` keys, or an empty tuple if the kernel does not use
        them."""
        if self.kernel == "gaussian" or self._dtype == torch.float32:
            return ()
        count, table = self._table
        if longest > count:
            from rfa.model.attention.triton_distant import distances

            # The sizes are powers of two, so that the table of a growing text is rarely computed again.
            count = max(LEAST_DISTANCES, 1 << (longest - 1).bit_length())
            with torch.cuda.device_of(self.parameters):
                table = distances(self.parameters, self._width, self._dtype, count, with_precision=self.with_precision)
            self._table = count, table
        return table


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, heads: PagedHeads, pieces: Pieces) -> AttentionResult:
    """Compute attention of rotated queries over paged keys with the fused kernel. Gradients are not supported.

    Args:
        q: Queries `[T, H, 2D]` of all sequences.
        keys, values: Pools `[pages · PAGE_KEYS, H, 2D]` in the dtype of q.
        heads: Parameters of the heads.
        pieces: New tokens and pages of each sequence.

    Returns:
        out `[T, H, 2D]`, log_norm and precision `[T, H]`, float32. precision is `[0]` without `with_precision`.
    """
    # Calling the torch operator would take longer on the host than the launches.
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
    """Return the rows of the pool that store the given tokens of a sequence.

    Args:
        pages: Page numbers of the sequence, in order.
        index: Indices of the tokens in the sequence.
    """
    return pages[index // PAGE_KEYS].long() * PAGE_KEYS + index % PAGE_KEYS
