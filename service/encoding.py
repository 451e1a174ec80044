"""JSON in pieces: a document is encoded bit by bit, so that a long one never exists as a whole, nor holds a thread.

The pieces joined are the bytes of `orjson.dumps` of the document in which every `Blocks` is the list of its items and
every array of NumPy its `tolist()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import orjson

from rfa.runtime.blocks import PIECE_NUMBERS, Blocks

# Stands where a long array belongs until it is encoded: JSON has no such byte, strings escape it.
_PLACE: Final = b"\0"


class Long(Blocks):
    """What is made of each of a sequence of things as it is encoded.

    Args:
        numbers: about how many numbers that is.
    """

    def __init__(self, things: Sequence[Any], make: Callable[[Any], Any] = lambda thing: thing, numbers: int = 1):
        self._things = things
        self._make = make
        self._size = max(1, PIECE_NUMBERS // numbers)

    @property
    def is_short(self) -> bool:
        return len(self._things) <= self._size

    def blocks(self) -> Iterator[list[Any]]:
        for first in range(0, len(self._things), self._size):
            yield [self._make(thing) for thing in self._things[first : first + self._size]]


class _LongArray(Blocks):
    """A long array of NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self._size = max(1, PIECE_NUMBERS * len(array) // array.size)

    def blocks(self) -> Iterator[list[Any]]:
        for first in range(0, len(self._array), self._size):
            yield self._array[first : first + self._size].tolist()


def dumps(document: Any) -> bytes:
    """The document as a whole; for those that are known to be short, and for what runs beside nothing else."""
    return b"".join(pieces(document))


def pieces(document: Any) -> Iterator[bytes]:
    """The document in pieces: whatever is in a `Blocks` or an array is encoded block by block, all else at once."""
    found: list[Blocks] = []
    skeleton = orjson.dumps(document, default=_marking(found))
    if not found:
        yield skeleton
        return
    head, *rest = skeleton.split(_PLACE)
    for long, tail in zip(found, rest, strict=True):
        yield head + b"["
        for i, block in enumerate(long.blocks()):
            if i:
                yield b","
            yield from items(block)
        head = b"]" + tail
    yield head


def items(block: Sequence[Any]) -> Iterator[bytes]:
    """A list without its brackets."""
    encoded = pieces(block)
    piece = next(encoded)[1:]
    for following in encoded:
        yield piece
        piece = following
    yield piece[:-1]


def _marking(found: list[Blocks]) -> Callable[[Any], Any]:
    """What orjson asks about objects that it does not know: long arrays are noted, and encoded later."""

    def replace(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            if value.size <= PIECE_NUMBERS:
                return value.tolist()
            value = _LongArray(value)
        if not isinstance(value, Blocks):
            raise TypeError(f"{type(value).__name__} is no JSON")
        if value.is_short:
            return next(value.blocks(), [])
        found.append(value)
        return orjson.Fragment(_PLACE)

    return replace
