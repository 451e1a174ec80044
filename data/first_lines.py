"""Recognise the format of a text by its first lines, and limit its size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# Number of first lines that are tested, in at most this number of characters.
PREVIEW, PREVIEW_CHARACTERS = 20, 100_000
MOST_CHARACTERS: Final = 2**28


def begins_with(text: str, is_line: Callable[[str], bool], share: float) -> bool:
    """Return whether at least the given fraction of the first lines of a text passes a test. Empty lines are not
    tested."""
    first = [line for line in text[:PREVIEW_CHARACTERS].splitlines()[:PREVIEW] if line.strip()]
    return bool(first) and sum(map(is_line, first)) >= share * len(first)


def check_size(text: str, message: str) -> None:
    """Check that a text has at most 256 Mi characters.

    Raises:
        ValueError: With the message, if the text is larger.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(message)
