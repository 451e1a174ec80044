"""Encode JSON in parts. A long document is then never stored as a whole, and other work can run between the parts.

The concatenated parts are the bytes that `orjson.dumps` returns if each `Blocks` is replaced by the list of its items,
and each NumPy array by `tolist()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import orjson

from rfa.runtime.blocks import PIECE_NUMBERS, Blocks

# Marks the position of a long array. JSON text never contains this byte.
_PLACEHOLDER: Final = b"\0"


class Long(Blocks):
    """Sequence whose items are converted while it is encoded.

    Args:
        things: The items, which are not yet converted.
        make: Function that converts an item.
        numbers: Estimated number of numbers per item.
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
    """Long NumPy array that is encoded in blocks."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self._size = max(1, PIECE_NUMBERS * len(array) // array.size)

    def blocks(self) -> Iterator[list[Any]]:
        for first in range(0, len(self._array), self._size):
            yield self._array[first : first + self._size].tolist()


def dumps(document: Any) -> bytes:
    """Encode a short document as a whole, and return its bytes."""
    return b"".join(pieces(document))


def pieces(document: Any) -> Iterator[bytes]:
    """Encode a document, and yield the parts. `Blocks` and long arrays are encoded block by block, and everything else
    at once.

    Raises:
        TypeError: If a value has a type that JSON does not support.
    """
    found: list[Blocks] = []
    skeleton = orjson.dumps(document, default=_marking(found))
    if not found:
        yield skeleton
        return
    head, *rest = skeleton.split(_PLACEHOLDER)
    for long, tail in zip(found, rest, strict=True):
        yield head + b"["
        for i, block in enumerate(long.blocks()):
            if i:
                yield b","
            yield from items(block)
        head = b"]" + tail
    yield head


def items(block: Sequence[Any]) -> Iterator[bytes]:
    """Yield the encoded items of a list, without brackets."""
    encoded = pieces(block)
    piece = next(encoded)[1:]
    for following in encoded:
        yield piece
        piece = following
    yield piece[:-1]


def _marking(found: list[Blocks]) -> Callable[[Any], Any]:
    """Return a `default` function for orjson. It replaces long arrays by a placeholder, and appends them to `found`."""

    def replace(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            if value.size <= PIECE_NUMBERS:
                return value.tolist()
            value = _LongArray(value)
        if not isinstance(value, Blocks):
            raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")
        if value.is_short:
            return next(value.blocks(), [])
        found.append(value)
        return orjson.Fragment(_PLACEHOLDER)

    return replace
