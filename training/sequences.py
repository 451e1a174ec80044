"""Sequences of events as a corpus: files of whole numbers, a sequence a line.

An event is the token of its number after a space, as in " 5 22 9". A line begins after, and ends with, end-of-text. The
tokenizer is a byte-level BPE: bytes, and the numbers of the training split with their beginnings. So any text can be
scored, and a number that training did not have is a run of rare tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rfa.runtime.text.sequences import read_sequences

END_OF_TEXT = "<|endoftext|>"
SPACE = "Ġ"  # of byte-level BPE
MOST_EVENTS = 65_536
_CHARACTERS = frozenset(b"0123456789 \t\r\n,;")


def are_sequences(files: list[Path]) -> bool:
    """Whether files have nothing but whole numbers."""
    return bool(files) and all(_is_numbers(file) for file in files)


def _is_numbers(file: Path) -> bool:
    with file.open("rb") as stream:
        parts = iter(lambda: stream.read(1 << 20), b"")
        has_digits = False
        for part in parts:
            if not _CHARACTERS.issuperset(part):
                return False
            has_digits = has_digits or not part.isspace()
    return has_digits


def lines_of(file: Path) -> Iterator[str]:
    """The sequences of a file as texts that the tokenizer reads.

    Raises:
        ValueError: A number has more than nine digits. The message names file and line.
    """
    with file.open(encoding="ascii") as stream:
        for _, events in read_sequences(stream, str(file)):
            yield "".join(f" {event}" for event in events)


def event_tokenizer(files: list[Path]) -> Tokenizer:
    """The tokenizer of the numbers in files.

    Raises:
        ValueError: More than `MOST_EVENTS` different numbers.
    """
    numbers: set[str] = set()
    for file in files:
        for line in lines_of(file):
            numbers.update(line.split())
        if len(numbers) > MOST_EVENTS:
            raise ValueError(f"{file.parent} has more than {MOST_EVENTS} different events")
    # A number grows from its space, digit by digit: no other merge exists.
    beginnings = {number[:size] for number in numbers for size in range(1, len(number) + 1)}
    ordered = sorted(beginnings, key=lambda text: (len(text), text))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [END_OF_TEXT, *alphabet, *(SPACE + text for text in ordered)]
    merges = [(SPACE + text[:-1], text[-1]) for text in ordered]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.add_special_tokens([END_OF_TEXT])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
