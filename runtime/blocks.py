"""Long lists in a reply, which are produced in blocks. Encoding a long list at once would hold the interpreter lock and
use much memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

# Numbers per block. A block is about 20 kB of JSON and is encoded in a fraction of a millisecond.
PIECE_NUMBERS: Final = 1_024


class Blocks(ABC):
    """A list that is produced block by block."""

    @abstractmethod
    def blocks(self) -> Iterator[list[Any]]:
        """Yield the items in order, as non-empty lists of at most about PIECE_NUMBERS numbers each."""

    @property
    def is_short(self) -> bool:
        """Return whether the list consists of at most one block."""
        return False
