"""Estimate the cost of decoding a JSON text while its bytes arrive, so that expensive texts are rejected.

A decoder allocates 80 to 140 bytes for each empty array, which is two bytes of text. For 2 MB of empty arrays, it keeps
the interpreter lock for 0.5 s. Counting brackets, commas, colons and quotes in 65 kB takes at most a millisecond.
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
# Increase of the limits for each series in a request with several series.
STRINGS_OF_SERIES: Final = 8
MEMBERS_OF_SERIES: Final = 6
CONTAINERS_OF_SERIES: Final = 6
# Number of fields with a list per observation (`observations`, `input` and `bias`), and number of arrays and objects in
# all other fields.
LISTS_OF_ROWS: Final = 3
OTHER_CONTAINERS: Final = 1_024

# The following sizes in bytes are measured and rounded up. The decoder needs this for each value, in addition to a copy
# of the text.
TREE_BYTES: Final = 24
# Size of a Python object with its slot in a list, and of a list. Decoding and validation each create one copy.
VALUE_BYTES: Final = 40
CONTAINER_BYTES: Final = 96
COPIES: Final = 2
# Size of all fields of a validated request together.
MODEL_BYTES: Final = 4_096
# Size of an entry of a dictionary, and of a string without its characters.
MEMBER_BYTES: Final = 512
STRING_BYTES: Final = 128
# Bytes per character. One character beyond Latin-1 makes all characters of a string up to four bytes wide, and
# validation adds a UTF-8 copy.
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
        depth: Maximum nesting depth of arrays and objects.
        values: Maximum number of values of all types, including arrays and objects.
        containers: Maximum number of arrays and objects.
        strings: Maximum number of strings, including the names of members.
        members: Maximum number of members of all objects.
    """

    depth: int
    values: int
    containers: int
    strings: int = MAX_STRINGS
    members: int = MAX_MEMBERS

    def most(self, size: int) -> JsonCounts:
        """Return the counts of the most expensive text with `size` bytes that these limits allow."""
        return JsonCounts(size, self.values, self.containers, self.strings, self.members, is_wide=True)


@dataclass(frozen=True)
class JsonCounts:
    """Numbers of values in a JSON text. See `JsonLimits`.

    Attributes:
        size: Size of the text in bytes.
        values: Number of values, including arrays and objects.
        containers: Number of arrays and objects.
        strings: Number of strings.
        members: Number of members of objects.
        is_wide: Whether the text may contain characters beyond ASCII.
    """

    size: int
    values: int
    containers: int
    strings: int
    members: int
    is_wide: bool

    def decoding_bytes(self) -> int:
        """Return an upper bound on the memory for decoding and validation in bytes, without the text."""
        return TREE_BYTES * self.values + self.size + self._document_bytes(COPIES)

    def validated_bytes(self) -> int:
        """Return an upper bound on the memory of the validated document in bytes."""
        return self._document_bytes(1)

    def _document_bytes(self, copies: int) -> int:
        arrays = copies * (VALUE_BYTES * self.values + CONTAINER_BYTES * self.containers)
        strings = STRING_BYTES * self.strings + self.size * (WIDE_BYTES if self.is_wide else 1)
        return MODEL_BYTES + arrays + strings + MEMBER_BYTES * self.members


# Limits on a frame of a live stream. Frames up to SMALL_FRAME_BYTES are not counted, because decoding them is cheap.
FRAME_LIMITS: Final = JsonLimits(depth=8, values=8_192, containers=64, strings=64, members=64)
SMALL_FRAME_BYTES: Final = 4_096


def body_limits(settings: LimitSettings) -> JsonLimits:
    """Return the limits on a request body."""
    rows = LISTS_OF_ROWS * settings.max_observations
    return JsonLimits(settings.max_json_depth, settings.max_body_values, rows + OTHER_CONTAINERS)


def series_limits(settings: LimitSettings) -> JsonLimits:
    """Return the limits on a request body with several series. Each observation may be a list and have a time."""
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
    """Counts the content of a JSON text while it arrives, and checks the limits. The counts are exact up to the first
    syntax error, where the decoder stops.

    Args:
        limits: Limits on the text.
        subject: Name of the text in error messages.
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
        """Return a part of the text without escaped backslashes and quotes. An escape sequence may end in the next
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
