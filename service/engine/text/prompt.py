"""Tokenise a prompt in parts, starting at its end. The tokens are identical to those of the whole text.

The tokeniser needs 1 s for 1.9 MB of text, and 150 bytes per token. Therefore, it processes at most `LONGEST_PIECE`
characters at a time, with other work in between, and stops when there are enough tokens.
"""

from __future__ import annotations

from typing import Final

from rfa.runtime.text.incremental import Vocabulary
from rfa.service.engine.text.options import GenerateOptions, PromptLimits
from rfa.service.errors import InvalidRequest

USUAL_PIECE: Final = 2_048  # characters, which take about a millisecond
LONGEST_PIECE: Final = 8_192  # characters, used if the text cannot be cut in a shorter piece; takes up to 20 ms


class PromptReader:
    """Reads the last tokens of a prompt.

    Args:
        most: Number of tokens after which reading stops. To detect prompts that are too long, pass the limit plus one.
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
        """Whether the start of the prompt is reached, or enough tokens have been read."""
        return self._end == 0 or self._count >= self._most

    def read(self, param: str = "inputs") -> None:
        """Tokenise one more part of the prompt.

        Args:
            param: Name of the request field for error messages.

        Raises:
            InvalidRequest: If the text contains a very long word, so that it cannot be cut (`word_too_long`).
        """
        begin = self._begin(param)
        piece = self._vocabulary.encode(self._text[begin : self._end])
        self._pieces.append(piece)
        self._count += len(piece)
        self._end = begin

    @property
    def at_most(self) -> int:
        """Upper bound on the number of tokens. Text that has not been tokenised counts as one token per byte."""
        return min(self._count + len(self._text[: self._end].encode()), self._most)

    @property
    def tokens(self) -> list[int]:
        """Tokens that have been read so far, at most the last `most`."""
        found = [token for piece in reversed(self._pieces) for token in piece]
        return found[max(0, len(found) - self._most) :]

    def _begin(self, param: str) -> int:
        """Return the position in the text at which the next part begins."""
        end = self._end
        if end <= USUAL_PIECE:
            return 0
        cuts = self._vocabulary.cuts
        usual, earliest = end - USUAL_PIECE, end - LONGEST_PIECE
        place = cuts.first(self._text, usual, end) or cuts.last(self._text, max(1, earliest), usual)
        if place is None and earliest > 0:
            raise InvalidRequest(
                f"{param} must not contain a word of {LONGEST_PIECE} or more characters.",
                param=param,
                code="word_too_long",
            )
        return place or 0


def attention_capacity(
    vocabulary: Vocabulary, options: GenerateOptions, limits: PromptLimits
) -> tuple[PromptReader | None, int]:
    """Return a reader of the prompt if the prompt is a text, and an upper bound on the number of tokens in its context
    in attention mode.

    Short prompts are tokenised immediately, because a bound of one token per byte would reserve too much memory.
    """
    prompt, reader = options.prompt, None
    count = len(prompt)
    if isinstance(prompt, str):
        reader = PromptReader(vocabulary, prompt, limits.max_prompt_tokens(options))
        if len(prompt) <= USUAL_PIECE:
            reader.read(options.names.prompt)
        count = reader.at_most
    # One more token: the pending token of a state, or the end-of-text token of an empty prompt.
    capacity = min(count, options.truncate or count) + 1 + options.max_new_tokens
    return reader, min(capacity, limits.attention_tokens)
