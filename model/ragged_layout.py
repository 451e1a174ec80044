"""Arrange packed tokens of many streams on the host, so that one copy transfers them to a device.

A layout may include padding tokens and streams, for CUDA graphs of fixed size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rfa.model.attention.pages import PAGE_KEYS, KeyPages, Pieces
from rfa.model.packed import Fields

# Page indices of a stream, in order.
PageList = Sequence[int] | NDArray[np.int32]


@dataclass(frozen=True)
class Ragged:
    """Packed tokens of S streams on the host.

    Attributes:
        tokens, positions: Token ids and their positions, `[T]` int64.
        counts: Number of tokens of each stream, which is at least one.
        begins: Position of the first token of each stream.
        device: The target device.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    counts: list[int]
    begins: list[int]
    device: torch.device

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]], begins: Sequence[int], device: torch.device) -> Ragged:
        """Create an instance from the tokens of each stream and the positions of their first tokens."""
        counts = [len(piece) for piece in tokens]
        total = sum(counts)
        together = np.fromiter(chain.from_iterable(tokens), np.int64, total)
        places = [0, *accumulate(counts)][:-1]
        before = np.array(begins, np.int64) - np.array(places, np.int64)
        return cls(together, _repeated(before, counts) + np.arange(total), counts, list(begins), device)

    @property
    def totals(self) -> list[int]:
        """Number of keys of each stream, including those of the new tokens."""
        return [begin + count for begin, count in zip(self.begins, self.counts, strict=True)]


@dataclass(frozen=True)
class PagedTokens:
    """Packed tokens of S streams with paged keys, on their device, with padding.

    Attributes:
        tokens, positions: Token ids and their positions, `[T]` int64.
        places: Row of the pool that stores each token, `[T]` int64.
        streams: Index of the stream of each token, `[T]` int64. It is -1 for padding.
        last: Index of the last token of each stream, `[S]` int64.
        pieces: Tokens and keys of each stream, for `paged_attention`.
    """

    tokens: Tensor
    positions: Tensor
    places: Tensor
    streams: Tensor
    last: Tensor
    pieces: Pieces

    @staticmethod
    def fields(tokens: int, streams: int, pages: int) -> Fields:
        """Return a mapping from names to the type and shape of each array that is copied to the device. `pages` is the
        number of pages per stream."""
        by_token = dict.fromkeys(("tokens", "positions", "places", "streams"), (torch.int64, (tokens,)))
        starts = dict.fromkeys(("query_starts", "key_starts"), (torch.int32, (streams + 1,)))
        return {**by_token, "last": (torch.int64, (streams,)), **starts, "pages": (torch.int32, (streams, pages))}

    @classmethod
    def of(cls, given: Mapping[str, Tensor], n_keys: int, longest_keys: int, longest: int) -> PagedTokens:
        """Create an instance from arrays with the names, types and shapes that `fields` returns.

        Args:
            given: Mapping from names to arrays.
            n_keys: Upper bound on the number of keys of all streams.
            longest_keys: Upper bound on the number of keys of one stream.
            longest: Upper bound on the number of tokens of one stream.
        """
        pages = KeyPages(given["pages"], n_keys, longest_keys)
        pieces = Pieces(given["query_starts"], given["key_starts"], pages, longest)
        return cls(given["tokens"], given["positions"], given["places"], given["streams"], given["last"], pieces)


def pack_for_pages(ragged: Ragged, pages: Sequence[PageList], scratch: int, to: Mapping[str, NDArray[Any]]) -> None:
    """Fill the host arrays `to` with the fields of `PagedTokens`.

    The rest of the arrays is padding: streams of one token each, then tokens without a stream.

    Args:
        ragged: The tokens.
        pages: Page indices of each stream, in order, for all its keys.
        scratch: Index of the page for padding.
        to: Mapping from names to arrays.
    """
    tokens, streams = len(ragged.tokens), len(ragged.counts)
    more = _padding(len(to["tokens"]) - tokens, len(to["last"]) - streams)
    counts, table = ragged.counts + more, to["pages"]
    owned = sum(counts)
    table[streams:, 0] = scratch
    for row, (own, total) in enumerate(zip(pages, ragged.totals, strict=True)):
        held = -(-total // PAGE_KEYS)
        table[row, :held] = own[:held]
    for name, lengths in (("query_starts", counts), ("key_starts", ragged.totals + more)):
        to[name][0], to[name][1:] = 0, np.cumsum(lengths)
    for name, given in (("tokens", ragged.tokens), ("positions", ragged.positions)):
        to[name][:tokens], to[name][tokens:] = given, 0
    to["last"][:] = to["query_starts"][1:] - 1
    owners = _repeated(np.arange(len(counts)), counts)
    to["streams"][:owned], to["streams"][owned:] = owners, -1
    page, within = np.divmod(to["positions"][:owned], PAGE_KEYS)
    to["places"][:owned] = table[owners, page].astype(np.int64) * PAGE_KEYS + within
    to["places"][owned:] = scratch * PAGE_KEYS


@dataclass(frozen=True)
class SlotTokens:
    """Packed tokens of S streams for their slots, on their device, with padding.

    Attributes:
        tokens, positions: Token ids and their positions, `[T]` int64.
        rows: Index of each token in a flattened array `[S, longest]`, `[T]` int64.
        counts: Number of tokens of each stream, `[S]` int64.
        last: Index of the last token of each stream, `[S]` int64.
        longest: Upper bound on the number of tokens of a stream.
    """

    tokens: Tensor
    positions: Tensor
    rows: Tensor
    counts: Tensor
    last: Tensor
    longest: int

    @staticmethod
    def fields(tokens: int, streams: int) -> Fields:
        """Return a mapping from names to the type and shape of each array that is copied to the device, for a number of
        tokens and streams."""
        by_token = dict.fromkeys(("tokens", "positions", "rows"), (torch.int64, (tokens,)))
        return {**by_token, **dict.fromkeys(("counts", "last"), (torch.int64, (streams,)))}

    @classmethod
    def of(cls, given: Mapping[str, Tensor], longest: int) -> SlotTokens:
        """Create an instance from arrays with the names, types and shapes that `fields` returns."""
        return cls(given["tokens"], given["positions"], given["rows"], given["counts"], given["last"], longest)


def pack_for_slots(ragged: Ragged, longest: int, to: Mapping[str, NDArray[Any]]) -> None:
    """Fill the host arrays `to` with the fields of `SlotTokens`.

    Padding streams have no tokens. Padding tokens are placed after those of the first stream, which must then have
    fewer than `longest` tokens.
    """
    tokens, streams = len(ragged.tokens), len(ragged.counts)
    places = np.arange(streams) * longest - np.array(ragged.begins, np.int64)
    rows = _repeated(places, ragged.counts) + ragged.positions
    columns = ("tokens", ragged.tokens, 0), ("positions", ragged.positions, 0), ("rows", rows, longest - 1)
    for name, given, padding in columns:
        to[name][:tokens], to[name][tokens:] = given, padding
    to["counts"][:streams], to["counts"][streams:] = ragged.counts, 0
    to["last"][:] = np.maximum(to["counts"].cumsum() - 1, 0)


def _padding(tokens: int, streams: int) -> list[int]:
    """Return the token counts of padding streams, which sum to at most `tokens`."""
    owned = min(tokens, streams)
    return [1] * owned + [0] * (streams - owned)


def _repeated(numbers: NDArray[np.int64], counts: list[int]) -> NDArray[np.int64]:
    """Return an array in which each number occurs as often as `counts` states for it."""
    return np.repeat(numbers, np.array(counts, np.int64))
