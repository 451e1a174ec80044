"""A prompt as tokens, piece by piece from its end: the tokens are those of the whole, the work is that of what is kept.

A tokeniser takes a second for 1.9 MB, and 150 bytes a token. Here it is never given more than `LONGEST_PIECE`
characters, between which other work has its turn, and nothing of a text once as many tokens are there as are wanted.
"""

from __future__ import annotations

from typing import Final

from rfa.runtime.text.incremental import Vocabulary
from rfa.service.engine.text.options import GenerateOptions, PromptLimits
from rfa.service.errors import InvalidRequest

USUAL_PIECE: Final = 2_048  # characters: about a millisecond
LONGEST_PIECE: Final = 8_192  # where there is no better place to cut: some 20 ms at worst


class PromptReader:
    """Reads the last tokens of a prompt.

    Args:
        text: the prompt.
        most: tokens that are wanted, from the end; one more than a limit tells whether that was kept.
    """

    def __init__(self, vocabulary: Vocabulary, text: str, most: int) -> None:
        self._vocabulary = vocabulary
        self._text = text
        self._most = most
        self._end = len(text)
        self._count = 0
        self._pieces: list[list[int]] = []

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to read."""
        return self._end == 0 or self._count >= self._most

    def read(self) -> None:
        """Tokenise one more piece.

        Raises:
            InvalidRequest: it has no place where it could be cut (`word_too_long`).
        """
        begin = self._begin()
        piece = self._vocabulary.encode(self._text[begin : self._end])
        self._pieces.append(piece)
        self._count += len(piece)
        self._end = begin

    @property
    def at_most(self) -> int:
        """Tokens that it can come to: of what is not read yet, one a byte."""
        return min(self._count + len(self._text[: self._end].encode()), self._most)

    @property
    def tokens(self) -> list[int]:
        """The last `most` tokens, as far as they were read."""
        found = [token for piece in reversed(self._pieces) for token in piece]
        return found[max(0, len(found) - self._most) :]

    def _begin(self) -> int:
        """Where the piece begins that ends where the last one began."""
        end = self._end
        if end <= USUAL_PIECE:
            return 0
        cuts = self._vocabulary.cuts
        usual, earliest = end - USUAL_PIECE, end - LONGEST_PIECE
        place = cuts.first(self._text, usual, end) or cuts.last(self._text, max(1, earliest), usual)
        if place is None and earliest > 0:
            raise InvalidRequest(
                f"inputs must not have {LONGEST_PIECE} characters in a row that form one word.",
                param="inputs",
                code="word_too_long",
            )
        return place or 0


def attention_capacity(
    vocabulary: Vocabulary, options: GenerateOptions, limits: PromptLimits
) -> tuple[PromptReader | None, int]:
    """The reader of a prompt that is text, and the most tokens that an attention context of it can come to.

    Those of a short prompt are counted at once: where each byte is taken for a token, a budget of memory holds a few of
    the contexts that fit into it.
    """
    prompt, reader = options.prompt, None
    count = len(prompt)
    if isinstance(prompt, str):
        reader = PromptReader(vocabulary, prompt, limits.max_prompt_tokens(options))
        if len(prompt) <= USUAL_PIECE:
            reader.read()
        count = reader.at_most
    # One more: what a state has left to be read, or the end of a text that is the whole of an empty prompt.
    capacity = min(count, options.truncate or count) + 1 + options.max_new_tokens
    return reader, min(capacity, limits.attention_tokens)
