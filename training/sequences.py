"""Read sequences of events as a corpus. Each line of a file is a sequence of integers.

The token of an event is its number after a space, as in " 5 22 9". A sequence begins after an end-of-text token and
ends with one. The tokenizer is a byte-level BPE. Its tokens are the bytes, and the numbers of the training split and
their prefixes. Any text can therefore be scored, and a number that does not occur in the training data becomes several
rare tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rfa.runtime.text.sequences import read_sequences

END_OF_TEXT = "<|endoftext|>"
SPACE = "Ġ"  # a space in byte-level BPE
MOST_EVENTS = 65_536
_CHARACTERS = frozenset(b"0123456789 \t\r\n,;")


def are_sequences(files: list[Path]) -> bool:
    """Return whether the files contain only integers and separators."""
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
    """Yield the sequences of a file as texts for the tokenizer.

    Raises:
        ValueError: If a number has more than nine digits. The message names the file and line.
    """
    with file.open(encoding="ascii") as stream:
        for _, events in read_sequences(stream, str(file)):
            yield "".join(f" {event}" for event in events)


def event_tokenizer(files: list[Path]) -> Tokenizer:
    """Return a tokenizer for the numbers in files.

    Raises:
        ValueError: If there are more than `MOST_EVENTS` different numbers.
    """
    numbers: set[str] = set()
    for file in files:
        for line in lines_of(file):
            numbers.update(line.split())
        if len(numbers) > MOST_EVENTS:
            raise ValueError(f"{file.parent} contains more than {MOST_EVENTS} different events; merge rare events")
    # The merges append one digit at a time to the space and the digits before it. There are no other merges.
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
