"""Sequences of events as text: whole numbers, a sequence a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def read_sequences(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[int]]]:
    """The sequences of a text, one a line, each with the number of its line. Empty lines have none.

    Args:
        name: of the text, for errors.

    Raises:
        ValueError: A word is no whole number of at most nine digits. The message names the line.
    """
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").replace(";", " ").split()
        wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) <= 9)), None)
        if wrong is not None:
            raise ValueError(
                f"{name}, line {number}: {wrong[:30]!r} is no event, a whole number of at most nine digits"
            )
        if words:
            yield number, [int(word) for word in words]
