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
        tokens: Tokens of the prompt.
        scores: Scores of the tokens that were processed, in order. None if there are none.
        vocabulary: Vocabulary of the model.
        has_first: Whether `tokens` begins with the first token of a text, which has no score.
        is_text: Whether the prompt was sent as text. Special tokens are then part of the text.
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
        """Return the row in `scores` of the token at a position, or None for the first token of a text."""
        return position - self.has_first if position >= self.has_first else None

    def bytes_of(self, position: int) -> bytes:
        """Return the bytes in the text of the prompt that the token at a position represents."""
        token = self.tokens[position]
        if self.is_text and self.vocabulary.is_special(token):
            return self.vocabulary.label(token).encode()
        return self.vocabulary.bytes_of(token)

    @property
    def text(self) -> str:
        """Text of all tokens. Bytes that are not UTF-8 are replaced."""
        return b"".join(map(self.bytes_of, range(len(self.tokens)))).decode(errors="replace")
