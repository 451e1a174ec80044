"""Convert tokens to text one at a time, without incomplete characters or parts of a stop sequence.

A byte-level BPE token is a sequence of bytes, not of characters. Bytes are collected until they form a character.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence

from tokenizers import Tokenizer

from rfa.runtime.bundle.tokenizer_document import byte_of_character
from rfa.runtime.text.cuts import Cuts, check_splitting


class Vocabulary:
    """Converts between text, bytes and tokens of a byte-level BPE tokenizer.

    Args:
        tokenizer_json: Content of the bundle's tokenizer.json.

    Raises:
        ValueError: If the tokenizer is not byte-level, or does not split texts as GPT-2 does.
    """

    def __init__(self, tokenizer_json: str) -> None:
        document = json.loads(tokenizer_json)
        decoder = document.get("decoder") or {}
        if decoder.get("type") != "ByteLevel":
            raise ValueError(f"the tokenizer must have a ByteLevel decoder, got {decoder.get('type')}")
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
        """Special token that ends a text and stops generation. None if the vocabulary has no special token."""
        return min(self._special, default=None)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text. For a text of 2 MB, this takes a second and 300 MB of memory. `PromptReader`
        tokenises a long text in parts."""
        return list(self._tokenizer.encode(text).ids)

    def is_special(self, token: int) -> bool:
        """Return whether a token is special. Special tokens have no text."""
        return token in self._special

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        return b"" if token in self._special else self._bytes[token]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a sequence of tokens. Incomplete characters are replaced."""
        return b"".join(map(self.bytes_of, tokens)).decode(errors="replace")

    def label(self, token: int) -> str:
        """Return a text that displays a token. It is the name of a special token, or the text of another token with
        incomplete characters replaced."""
        return self._names[token] if token in self._special else self._bytes[token].decode(errors="replace")


class TextStream:
    """Text of a growing sequence of tokens. It ends before the first stop sequence.

    Text that may be the start of a stop sequence is retained until later tokens decide this. Bytes that do not yet form
    a character are retained as well. The released text does not depend on the boundaries of tokens.

    Args:
        vocabulary: Vocabulary that provides the bytes of tokens.
        stops: Stop sequences.
        undecoded: Bytes of an incomplete character at the end of an earlier request.
        tail: Text that an earlier request released although a stop sequence may start in it.
    """

    def __init__(
        self, vocabulary: Vocabulary, stops: Sequence[str] = (), undecoded: bytes = b"", tail: str = ""
    ) -> None:
        self._vocabulary = vocabulary
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.setstate((undecoded, 0))
        self._held = tail
        self._released = len(tail)  # number of characters of `_held` that were already released
        self.stopped = False

    @property
    def undecoded(self) -> bytes:
        """Bytes at the end of the text that do not yet form a character."""
        return self._decoder.getstate()[0]

    @property
    def held(self) -> str:
        """Text at the end that may be the start of a stop sequence."""
        return self._held

    def push(self, token: int) -> str:
        """Add a token, and return the text that became final. If a stop sequence is complete, the text ends
        before it."""
        return self._add(self._decoder.decode(self._vocabulary.bytes_of(token)))

    def flush(self) -> str:
        """End the sequence, and return the retained text. Bytes that do not form a character are dropped."""
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
        """Remove the first `count` characters from the unreleased text. Return the part of them that was not released
        before."""
        released, self._held = self._held[self._released : count], self._held[count:]
        self._released = max(0, self._released - count)
        return released

    def _longest_stop_prefix(self) -> int:
        """Return the length of the longest suffix of the unreleased text that is a prefix of a stop sequence."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if self._held.endswith(tuple(stop[:length] for stop in self._stops if len(stop) > length)):
                return length
        return 0
