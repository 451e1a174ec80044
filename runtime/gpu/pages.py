"""Keys and values of attention streams on a device, stored in pages of one pool.

At its start, a stream acquires all pages that its request may need, so that it never waits for memory later. Pages are
not cleared, because kernels read only the keys of the owner. All continuations of a stream refer to its full pages,
which are read-only. Each continuation has a copy of the partially filled page.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from rfa.model.attention.pages import PAGE_KEYS, places_of
from rfa.model.packed import sent
from rfa.runtime.errors import CapacityError
from rfa.runtime.text.contexts import CheckedAdvance


class PagePool:
    """Pages for the keys and values of a model.

    Args:
        shape: Layers, heads, and real dimensions per head, (L, H, 2D).
        capacity: Number of pages for all streams.
        device: Device of the pages.
        dtype: Dtype of keys and values.

    Attributes:
        keys, values: Keys and values of all pages, `[L, (capacity + 1) · PAGE_KEYS, H, 2D]`.
        scratch_page: Index of the last page, to which padding rows write.
    """

    def __init__(self, shape: tuple[int, int, int], capacity: int, device: torch.device, dtype: torch.dtype) -> None:
        layers, heads, width = shape
        rows = layers, (capacity + 1) * PAGE_KEYS, heads, width
        self.keys, self.values = (torch.zeros(rows, dtype=dtype, device=device) for _ in range(2))
        self.capacity = self.scratch_page = capacity
        self._free = list(reversed(range(capacity)))
        self._owners = [0] * capacity
        self._lock = threading.Lock()

    @staticmethod
    def bytes_of_page(shape: tuple[int, int, int], dtype: torch.dtype) -> int:
        """Return the device memory of a page in bytes."""
        layers, heads, width = shape
        return 2 * layers * PAGE_KEYS * heads * width * dtype.itemsize

    @property
    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of the pool."""
        return self.keys, self.values

    @property
    def in_use(self) -> int:
        """Number of pages that have an owner."""
        return self.capacity - len(self._free)

    def acquire(self, count: int) -> list[int]:
        """Acquire `count` free pages, and return their numbers. Each of these pages then has one owner.

        Raises:
            CapacityError: If fewer pages are free.
        """
        with self._lock:
            if count > len(self._free):
                raise CapacityError(
                    "Other requests currently use the GPU memory for attention; try again later.", retry_after_seconds=1
                )
            pages = self._free[len(self._free) - count :]
            del self._free[len(self._free) - count :]
            for page in pages:
                self._owners[page] = 1
        return pages

    def share(self, pages: list[int]) -> None:
        """Add an owner to each page."""
        with self._lock:
            for page in pages:
                self._owners[page] += 1

    def release(self, pages: list[int]) -> None:
        """Remove an owner from each page. Pages without owners become free."""
        with self._lock:
            for page in pages:
                self._owners[page] -= 1
            self._free.extend(page for page in pages if self._owners[page] == 0)

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Copy the keys and values of the pages `sources` to the pages `targets`."""
        if not sources:
            return
        source, target = sent(np.array([sources, targets]), self.keys.device)
        for rows in self.rows:
            pages = rows.unflatten(1, (-1, PAGE_KEYS))
            pages[:, target] = pages[:, source]


class PagedContext:
    """Context of one stream in attention mode.

    Args:
        pool: Pool of the pages.
        capacity: Number of tokens for which pages are reserved. It grows if the context has more tokens.
        forks: Number of continuations for which pages are reserved, each with the same capacity.
        common: Number of tokens that the stream will have when it is forked.

    Raises:
        CapacityError: If there are not enough free pages.
    """

    def __init__(self, pool: PagePool, capacity: int = 1, forks: int = 0, common: int = 0) -> None:
        self.pool = pool
        self.position = 0
        self._table = np.empty(0, np.int32)
        reserved = iter(pool.acquire(pages_needed(capacity, forks, common)))
        self.pages = list(islice(reserved, pages_of(capacity)))
        self._fork_pages = [list(islice(reserved, _own_pages(capacity, common))) for _ in range(forks)]

    def fork(self) -> PagedContext:
        """Create an independent continuation. If a page cannot be copied, the pages of the continuation are released.

        Raises:
            CapacityError: If too few pages were reserved or are free, or there is no memory for the copy.
        """
        full, filled = self.position // PAGE_KEYS, pages_of(self.position)
        needed = len(self.pages) - full
        own = self._fork_pages[-1] if self._fork_pages else []
        own = own + self.pool.acquire(max(0, needed - len(own)))
        del self._fork_pages[-1:]
        self.pool.share(self.pages[:full])
        self.pool.release(own[needed:])
        twin = PagedContext(self.pool, 0)
        twin.pages = self.pages[:full] + own[:needed]
        twin.position = self.position
        try:
            with bounded_memory():
                self.pool.copy(self.pages[full:filled], twin.pages[full:filled])
        except BaseException:
            twin.release()
            raise
        return twin

    def reserve(self, tokens: int) -> None:
        """Reserve pages for a number of additional tokens.

        Raises:
            CapacityError: If not enough pages are free.
        """
        missing = pages_of(self.position + tokens) - len(self.pages)
        if missing > 0:
            self.pages += self.pool.acquire(missing)

    def release(self) -> None:
        """Release all pages of the context, including those reserved for continuations."""
        for pages in (self.pages, *self._fork_pages):
            self.pool.release(pages)
        self.pages, self._fork_pages = [], []

    def table(self) -> NDArray[np.int32]:
        """Return the page numbers of the context in order, as an array."""
        if len(self._table) != len(self.pages):
            self._table = np.array(self.pages, np.int32)
        return self._table

    def rows(self, begin: int, end: int) -> torch.Tensor:
        """Return the rows of the pool that contain the keys of the tokens from `begin` to `end`."""
        device = self.pool.keys.device
        return places_of(torch.tensor(self.pages, device=device), torch.arange(begin, end, device=device))


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Convert an out-of-memory error of torch in a context to a CapacityError, so that the request can be tried
    again."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise CapacityError("The GPU currently has no free memory; try again later.", retry_after_seconds=1) from None


def pages_of(tokens: int) -> int:
    """Return the number of pages that a number of tokens needs."""
    return -(-tokens // PAGE_KEYS)


def _own_pages(capacity: int, common: int) -> int:
    """Return the number of pages that only one continuation uses. The full pages that it shares with other
    continuations are not included."""
    return pages_of(capacity) - common // PAGE_KEYS


def pages_needed(capacity: int, forks: int, common: int) -> int:
    """Return the number of pages that `PagedContext` reserves for a stream and its continuations."""
    return pages_of(capacity) + forks * _own_pages(capacity, common)


@dataclass(frozen=True)
class PagedAdvance(CheckedAdvance):
    """An update of a `PagedContext`. The pages already contain the additional tokens, which become part of the context
    when the update is committed."""

    context: PagedContext
    tokens: int

    def commit(self) -> None:
        """Add the tokens to the context."""
        self.context.position += self.tokens
