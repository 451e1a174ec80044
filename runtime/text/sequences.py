"""Read sequences of events from text. It contains one sequence per line, with integers separated by spaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def read_sequences(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[int]]]:
    """Yield the number of each line, and the sequence in it. Empty lines are skipped.

    Args:
        lines: Lines of the text.
        name: Name of the text in error messages.

    Raises:
        ValueError: If a word is not an integer with at most nine digits. The message names the line.
    """
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").replace(";", " ").split()
        wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) <= 9)), None)
        if wrong is not None:
            raise ValueError(
                f"{name}, line {number}: {wrong[:30]!r} is not an event; events are integers with at most nine digits"
            )
        if words:
            yield number, [int(word) for word in words]
