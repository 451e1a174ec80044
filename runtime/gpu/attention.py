"""Decoding step of attention streams for one batch size, with static buffers and, on a GPU, CUDA graphs.

It supports texts of any length. Page tables have the width of the longest text, and kernels read each stream's number
of keys from a tensor. Padding rows have one key, in a page that no stream uses. The caller must hold a lock during a
step.
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
from rfa.model.ragged_layout import PagedTokens, Ragged, pack_for_pages
from rfa.runtime.gpu.draw import TokenDraw
from rfa.runtime.gpu.graph import GraphMemory
from rfa.runtime.gpu.pages import PagedContext, PagePool
from rfa.runtime.text.sampling import DrawnToken, Draws

Array = NDArray[np.float32]
# Device memory in bytes per key and head in a step, and per distance and head in a layer.
COLUMN_BYTES, DISTANCE_BYTES = 16, 32


class PagedStepRunner:
    """Runs decoding steps for a batch of `size` attention streams. Unused rows are padding.

    Args:
        ragged: The model. If the kernels do not support it, streams are processed one by one and without a graph.
        pool: Pool of the pages.
        size: Number of rows.
        longest: Maximum number of pages per stream.
        vocabulary: Number of tokens in the vocabulary.
        memory: Memory of CUDA graphs. If None, no graph is captured.
    """

    def __init__(
        self,
        ragged: RaggedDecoder,
        pool: PagePool,
        size: int,
        longest: int,
        vocabulary: int,
        memory: GraphMemory | None,
    ) -> None:
        self._ragged, self._pool = ragged, pool
        device = pool.keys.device
        fields = PagedTokens.fields(size, size, longest)
        noise = torch.float32, (size, *pool.keys.shape[2:])
        self._inputs = Packed({**fields, "noise": noise, **TokenDraw.input_fields(size)}, device)
        self._draw = TokenDraw(size, vocabulary, self._inputs, device)
        self._layout = PagedTokens.of(self._inputs.tensors, size * longest * PAGE_KEYS, longest * PAGE_KEYS, 1)
        # The keys are values of `is_filtered`.
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, StepOutput]] = {}
        if memory is not None:
            # The tables are kept alive, because the graph reads them.
            self._tables = ragged.tables(longest * PAGE_KEYS)
            self._set_inputs(
                Ragged.of([], [], device), [], np.empty((0, *noise[1][1:]), np.float32), Draws([], np.float32(1))
            )
            for is_filtered in (False, True):
                self._graphs[is_filtered] = memory.capture(partial(self._compute, is_filtered=is_filtered))

    @staticmethod
    def bytes_needed(shape: tuple[int, int, int], size: int, longest: int) -> int:
        """Return the device memory in bytes that graphs need.

        Args:
            shape: Layers, heads, and real dimensions per head, (L, H, 2D).
            size: Number of rows.
            longest: Maximum number of tokens of a row.
        """
        layers, heads, _ = shape
        distances = max(LEAST_DISTANCES, 1 << (longest - 1).bit_length())
        return heads * (COLUMN_BYTES * size * (longest + PAGE_KEYS) + DISTANCE_BYTES * layers * distances)

    def draw(
        self, streams: Sequence[PagedContext], tokens: Sequence[int], noise: Array, draws: Draws
    ) -> tuple[list[DrawnToken], NDArray[np.bool_]]:
        """Process one token of each stream, and sample the next tokens.

        Args:
            streams: At most `size` streams, for which pages must be reserved.
            tokens: Token of each stream.
            noise: Noise for the latent samples, `[n, H, 2D]`.
            draws: Options of the sampling.

        Returns:
            The sampled tokens, and whether the new keys and values of each row are finite.
        """
        ragged = Ragged.of([[token] for token in tokens], [stream.position for stream in streams], self._device)
        pages = [stream.table() for stream in streams]
        self._set_inputs(ragged, pages, noise, draws)
        if self._ragged.attention_refusal is not None:
            output, finite = self._ragged.extend_and_check(ragged, pages, *self._pool.rows, self._noise)
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
        return self._inputs.tensors["noise"]

    def _set_inputs(self, ragged: Ragged, pages: Sequence[NDArray[np.int32]], noise: Array, draws: Draws) -> None:
        """Copy the inputs of n <= size rows to the device, and fill the other rows with padding."""
        arrays, count = self._inputs.arrays, len(pages)
        pack_for_pages(ragged, pages, self._pool.scratch_page, arrays)
        arrays["noise"][:count], arrays["noise"][count:] = noise, 0
        self._draw.set_inputs(draws)
        self._inputs.send()

    @torch.no_grad()
    def _compute(self, *, is_filtered: bool) -> StepOutput:
        """Run the step and sample the next tokens. Return the output of the step, which is on the device."""
        output, is_finite = self._ragged.extend_batch(self._layout, *self._pool.rows, self._noise)
        self._draw.compute(output, is_finite, is_filtered=is_filtered)
        return output
