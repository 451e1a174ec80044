"""Keys and values of attention streams on a device, in pages of one pool.

A stream takes the pages that its request may need when it begins, so that it never waits for memory with half of its
text read; whatever a page held before lies behind the keys of its owner, where nobody looks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from rfa.model.attention.pages import PAGE_KEYS, places_of
from rfa.service.errors import Overloaded


class PagePool:
    """Pages of a model's keys and values.

    Args:
        shape: L, H, 2D.
        capacity: number of pages.
        device: where they live.
        dtype: of keys and values.

    Attributes:
        keys, values: `[L, capacity · PAGE_KEYS, H, 2D]`.
    """

    def __init__(self, shape: tuple[int, int, int], capacity: int, device: torch.device, dtype: torch.dtype) -> None:
        layers, heads, width = shape
        rows = layers, capacity * PAGE_KEYS, heads, width
        self.keys, self.values = (torch.zeros(rows, dtype=dtype, device=device) for _ in range(2))
        self.capacity = capacity
        self._free = list(reversed(range(capacity)))
        self._lock = threading.Lock()

    @staticmethod
    def bytes_of_page(shape: tuple[int, int, int], dtype: torch.dtype) -> int:
        """Device memory of a page."""
        layers, heads, width = shape
        return 2 * layers * PAGE_KEYS * heads * width * dtype.itemsize

    @property
    def in_use(self) -> int:
        """Pages that have an owner."""
        return self.capacity - len(self._free)

    def acquire(self, count: int) -> list[int]:
        """So many pages.

        Raises:
            Overloaded: so many are not free at this moment.
        """
        with self._lock:
            if count > len(self._free):
                raise Overloaded(
                    "The GPU's memory for attention is taken by other requests at this moment.", retry_after_seconds=1
                )
            taken = self._free[len(self._free) - count :]
            del self._free[len(self._free) - count :]
        return taken

    def release(self, pages: list[int]) -> None:
        """Give pages back."""
        with self._lock:
            self._free.extend(pages)

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Make pages the same as others."""
        source, target = (
            torch.tensor(pages, dtype=torch.int64, device=self.keys.device) for pages in (sources, targets)
        )
        for rows in (self.keys, self.values):
            pages = rows.unflatten(1, (self.capacity, PAGE_KEYS))
            pages[:, target] = pages[:, source]


class PagedContext:
    """Attention context of one stream.

    Args:
        pool: that its pages are of.
        room: tokens that it is to hold; it takes more pages when it has more.
        forks: continuations that it will be asked for, each with as much room.

    Raises:
        Overloaded: the pages are not free.
    """

    def __init__(self, pool: PagePool, room: int = 1, forks: int = 0) -> None:
        self.pool = pool
        self.position = 0
        count = pages_of(room)
        taken = pool.acquire(count * (1 + forks))
        self.pages, *self._of_forks = (taken[count * index : count * (index + 1)] for index in range(1 + forks))

    def fork(self) -> PagedContext:
        """An independent continuation from here.

        Raises:
            Overloaded: it was not announced, and the pages are not free.
        """
        twin = PagedContext(self.pool, 0)
        twin.pages = self._of_forks.pop() if self._of_forks else self.pool.acquire(len(self.pages))
        twin.position = self.position
        held = pages_of(self.position)
        self.pool.copy(self.pages[:held], twin.pages[:held])
        return twin

    def make_room(self, tokens: int) -> None:
        """For so many more tokens.

        Raises:
            Overloaded: the pages are not free.
        """
        missing = pages_of(self.position + tokens) - len(self.pages)
        if missing > 0:
            self.pages += self.pool.acquire(missing)

    def release(self) -> None:
        """Give the pages back."""
        for pages in (self.pages, *self._of_forks):
            self.pool.release(pages)
        self.pages, self._of_forks = [], []

    def rows(self, begin: int, end: int) -> torch.Tensor:
        """Where in the pool the keys of these tokens are."""
        device = self.pool.keys.device
        return places_of(torch.tensor(self.pages, device=device), torch.arange(begin, end, device=device))


def pages_of(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // PAGE_KEYS)


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
