"""Process chunks of prompts in a CUDA graph with static buffers, for one number of tokens and streams.

A chunk needs about fifty launches, which take Python several milliseconds, usually longer than the device needs. The
results are keys and values or memory slots, and whether they are finite. Graphs use the same memory as those of steps,
so the caller must hold a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rfa.model.attention.pages import PAGE_KEYS
from rfa.model.packed import Packed
from rfa.model.ragged import RaggedDecoder
from rfa.model.ragged_layout import PagedTokens, Ragged, SlotTokens, pack_for_pages, pack_for_slots
from rfa.runtime.batching import BatchSizes
from rfa.runtime.gpu.graph import GraphMemory
from rfa.runtime.gpu.pages import PagePool
from rfa.runtime.gpu.pool import DevicePool, Rows

# Number of tokens of the smallest graph. Each larger graph doubles it.
LEAST_TOKENS = 64
Runner = TypeVar("Runner")


class PromptRunners(Generic[Runner]):
    """Runners for prompts, one per combination of a number of streams (1 or `streams`) and a number of tokens (powers
    of two, and `tokens`).

    Args:
        make: Function that creates a runner for a number of tokens and streams.
        tokens, streams: Maximum numbers of tokens and streams.
    """

    def __init__(self, make: Callable[[int, int], Runner], tokens: int, streams: int) -> None:
        powers = range(LEAST_TOKENS.bit_length() - 1, tokens.bit_length())
        self._tokens = BatchSizes(sorted({*(1 << power for power in powers), tokens}))
        self._streams = BatchSizes(sorted({1, streams}))
        # The largest is created first, because the others share its memory.
        sizes = [(count, rows) for count in reversed(self._tokens.sizes) for rows in reversed(self._streams.sizes)]
        self._runners = {size: make(*size) for size in sizes}

    def of(self, ragged: Ragged) -> Runner:
        """Return the smallest runner that has enough rows for the tokens and streams."""
        return self._runners[self._tokens.padded(len(ragged.tokens)), self._streams.padded(len(ragged.counts))]


class PagedPromptRunner:
    """Processes chunks of the prompts of attention streams.

    Args:
        ragged: The model, which the kernels must support.
        pool: Pool of the pages.
        tokens: Maximum number of tokens of all streams in total.
        streams: Maximum number of streams.
        longest: Maximum number of pages per stream.
        memory: Memory of CUDA graphs. If None, no graph is captured.
    """

    def __init__(
        self, ragged: RaggedDecoder, pool: PagePool, tokens: int, streams: int, longest: int, memory: GraphMemory | None
    ) -> None:
        self._ragged, self._pool = ragged, pool
        device, keys = pool.keys.device, longest * PAGE_KEYS
        self._inputs = Packed(PagedTokens.fields(tokens, streams, longest), device)
        self._outputs = Packed({"broken": (torch.int32, (streams,))}, device)
        self._layout = PagedTokens.of(self._inputs.tensors, streams * keys, keys, tokens)
        self._graph: torch.cuda.CUDAGraph | None = None
        if memory is not None:
            # The tables are kept alive, because the graph reads them.
            self._tables = ragged.tables(keys)
            self._set_inputs(Ragged.of([], [], device), [])
            self._graph, _ = memory.capture(self._compute)

    def read(self, ragged: Ragged, pages: Sequence[NDArray[np.int32]]) -> NDArray[np.bool_]:
        """Write the keys and values of the tokens to the pages. Return whether those of each stream are finite."""
        self._set_inputs(ragged, pages)
        self._compute() if self._graph is None else self._graph.replay()
        self._outputs.fetch()
        return self._outputs.arrays["broken"][: len(pages)] == 0

    def _set_inputs(self, ragged: Ragged, pages: Sequence[NDArray[np.int32]]) -> None:
        pack_for_pages(ragged, pages, self._pool.scratch_page, self._inputs.arrays)
        self._inputs.send()

    @torch.no_grad()
    def _compute(self) -> None:
        broken = self._ragged.write_batch(self._layout, *self._pool.rows)
        torch.amax(broken, (0, 2), out=self._outputs.tensors["broken"])


class SlotPromptRunner:
    """Processes chunks of the prompts of recurrent streams.

    Args:
        ragged: The model, which the kernels must support.
        pool: Pool with at least `streams` padding rows.
        tokens: Maximum number of tokens of all streams in total.
        streams: Maximum number of streams.
        memory: Memory of CUDA graphs. If None, no graph is captured.
    """

    def __init__(
        self, ragged: RaggedDecoder, pool: DevicePool, tokens: int, streams: int, memory: GraphMemory | None
    ) -> None:
        self._ragged, self._pool, self._tokens = ragged, pool, tokens
        device = pool.slots.means.device
        rows = dict.fromkeys(("sources", "targets"), (torch.int64, (streams,)))
        self._inputs = Packed({**SlotTokens.fields(tokens, streams), **rows}, device)
        self._outputs = Packed({"finite": (torch.bool, (2, streams))}, device)
        self._layout = SlotTokens.of(self._inputs.tensors, tokens)
        self._graph: torch.cuda.CUDAGraph | None = None
        if memory is not None:
            nothing = np.empty(0, np.int64)
            self._set_inputs(Ragged.of([], [], device), nothing, nothing)
            self._graph, _ = memory.capture(self._compute)

    def read(self, ragged: Ragged, sources: Rows, targets: Rows) -> NDArray[np.bool_]:
        """Process chunks of prompts, and write the new states to the pool.

        Args:
            ragged: Tokens of the streams.
            sources: Rows of the pool that contain the states before the tokens.
            targets: Rows of the pool to which the states after the tokens are written.

        Returns:
            Whether the slots of each stream are finite.
        """
        self._set_inputs(ragged, sources, targets)
        self._compute() if self._graph is None else self._graph.replay()
        self._outputs.fetch()
        means, precisions = self._outputs.arrays["finite"][:, : len(sources)]
        return np.logical_and(means, precisions)

    def _set_inputs(self, ragged: Ragged, sources: Rows, targets: Rows) -> None:
        arrays, count = self._inputs.arrays, len(sources)
        pack_for_slots(ragged, self._tokens, arrays)
        arrays["sources"][:count], arrays["sources"][count:] = sources, self._pool.initial_row
        arrays["targets"][:count] = targets
        arrays["targets"][count:] = self._pool.padding_rows[: len(arrays["targets"]) - count]
        self._inputs.send()

    @torch.no_grad()
    def _compute(self) -> None:
        slots, tensors = self._pool.slots, self._inputs.tensors
        after = self._ragged.scan_batch(self._layout, *(part[:, tensors["sources"]] for part in slots))
        for part, new, finite in zip(slots, after, self._outputs.tensors["finite"], strict=True):
            part.index_copy_(1, tensors["targets"], new)
            torch.all(new.isfinite().transpose(0, 1).flatten(1), 1, out=finite)
