"""Long lists of a reply, made block by block: as a whole they would hold the interpreter lock, and memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

# Numbers of one block: some 20 kB of JSON, encoded in a fraction of a millisecond.
PIECE_NUMBERS: Final = 1_024


class Blocks(ABC):
    """A list that is made block by block."""

    @abstractmethod
    def blocks(self) -> Iterator[list[Any]]:
        """The items in order, in lists that are not empty and have about PIECE_NUMBERS numbers at most."""

    @property
    def is_short(self) -> bool:
        """Whether there is one block at most."""
        return False
