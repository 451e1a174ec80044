"""Compute the names of tokens, and the positions of tokens in a text."""

from __future__ import annotations

import codecs

from rfa.runtime.text.incremental import Vocabulary


def token_name(vocabulary: Vocabulary, token: int) -> str:
    """Return a unique name of a token. This is its text or, if its bytes are not complete characters, the bytes in the
    notation of OpenAI."""
    if vocabulary.is_special(token):
        return vocabulary.label(token)
    data = vocabulary.bytes_of(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class TextOffsets:
    """Computes the index of the first character of each token in a text. Invalid bytes count as replacement characters.

    Args:
        start: Index of the first character of the text.
        undecoded: Bytes before the text that are the start of a character.
    """

    def __init__(self, start: int = 0, undecoded: bytes = b"") -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.setstate((undecoded, 0))
        self._characters = start

    def next(self, data: bytes) -> int:
        """Return the index of the first character of the next token, given the bytes of the token."""
        before = self._decoder.getstate()[0]
        # If the token does not continue the incomplete character, this character is replaced, and the token begins
        # after it.
        offset = self._characters + (len(before) > 0 and not _continues(before, data[:1]))
        self._characters += len(self._decoder.decode(data))
        return offset


def _continues(before: bytes, byte: bytes) -> bool:
    """Return whether a byte continues or completes the character that starts in `before`."""
    try:
        (before + byte).decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True
