"""Scores of the tokens of a prompt, by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rfa.runtime.text.incremental import Vocabulary
from rfa.runtime.text.scores import TokenScores


@dataclass(frozen=True)
class ScoredPrompt:
    """Tokens of a prompt with their scores.

    Args:
        tokens: tokens of the whole prompt.
        scores: scores of its tokens in order, as far as they were read. None if there are none.
        has_first: whether the first token has no score, because it has no context.
        is_text: whether special tokens are part of the text.
    """

    tokens: Sequence[int]
    scores: TokenScores | None
    vocabulary: Vocabulary
    has_first: bool
    is_text: bool

    def __len__(self) -> int:
        scored = 0 if self.scores is None else len(self.scores.tokens)
        return min(len(self.tokens), scored + self.has_first)

    def row(self, position: int) -> int | None:
        """Return the row of a token in `scores`, or None for the first token."""
        return position - self.has_first if position >= self.has_first else None

    def bytes_of(self, position: int) -> bytes:
        """Return the bytes of a token in the text of the prompt."""
        token = self.tokens[position]
        if self.is_text and self.vocabulary.is_special(token):
            return self.vocabulary.label(token).encode()
        return self.vocabulary.bytes_of(token)

    @property
    def text(self) -> str:
        """Text of all tokens. Invalid bytes are replaced."""
        return b"".join(map(self.bytes_of, range(len(self.tokens)))).decode(errors="replace")
