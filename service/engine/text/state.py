"""State of a continuation, on which later requests depend besides their own parameters.

    version u8 | flags u8 = 0 | tail bytes u16 | seed u64 | generated u64 | pending u32 | undecoded length u8, bytes 3
    | tail, UTF-8 | context of the model

Little-endian, no padding. A continuation keeps the seed and the counter of draws, so that a text in two requests equals
the text of one, bit for bit.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rfa.runtime.errors import invalid_state

_VERSION = 1
_HEADER = struct.Struct("<BBHQQIB3s")
LONGEST_TAIL_BYTES = 4 * 256  # of the longest stop sequence, in UTF-8


@dataclass(frozen=True)
class LanguageState:
    """One continuation between two requests.

    Attributes:
        seed: of the draws so far.
        generated: tokens sampled so far; the counter of the next draw.
        pending: the last token, which the model has not read.
        undecoded: up to 3 bytes of an incomplete character at the end.
        tail: emitted text that may begin a stop sequence.
        context: packed by the model.
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
            InvalidInput: the bytes are not a state (`state_invalid`).
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
