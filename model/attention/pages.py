"""Keys and values of many sequences in pages of one size, and attention over them: the serving form of the cache.

A sequence holds as many pages as its tokens need, anywhere in the pool, and its next tokens go behind the last one
without moving any. The fused kernel reads the keys where they lie, and looks up the page of each block.
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
    """Where the keys of packed sequences lie.

    Attributes:
        table: `[S, most pages]` int32, the pages of each sequence in order; what follows its last page is not read.
        n_keys: of all sequences together, or more.
        longest: most keys of one, or more.
    """

    table: Tensor
    n_keys: int
    longest: int


class Pieces(NamedTuple):
    """The next tokens of S sequences, one sequence behind the other, and how many keys each has with them.

    Attributes:
        query_starts, key_starts: `[S + 1]` int32 on the device, from 0.
        pages: of all keys, those of the tokens themselves, the last ones of each sequence, among them.
        longest: most tokens of a sequence, or more.
    """

    query_starts: Tensor
    key_starts: Tensor
    pages: KeyPages
    longest: int


class PagedHeads:
    """The heads of a layer whose dynamics do not change any more, and what lags tell of them, worked out once.

    Args:
        heads: `[H, 6]` float32 (`triton.stack_heads`).
        width: reals of a head.
        dtype: of queries, keys and values.
        with_precision: whether the evidence is wanted.

    Attributes:
        parameters: `heads`.
    """

    def __init__(self, heads: Tensor, width: int, dtype: torch.dtype, kernel: Kernel, *, with_precision: bool) -> None:
        self.parameters, self.kernel, self.with_precision = heads, kernel, with_precision
        self._width, self._dtype = width, dtype
        # For how many keys, and what: together, for two prompts may ask at once.
        self._held: tuple[int, tuple[Tensor, ...]] = 0, ()

    def distances(self, longest: int) -> tuple[Tensor, ...]:
        """What `triton_forward.distances` gives, for at least as many keys; nothing where the kernel has no table."""
        if self.kernel == "gaussian" or self._dtype == torch.float32:
            return ()
        count, held = self._held
        if longest > count:
            from rfa.model.attention.triton_forward import distances

            # Of a power of two: a text that grows asks for it a dozen times.
            count = max(LEAST_DISTANCES, 1 << (longest - 1).bit_length())
            with torch.cuda.device_of(self.parameters):
                held = distances(self.parameters, self._width, self._dtype, count, with_precision=self.with_precision)
            self._held = count, held
        return held


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, heads: PagedHeads, pieces: Pieces) -> AttentionResult:
    """RFA of the rotated queries of many sequences, each over the pages of its own, by the fused kernel.

    Args:
        q: `[T, H, 2D]`, T of all pieces.
        keys, values: `[pages · PAGE_KEYS, H, 2D]` in the dtype of q.

    Returns:
        out `[T, H, 2D]`, log_norm and precision `[T, H]`, float32; precision `[0]` where it is left out. It has no
        gradient, and is no operator of torch: one costs the host more than the launches do.
    """
    from rfa.model.attention.triton_forward import Distances, forward

    held = heads.distances(pieces.pages.longest)
    with torch.cuda.device_of(q):
        out, log_norm, precision = forward(
            q[None], keys[None], values[None], heads.parameters, None, None, pieces.query_starts, pieces.key_starts,
            pieces.longest, heads.kernel == "gaussian", heads.with_precision, pages=pieces.pages,
            out_dtype=torch.float32, held=Distances(*held) if held else None,
        )  # fmt: skip
    return AttentionResult(out[0], log_norm[0], precision[0] if heads.with_precision else precision)


def places_of(pages: Tensor, index: Tensor) -> Tensor:
    """Rows of the pool that these tokens of a sequence have."""
    return pages[index // PAGE_KEYS].long() * PAGE_KEYS + index % PAGE_KEYS
