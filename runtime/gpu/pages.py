"""Keys and values of attention streams on a device, in pages of one pool.

A stream takes the pages that its request may need when it begins, so that it never waits for memory with half of its
text read; whatever a page held before lies behind the keys of its owner, where nobody looks. Its continuations have the
full pages before them in common, which nobody writes any more; of the page that is partly filled each has a copy.
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


class PagePool:
    """Pages of a model's keys and values.

    Args:
        shape: L, H, 2D.
        capacity: number of pages that streams may have.
        device: where they live.
        dtype: of keys and values.

    Attributes:
        keys, values: `[L, (capacity + 1) · PAGE_KEYS, H, 2D]`.
        scratch_page: the last one, which rows that are padding write to.
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
        """Device memory of a page."""
        layers, heads, width = shape
        return 2 * layers * PAGE_KEYS * heads * width * dtype.itemsize

    @property
    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values."""
        return self.keys, self.values

    @property
    def in_use(self) -> int:
        """Pages that have an owner."""
        return self.capacity - len(self._free)

    def acquire(self, count: int) -> list[int]:
        """So many pages, of one owner each.

        Raises:
            CapacityError: so many are not free at this moment.
        """
        with self._lock:
            if count > len(self._free):
                raise CapacityError(
                    "The GPU's memory for attention is taken by other requests at this moment.", retry_after_seconds=1
                )
            taken = self._free[len(self._free) - count :]
            del self._free[len(self._free) - count :]
            for page in taken:
                self._owners[page] = 1
        return taken

    def share(self, pages: list[int]) -> None:
        """One owner more of each."""
        with self._lock:
            for page in pages:
                self._owners[page] += 1

    def release(self, pages: list[int]) -> None:
        """One owner less of each; those that have none are free."""
        with self._lock:
            for page in pages:
                self._owners[page] -= 1
            self._free.extend(page for page in pages if self._owners[page] == 0)

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Make pages the same as others."""
        if not sources:
            return
        source, target = sent(np.array([sources, targets]), self.keys.device)
        for rows in self.rows:
            pages = rows.unflatten(1, (-1, PAGE_KEYS))
            pages[:, target] = pages[:, source]


class PagedContext:
    """Attention context of one stream.

    Args:
        pool: that its pages are of.
        room: tokens that it is to hold; it takes more pages when it has more.
        forks: continuations that it will be asked for, each with as much room.
        common: tokens that it will have when it is asked for them.

    Raises:
        CapacityError: the pages are not free.
    """

    def __init__(self, pool: PagePool, room: int = 1, forks: int = 0, common: int = 0) -> None:
        self.pool = pool
        self.position = 0
        self._table = np.empty(0, np.int32)
        taken = iter(pool.acquire(pages_needed(room, forks, common)))
        self.pages = list(islice(taken, pages_of(room)))
        self._of_forks = [list(islice(taken, _own_pages(room, common))) for _ in range(forks)]

    def fork(self) -> PagedContext:
        """An independent continuation from here. Where the copy of a page fails, the pages of the twin are free.

        Raises:
            CapacityError: it was not announced, or too early, and the pages are not free; or no memory is for the copy.
        """
        full, held = self.position // PAGE_KEYS, pages_of(self.position)
        needed = len(self.pages) - full
        own = self._of_forks[-1] if self._of_forks else []
        own = own + self.pool.acquire(max(0, needed - len(own)))
        del self._of_forks[-1:]
        self.pool.share(self.pages[:full])
        self.pool.release(own[needed:])
        twin = PagedContext(self.pool, 0)
        twin.pages = self.pages[:full] + own[:needed]
        twin.position = self.position
        try:
            with bounded_memory():
                self.pool.copy(self.pages[full:held], twin.pages[full:held])
        except BaseException:
            twin.release()
            raise
        return twin

    def make_room(self, tokens: int) -> None:
        """For so many more tokens.

        Raises:
            CapacityError: the pages are not free.
        """
        missing = pages_of(self.position + tokens) - len(self.pages)
        if missing > 0:
            self.pages += self.pool.acquire(missing)

    def release(self) -> None:
        """Give the pages back."""
        for pages in (self.pages, *self._of_forks):
            self.pool.release(pages)
        self.pages, self._of_forks = [], []

    def table(self) -> NDArray[np.int32]:
        """Its pages as an array, made again where there are more: those that it has stay as they are."""
        if len(self._table) != len(self.pages):
            self._table = np.array(self.pages, np.int32)
        return self._table

    def rows(self, begin: int, end: int) -> torch.Tensor:
        """Where in the pool the keys of these tokens are."""
        device = self.pool.keys.device
        return places_of(torch.tensor(self.pages, device=device), torch.arange(begin, end, device=device))


@contextmanager
def bounded_memory() -> Iterator[None]:
    """A request for which the GPU's memory does not suffice at this moment may come again."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise CapacityError("The GPU's memory is full at this moment.", retry_after_seconds=1) from None


def pages_of(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // PAGE_KEYS)


def _own_pages(room: int, common: int) -> int:
    """Of a continuation: all but the full ones that it has in common with the stream it comes from."""
    return pages_of(room) - common // PAGE_KEYS


def pages_needed(room: int, forks: int, common: int) -> int:
    """Of a stream with so much room and its continuations, as `PagedContext` takes them."""
    return pages_of(room) + forks * _own_pages(room, common)


@dataclass(frozen=True)
class PagedAdvance:
    """A context whose pages hold more tokens; `finite` tells whether later tokens can read them."""

    context: PagedContext
    tokens: int
    finite: bool

    def is_finite(self) -> bool:
        """False when a row that later tokens would read is broken."""
        return self.finite

    def commit(self) -> None:
        """Let the tokens be seen."""
        self.context.position += self.tokens
