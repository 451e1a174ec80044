"""Where a generation was left: all that its continuation depends on beside the request's own parameters.

    version u8 | flags u8 = 0 | tail bytes u16 | seed u64 | generated u64 | pending u32 | undecoded length u8, bytes 3
    | tail, UTF-8 | context of the model

Little-endian, no padding. A continuation draws with the same seed and goes on counting its draws, so that a text in two
requests is the text of one, bit for bit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rfa.service.errors import invalid_state

_VERSION = 1
_HEADER = struct.Struct("<BBHQQIB3s")
LONGEST_TAIL_BYTES = 4 * 256  # of the longest stop sequence, in UTF-8
LONGEST_STREAM = 1 << 53  # positions are exact in float64 up to here
_POSITION = np.dtype("<u8")
_FLOAT = np.dtype("<f4")


@dataclass(frozen=True)
class LanguageState:
    """One continuation between two requests.

    Attributes:
        seed: of the draws so far.
        generated: tokens drawn so far; the counter of the next draw.
        pending: the last token; the model has not read it yet.
        undecoded: bytes at the end of the text that are no character yet, at most 3.
        tail: text that was given out although it may begin a stop sequence.
        context: what the model packed.
    """

    seed: int
    generated: int
    pending: int
    undecoded: bytes
    tail: str
    context: bytes

    def pack(self) -> bytes:
        """The layout above."""
        tail = self.tail.encode()
        header = _HEADER.pack(
            _VERSION, 0, len(tail), self.seed, self.generated, self.pending, len(self.undecoded), self.undecoded
        )
        return header + tail + self.context

    @classmethod
    def unpack(cls, payload: bytes, vocabulary_size: int) -> LanguageState:
        """Inverse of `pack`.

        Raises:
            InvalidRequest: these bytes are not such a state (`state_invalid`).
        """
        if len(payload) < _HEADER.size:
            raise invalid_state()
        version, flags, tail_size, seed, generated, pending, count, undecoded = _HEADER.unpack_from(payload)
        end = _HEADER.size + tail_size
        is_sound = version == _VERSION and flags == 0 and pending < vocabulary_size and count <= len(undecoded)
        if not is_sound or tail_size > LONGEST_TAIL_BYTES or end > len(payload):
            raise invalid_state()
        try:
            tail = payload[_HEADER.size : end].decode()
        except UnicodeDecodeError:
            raise invalid_state() from None
        return cls(seed, generated, pending, undecoded[:count], tail, payload[end:])


def largest_state(context_bytes: int) -> int:
    """Bytes of the largest state of a model whose packed context has at most `context_bytes`."""
    return _HEADER.size + LONGEST_TAIL_BYTES + context_bytes


@dataclass(frozen=True)
class ContextFormat:
    """A recurrent context as bytes, the same whatever it is computed on: position u64 | the parts of its state, f32.

    Args:
        shapes: of the parts, by name: "means", "precisions", and what else the bundle's manifest lists, in its order.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """Bytes of every context."""
        return _POSITION.itemsize + _FLOAT.itemsize * sum(map(math.prod, self.shapes.values()))

    def pack(self, position: int, state: Mapping[str, NDArray[np.float32]]) -> bytes:
        """The layout above, little-endian."""
        numbers = b"".join(state[name].astype(_FLOAT).tobytes() for name in self.shapes)
        return np.array(position, dtype=_POSITION).tobytes() + numbers

    def unpack(self, data: bytes) -> tuple[int, dict[str, NDArray[np.float32]]]:
        """Inverse of `pack`.

        Raises:
            InvalidRequest: these bytes are no context of this shape (`state_invalid`).
        """
        if len(data) != self.size:
            raise invalid_state()
        position = int(np.frombuffer(data, _POSITION, 1)[0])
        numbers = np.frombuffer(data, _FLOAT, offset=_POSITION.itemsize).astype(np.float32)
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = zip(self.shapes.items(), np.split(numbers, ends[:-1]), strict=True)
        state = {name: part.reshape(shape) for (name, shape), part in parts}
        if position > LONGEST_STREAM or not np.isfinite(numbers).all() or state["precisions"].min() < 0:
            raise invalid_state()
        return position, state
