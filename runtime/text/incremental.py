"""From tokens to text, one token at a time, without broken characters or parts of a stop sequence.

A byte-level BPE token is a run of bytes, not of characters: bytes are collected until they form a character.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence

from tokenizers import Tokenizer

from rfa.runtime.bundle.tokenizer_document import byte_of_character
from rfa.runtime.text.cuts import Cuts, check_splitting


class Vocabulary:
    """Tokens of a byte-level BPE tokenizer as text, as bytes, and back.

    Args:
        tokenizer_json: content of the bundle's tokenizer.json.

    Raises:
        ValueError: for a tokenizer that is not byte-level, or splits texts otherwise than GPT-2's.
    """

    def __init__(self, tokenizer_json: str) -> None:
        document = json.loads(tokenizer_json)
        decoder = document.get("decoder") or {}
        if decoder.get("type") != "ByteLevel":
            raise ValueError(f"the tokenizer must have a ByteLevel decoder, has {decoder.get('type')}")
        check_splitting(document)
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token_id for token_id, token in added.items() if token.special}
        self._names = [self._tokenizer.id_to_token(index) or "" for index in range(len(self))]
        byte_of = byte_of_character()
        self._bytes = [
            name.encode() if index in added else bytes(byte_of[character] for character in name)
            for index, name in enumerate(self._names)
        ]
        self.cuts = Cuts(
            [token for index, token in enumerate(self._bytes) if index not in added],
            [token.content for token in added.values()],
        )
        self.longest_token = max(map(len, self._bytes))  # in bytes

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def end_of_text(self) -> int | None:
        """The special token that ends a text; generation stops at it."""
        return min(self._special, default=None)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Takes a second and 300 MB for 2 MB: `PromptReader` is for prompts of any length."""
        return list(self._tokenizer.encode(text).ids)

    def is_special(self, token: int) -> bool:
        """Special tokens have no text."""
        return token in self._special

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to the text."""
        return b"" if token in self._special else self._bytes[token]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a token sequence, broken characters replaced."""
        return b"".join(map(self.bytes_of, tokens)).decode(errors="replace")

    def label(self, token: int) -> str:
        """A token on its own, for display: its name if special, broken characters replaced."""
        return self._names[token] if token in self._special else self._bytes[token].decode(errors="replace")


class TextStream:
    """Text of a growing token sequence, cut before the first stop sequence.

    Text that may become part of a stop sequence, and bytes that do not form a character yet, are held back. The
    released text does not depend on token borders.

    Args:
        vocabulary: bytes of the tokens.
        stops: stop sequences.
        undecoded: bytes of a character that an earlier request left unfinished.
        tail: text that an earlier request released although a stop sequence may begin in it.
    """

    def __init__(
        self, vocabulary: Vocabulary, stops: Sequence[str] = (), undecoded: bytes = b"", tail: str = ""
    ) -> None:
        self._vocabulary = vocabulary
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.setstate((undecoded, 0))
        self._held = tail
        self._released = len(tail)  # characters at the start of the held text that were released before
        self.stopped = False

    @property
    def undecoded(self) -> bytes:
        """Bytes at the end that do not form a character yet."""
        return self._decoder.getstate()[0]

    @property
    def held(self) -> str:
        """Text at the end that may begin a stop sequence."""
        return self._held

    def push(self, token: int) -> str:
        """Add a token; returns the text that became final, up to a stop sequence if one is complete."""
        return self._add(self._decoder.decode(self._vocabulary.bytes_of(token)))

    def flush(self) -> str:
        """End the sequence; returns the held text. Bytes that form no character are dropped."""
        return self._give(len(self._held))

    def _add(self, text: str) -> str:
        self._held += text
        matches = [(start + len(stop), start) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if matches:
            self.stopped = True
            released = self._give(min(matches)[1])
            self._held = ""
            return released
        return self._give(len(self._held) - self._longest_stop_prefix())

    def _give(self, count: int) -> str:
        """Drop the first `count` held characters; returns those that were not released before."""
        released, self._held = self._held[self._released : count], self._held[count:]
        self._released = max(0, self._released - count)
        return released

    def _longest_stop_prefix(self) -> int:
        """Length of the longest end of the held text that begins some stop sequence."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if self._held.endswith(tuple(stop[:length] for stop in self._stops if len(stop) > length)):
                return length
        return 0
