"""Sequences of events as text: whole numbers, one sequence per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def read_sequences(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[int]]]:
    """Yield each line number with the sequence of that line. Empty lines are skipped.

    Args:
        lines: Lines of the text.
        name: Name of the text, for messages.

    Raises:
        ValueError: A word is not a whole number of at most nine digits. The message names the line.
    """
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").replace(";", " ").split()
        wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) <= 9)), None)
        if wrong is not None:
            raise ValueError(
                f"{name}, line {number}: {wrong[:30]!r} is not an event, which is a whole number of at most nine digits"
            )
        if words:
            yield number, [int(word) for word in words]
