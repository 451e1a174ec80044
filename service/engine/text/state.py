"""State of a continuation. A request that continues it depends only on the state and on its own parameters.

    version u8 | flags u8 = 0 | tail bytes u16 | seed u64 | generated u64 | pending u32 | undecoded length u8, bytes 3
    | output bytes u32 | tail, UTF-8 | output after the pending token | context of the model

The layout is little-endian without padding. With the output, the next token can be sampled without a step of the model.
A state contains the seed and the number of sampled tokens, so that a text generated in two requests is identical to a
text generated in one request.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rfa.runtime.errors import invalid_state

_VERSION = 2
_HEADER = struct.Struct("<BBHQQIB3sI")
LONGEST_TAIL_BYTES = 4 * 256  # length of the longest stop sequence in UTF-8


@dataclass(frozen=True)
class LanguageState:
    """State of a continuation between two requests.

    Attributes:
        seed: Seed of the tokens sampled so far.
        generated: Number of tokens sampled so far. The next random number is derived from it.
        pending: Last token, which the model has not read.
        undecoded: Up to 3 bytes of an incomplete character at the end.
        tail: Emitted text at the end that may be the start of a stop sequence.
        context: Packed context of the model.
        output: Packed output of the model after the pending token (`pack_output`), with the default number of
            reweighting passes. Empty if it is not known.
    """

    seed: int
    generated: int
    pending: int
    undecoded: bytes
    tail: str
    context: bytes
    output: bytes = b""

    def pack(self) -> bytes:
        """Return the bytes of the state, in the layout of the module docstring."""
        tail = self.tail.encode()
        left = len(self.undecoded), self.undecoded, len(self.output)
        header = _HEADER.pack(_VERSION, 0, len(tail), self.seed, self.generated, self.pending, *left)
        return header + tail + self.output + self.context

    @classmethod
    def unpack(cls, payload: bytes, vocabulary_size: int) -> LanguageState:
        """Parse the bytes that `pack` returned.

        Raises:
            InvalidInput: If the bytes are not a state (`state_invalid`).
        """
        if len(payload) < _HEADER.size:
            raise invalid_state()
        version, flags, tail_size, seed, generated, pending, count, undecoded, output_size = _HEADER.unpack_from(
            payload
        )
        start = _HEADER.size + tail_size
        end = start + output_size
        is_sound = version == _VERSION and flags == 0 and pending < vocabulary_size and count <= len(undecoded)
        if not is_sound or tail_size > LONGEST_TAIL_BYTES or end > len(payload):
            raise invalid_state()
        try:
            tail = payload[_HEADER.size : start].decode()
        except UnicodeDecodeError:
            raise invalid_state() from None
        return cls(seed, generated, pending, undecoded[:count], tail, payload[end:], payload[start:end])


def largest_state(context_bytes: int, output_bytes: int) -> int:
    """Return the maximum size of a state in bytes, given the maximum sizes of packed contexts and outputs."""
    return _HEADER.size + LONGEST_TAIL_BYTES + output_bytes + context_bytes
