"""Estimate of the cost of a JSON text from its bytes as they arrive, so that an expensive text is not decoded.

A decoder allocates 80 to 140 bytes for each two-byte array, and holds the interpreter lock for 0.5 s for 2 MB of them.
Counting brackets, commas, colons and quotes takes at most a millisecond for 65 kB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rfa.service.errors import InvalidRequest
from rfa.service.setting_groups import LimitSettings

# These limits do not depend on the settings.
MAX_STRINGS: Final = 1_024  # including the names of members
MAX_MEMBERS: Final = 256
# Additional limit for each of many series.
STRINGS_OF_SERIES: Final = 8
MEMBERS_OF_SERIES: Final = 6
CONTAINERS_OF_SERIES: Final = 6
# Fields with a list per observation: `observations`, `input` and `bias`. Other fields have further arrays and objects.
LISTS_OF_ROWS: Final = 3
OTHER_CONTAINERS: Final = 1_024

# Memory in bytes, measured and rounded up. The decoded tree needs this for each value, in addition to a copy of the
# text:
TREE_BYTES: Final = 24
# An object and its slot in a list, and the list of an array. Decoding and validation each make one copy.
VALUE_BYTES: Final = 40
CONTAINER_BYTES: Final = 96
COPIES: Final = 2
# All fields of a request.
MODEL_BYTES: Final = 4_096
# An entry of a dictionary, and a string without its characters.
MEMBER_BYTES: Final = 512
STRING_BYTES: Final = 128
# One character beyond Latin-1 makes all characters of its string four bytes wide. Validation adds a UTF-8 copy.
WIDE_BYTES: Final = 5

_QUOTE, _COMMA, _COLON = b'",:'
_OPENING, _CLOSING = b"[{", b"]}"
_PLAIN: Final = bytes(byte for byte in range(256) if byte not in b'"\\,:[]{}')
_PLAIN_OR_BACKSLASH: Final = _PLAIN + b"\\"
_SLOPE: Final = np.zeros(256, dtype=np.int32)
_SLOPE[list(_OPENING)] = 1
_SLOPE[list(_CLOSING)] = -1


@dataclass(frozen=True)
class JsonLimits:
    """Limits on a JSON text.

    Args:
        depth: nesting depth of arrays and objects.
        values: number of numbers, strings, nulls, booleans, arrays and objects.
        containers: number of arrays and objects.
    """

    depth: int
    values: int
    containers: int
    strings: int = MAX_STRINGS
    members: int = MAX_MEMBERS

    def most(self, size: int) -> JsonCounts:
        """Return the counts of the most expensive text of `size` bytes that is accepted."""
        return JsonCounts(size, self.values, self.containers, self.strings, self.members, is_wide=True)


@dataclass(frozen=True)
class JsonCounts:
    """Counts of the content of a text of `size` bytes. `is_wide` means that it may contain characters beyond ASCII."""

    size: int
    values: int
    containers: int
    strings: int
    members: int
    is_wide: bool

    def decoding_bytes(self) -> int:
        """Return an upper bound of the memory for decoding and validation, not including the text."""
        return TREE_BYTES * self.values + self.size + self._document_bytes(COPIES)

    def validated_bytes(self) -> int:
        """Return the memory of the validated document."""
        return self._document_bytes(1)

    def _document_bytes(self, copies: int) -> int:
        arrays = copies * (VALUE_BYTES * self.values + CONTAINER_BYTES * self.containers)
        strings = STRING_BYTES * self.strings + self.size * (WIDE_BYTES if self.is_wide else 1)
        return MODEL_BYTES + arrays + strings + MEMBER_BYTES * self.members


# Limits on a frame of a live stream. A small frame is inexpensive whatever it contains.
FRAME_LIMITS: Final = JsonLimits(depth=8, values=8_192, containers=64, strings=64, members=64)
SMALL_FRAME_BYTES: Final = 4_096


def body_limits(settings: LimitSettings) -> JsonLimits:
    """Return the limits on a request body."""
    rows = LISTS_OF_ROWS * settings.max_observations
    return JsonLimits(settings.max_json_depth, settings.max_body_values, rows + OTHER_CONTAINERS)


def series_limits(settings: LimitSettings) -> JsonLimits:
    """Return the limits on a body with many series. Each observation is a list, a time and a number."""
    one, rows, series = body_limits(settings), settings.max_series_observations, settings.max_series
    containers = rows + CONTAINERS_OF_SERIES * series + OTHER_CONTAINERS
    return JsonLimits(
        one.depth,
        max(one.values, 2 * rows + containers),
        max(one.containers, containers),
        one.strings + STRINGS_OF_SERIES * series,
        one.members + MEMBERS_OF_SERIES * series,
    )


class JsonCost:
    """Running counts of one text. They are exact up to the first syntax error, where the decoder stops.

    Args:
        subject: name of the text in error messages.
    """

    def __init__(self, limits: JsonLimits, subject: str) -> None:
        self._limits = limits
        self._subject = subject
        self._size = 0
        self._commas = 0
        self._containers = 0
        self._quotes = 0
        self._members = 0
        self._depth = 0
        self._is_wide = False
        self._is_in_string = False
        self._is_escaped = False  # whether the last byte was the backslash of an escape

    def feed(self, piece: bytes) -> None:
        """Count the content of the next part of the text.

        Raises:
            InvalidRequest: If the text is nested too deeply (`too_deep`) or has too many values (`too_many_values`).
        """
        self._size += len(piece)
        self._is_wide = self._is_wide or not piece.isascii() or b"\\u" in piece
        marks = np.frombuffer(self._without_escapes(piece).translate(None, _PLAIN_OR_BACKSLASH), dtype=np.uint8)
        if not marks.size:
            return
        in_string = np.logical_xor.accumulate(marks == _QUOTE) ^ self._is_in_string
        self._is_in_string = bool(in_string[-1])
        counts = np.bincount(marks[~in_string], minlength=256)  # for quotes, only the closing ones
        self._quotes += int(counts[_QUOTE])
        self._commas += int(counts[_COMMA])
        self._members += int(counts[_COLON])
        self._containers += int(counts[list(_OPENING)].sum())
        depths = _SLOPE[marks[~in_string]].cumsum(dtype=np.int32)
        self._check(self._depth + int(depths.max(initial=0)))
        if depths.size:
            self._depth += int(depths[-1])

    @property
    def counts(self) -> JsonCounts:
        """Counts so far. An empty array counts as an array with one item."""
        values = self._commas + self._containers + 1
        return JsonCounts(self._size, values, self._containers, self._quotes, self._members, self._is_wide)

    def _without_escapes(self, piece: bytes) -> bytes:
        """Return a part of the text without escaped backslashes and quotes. An escape sequence may continue in the next
        part."""
        if self._is_escaped and piece:
            self._is_wide = self._is_wide or piece.startswith(b"u")
            piece, self._is_escaped = piece[1:], False
        if b"\\" not in piece:
            return piece
        piece = piece.replace(b"\\\\", b"")
        self._is_escaped = piece.endswith(b"\\")
        return piece.replace(b'\\"', b"")

    def _check(self, depth: int) -> None:
        limits, counts, name = self._limits, self.counts, self._subject
        if depth > limits.depth:
            raise InvalidRequest(f"{name} must not be nested deeper than {limits.depth} levels.", code="too_deep")
        for count, limit, kind in (
            (counts.values, limits.values, "values"),
            (counts.containers, limits.containers, "arrays and objects"),
            (counts.strings, limits.strings, "strings"),
            (counts.members, limits.members, "members"),
        ):
            if count > limit:
                raise InvalidRequest(f"{name} must not contain more than {limit} {kind}.", code="too_many_values")
