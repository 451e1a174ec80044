"""Pieces of prompts at one number of tokens and streams: fixed places for what goes in and what comes out, in a CUDA
graph.

A piece is some fifty launches a model, which Python takes milliseconds for; most pieces take the device less. What
a piece leaves are keys and values, or slots, and whether they are finite: its outputs nobody asks for. One at a time,
and none beside a step, whose memory it works in: the caller holds a lock.
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
from rfa.model.ragged_layout import PagedTokens, Ragged, SlotTokens, lay_for_slots, lay_on_pages
from rfa.runtime.batching import BatchSizes
from rfa.runtime.gpu.graph import GraphRoom
from rfa.runtime.gpu.pages import PagePool
from rfa.runtime.gpu.pool import DevicePool, Rows

# Tokens of the shortest graph; the others are longer by powers of two.
LEAST_TOKENS = 64
Runner = TypeVar("Runner")


class PromptRunners(Generic[Runner]):
    """Runners of prompts: for one stream or many, and for tokens in powers of two.

    Args:
        make: one, for so many tokens and streams.
        tokens, streams: at most.
    """

    def __init__(self, make: Callable[[int, int], Runner], tokens: int, streams: int) -> None:
        powers = range(LEAST_TOKENS.bit_length() - 1, tokens.bit_length())
        self._tokens = BatchSizes(sorted({*(1 << power for power in powers), tokens}))
        self._streams = BatchSizes(sorted({1, streams}))
        # The largest first: the others work in its memory.
        sizes = [(count, rows) for count in reversed(self._tokens.sizes) for rows in reversed(self._streams.sizes)]
        self._made = {size: make(*size) for size in sizes}

    def of(self, ragged: Ragged) -> Runner:
        """The one for these tokens."""
        return self._made[self._tokens.padded(len(ragged.tokens)), self._streams.padded(len(ragged.counts))]


class PagedPromptRunner:
    """Pieces of up to `streams` attention streams, of `tokens` tokens together at most.

    Args:
        ragged: the model, which the kernels run.
        pool: of the pages.
        longest: pages of a stream at most.
        room: to capture the graph in; None captures none, and launches one by one.
    """

    def __init__(
        self, ragged: RaggedDecoder, pool: PagePool, tokens: int, streams: int, longest: int, room: GraphRoom | None
    ) -> None:
        self._ragged, self._pool = ragged, pool
        device, keys = pool.keys.device, longest * PAGE_KEYS
        self._given = Packed(PagedTokens.fields(tokens, streams, longest), device)
        self._found = Packed({"broken": (torch.int32, (streams,))}, device)
        self._laid = PagedTokens.of(self._given.tensors, streams * keys, keys, tokens)
        self._graph: torch.cuda.CUDAGraph | None = None
        if room is not None:
            # The graph reads them where they are.
            self._tables = ragged.tables(keys)
            self._lay(Ragged.of([], [], device), [])
            self._graph, _ = room.capture(self._compute)

    def read(self, ragged: Ragged, pages: Sequence[NDArray[np.int32]]) -> NDArray[np.bool_]:
        """Write the keys and values of the tokens; whether those of each stream are finite."""
        self._lay(ragged, pages)
        self._compute() if self._graph is None else self._graph.replay()
        self._found.fetch()
        return self._found.arrays["broken"][: len(pages)] == 0

    def _lay(self, ragged: Ragged, pages: Sequence[NDArray[np.int32]]) -> None:
        lay_on_pages(ragged, pages, self._pool.scratch_page, self._given.arrays)
        self._given.send()

    @torch.no_grad()
    def _compute(self) -> None:
        broken = self._ragged.keep_laid(self._laid, *self._pool.rows)
        torch.amax(broken, (0, 2), out=self._found.tensors["broken"])


class SlotPromptRunner:
    """Pieces of up to `streams` recurrent streams, of `tokens` tokens together at most; arguments as above.

    Args:
        pool: has at least `streams` rows for padding.
    """

    def __init__(
        self, ragged: RaggedDecoder, pool: DevicePool, tokens: int, streams: int, room: GraphRoom | None
    ) -> None:
        self._ragged, self._pool, self._tokens = ragged, pool, tokens
        device = pool.slots.means.device
        rows = dict.fromkeys(("sources", "targets"), (torch.int64, (streams,)))
        self._given = Packed({**SlotTokens.fields(tokens, streams), **rows}, device)
        self._found = Packed({"finite": (torch.bool, (2, streams))}, device)
        self._laid = SlotTokens.of(self._given.tensors, tokens)
        self._graph: torch.cuda.CUDAGraph | None = None
        if room is not None:
            nobody = np.empty(0, np.int64)
            self._lay(Ragged.of([], [], device), nobody, nobody)
            self._graph, _ = room.capture(self._compute)

    def read(self, ragged: Ragged, sources: Rows, targets: Rows) -> NDArray[np.bool_]:
        """Read slots of rows of the pool and write to others; whether those of each stream are finite."""
        self._lay(ragged, sources, targets)
        self._compute() if self._graph is None else self._graph.replay()
        self._found.fetch()
        of_means, of_precisions = self._found.arrays["finite"][:, : len(sources)]
        return np.logical_and(of_means, of_precisions)

    def _lay(self, ragged: Ragged, sources: Rows, targets: Rows) -> None:
        given, count = self._given.arrays, len(sources)
        lay_for_slots(ragged, self._tokens, given)
        given["sources"][:count], given["sources"][count:] = sources, self._pool.initial_row
        given["targets"][:count] = targets
        given["targets"][count:] = self._pool.padding_rows[: len(given["targets"]) - count]
        self._given.send()

    @torch.no_grad()
    def _compute(self) -> None:
        slots, given = self._pool.slots, self._given.tensors
        after = self._ragged.scan_laid(self._laid, *(part[:, given["sources"]] for part in slots))
        for part, new, finite in zip(slots, after, self._found.tensors["finite"], strict=True):
            part.index_copy_(1, given["targets"], new)
            torch.all(new.isfinite().transpose(0, 1).flatten(1), 1, out=finite)
