"""The decode step of attention streams at one batch size: fixed places for what goes in and what comes out, and on a
GPU one CUDA graph.

It serves texts of any length: the tables of pages are as wide as the longest one's, the kernels learn from a tensor how
many keys a stream has, and rows that are padding have one, in a page that nobody else reads. One step at a time: the
caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rfa.model.attention.pages import LEAST_DISTANCES, PAGE_KEYS
from rfa.model.language import StepOutput
from rfa.model.packed import Packed
from rfa.model.ragged import RaggedDecoder
from rfa.model.ragged_layout import PagedTokens, Ragged, lay_on_pages
from rfa.runtime.gpu.draw import TokenDraw
from rfa.runtime.gpu.graph import GraphRoom
from rfa.runtime.gpu.pages import PagedContext, PagePool
from rfa.runtime.text.sampling import DrawnToken, Draws

Array = NDArray[np.float32]
# Of a key and head, in a step: what it brings to the queries behind it; and held by a layer: what its distance tells.
COLUMN_BYTES, DISTANCE_BYTES = 16, 32


class PagedStepRunner:
    """Steps of `size` attention streams, of which some may be padding.

    Args:
        ragged: the model; one that the kernels do not run takes `size` streams, one by one, and no graph.
        pool: of the pages.
        size: rows.
        longest: pages of a stream at most.
        vocabulary: tokens.
        room: to capture a CUDA graph in; None captures none.
    """

    def __init__(
        self, ragged: RaggedDecoder, pool: PagePool, size: int, longest: int, vocabulary: int, room: GraphRoom | None
    ) -> None:
        self._ragged, self._pool = ragged, pool
        device = pool.keys.device
        fields = PagedTokens.fields(size, size, longest)
        noise = torch.float32, (size, *pool.keys.shape[2:])
        self._given = Packed({**fields, "noise": noise, **TokenDraw.given_fields(size)}, device)
        self._draw = TokenDraw(size, vocabulary, self._given, device)
        self._laid = PagedTokens.of(self._given.tensors, size * longest * PAGE_KEYS, longest * PAGE_KEYS, 1)
        # By whether rows are filtered.
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, StepOutput]] = {}
        if room is not None:
            # The graph reads them where they are, whatever prompts ask for later.
            self._tables = ragged.tables(longest * PAGE_KEYS)
            self._lay(Ragged.of([], [], device), [], np.empty((0, *noise[1][1:]), np.float32), Draws([], np.float32(1)))
            for is_filtered in (False, True):
                self._graphs[is_filtered] = room.capture(partial(self._compute, is_filtered=is_filtered))

    @staticmethod
    def bytes_needed(shape: tuple[int, int, int], size: int, longest: int) -> int:
        """Device memory of graphs for up to `size` rows, beside logits, and of what they read: of streams of `longest`
        tokens. shape: L, H, 2D."""
        layers, heads, _ = shape
        distances = max(LEAST_DISTANCES, 1 << (longest - 1).bit_length())
        return heads * (COLUMN_BYTES * size * (longest + PAGE_KEYS) + DISTANCE_BYTES * layers * distances)

    def draw(
        self, streams: Sequence[PagedContext], tokens: Sequence[int], noise: Array, draws: Draws
    ) -> tuple[list[DrawnToken], NDArray[np.bool_]]:
        """A token each of n <= size streams, which have room for it, and the choice of the next ones; and of every row
        whether its new keys and values are finite."""
        ragged = Ragged.of([[token] for token in tokens], [stream.position for stream in streams], self._device)
        pages = [stream.table() for stream in streams]
        self._lay(ragged, pages, noise, draws)
        if self._ragged.attention_refusal is not None:
            output, finite = self._ragged.extend_and_look(ragged, pages, *self._pool.rows, self._noise)
            self._draw.compute(output, finite, is_filtered=draws.are_filtered)
        elif not self._graphs:
            output = self._compute(is_filtered=draws.are_filtered)
        else:
            graph, output = self._graphs[draws.are_filtered]
            graph.replay()
        return self._draw.read(draws, output)

    @property
    def _device(self) -> torch.device:
        return self._pool.keys.device

    @property
    def _noise(self) -> Tensor:
        return self._given.tensors["noise"]

    def _lay(self, ragged: Ragged, pages: Sequence[NDArray[np.int32]], noise: Array, draws: Draws) -> None:
        """Give the device the inputs of n <= size rows, and padding for the others."""
        arrays, count = self._given.arrays, len(pages)
        lay_on_pages(ragged, pages, self._pool.scratch_page, arrays)
        arrays["noise"][:count], arrays["noise"][count:] = noise, 0
        self._draw.lay(draws)
        self._given.send()

    @torch.no_grad()
    def _compute(self, *, is_filtered: bool) -> StepOutput:
        """The step, and the choice of the next tokens."""
        output, is_finite = self._ragged.extend_laid(self._laid, *self._pool.rows, self._noise)
        self._draw.compute(output, is_finite, is_filtered=is_filtered)
        return output
