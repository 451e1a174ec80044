"""Choices of /v1/completions: text, tokens and finish reason, complete or in pieces."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rfa.runtime.text.incremental import Vocabulary
from rfa.service.encoding import Long
from rfa.service.engine.text.generated import FinishedText, TokenEvent, latents_of
from rfa.service.schemas.openai import CompletionChoice, CompletionChunkChoice, CompletionLogprobs
from rfa.service.schemas.text_replies import FinishReason

# Every other reason is a limit of tokens or time: "length".
_OPENAI_REASONS = {"eos_token": "stop", "stop_sequence": "stop"}


@dataclass
class ChoiceWriter:
    """Makes one choice, complete or in pieces. Each must be encoded once and in order, as tokens are decoded then.

    Attributes:
        prefix: text before the continuation, part of the first piece.
        with_logprobs, with_latents: include the tokens, and their latents.
    """

    index: int
    seed: int
    vocabulary: Vocabulary
    prefix: str
    with_logprobs: bool
    with_latents: bool

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._characters = 0

    def whole(self, text: FinishedText) -> CompletionChoice:
        """The complete choice."""
        return CompletionChoice(**self._fields(text.events, text.finish_reason))

    def piece(self, events: Sequence[TokenEvent], finish: FinishReason | None) -> CompletionChunkChoice:
        """The next piece; `finish` only in the last one."""
        return CompletionChunkChoice(**self._fields(events, finish))

    def _fields(self, events: Sequence[TokenEvent], finish: FinishReason | None) -> dict[str, Any]:
        prefix, self.prefix = self.prefix, ""
        return {
            "index": self.index,
            "text": prefix + "".join(event.token.text for event in events),
            "logprobs": self._logprobs(events) if self.with_logprobs else None,
            "finish_reason": None if finish is None else _OPENAI_REASONS.get(finish, "length"),
            "ended_by": finish,
            "seed": self.seed,
            "latents": latents_of(events) if self.with_latents else None,
        }

    def _logprobs(self, events: Sequence[TokenEvent]) -> CompletionLogprobs:
        return CompletionLogprobs(
            tokens=Long(events, lambda event: self._name(event.token.id)),
            token_logprobs=Long(events, lambda event: event.token.logprob),
            top_logprobs=Long(events, self._alternatives, numbers=16),
            text_offset=Long(events, lambda event: self._offset(event.token.id)),
            token_ids=Long(events, lambda event: event.token.id),
            confidence=Long(events, lambda event: event.token.confidence),
        )

    def _alternatives(self, event: TokenEvent) -> dict[str, float]:
        named = {self._name(token.id): token.logprob for token in event.top_tokens or ()}
        return {**named, self._name(event.token.id): event.token.logprob}

    def _name(self, token: int) -> str:
        """A unique name of a token: its text, or if that is incomplete its bytes in OpenAI's notation."""
        if self.vocabulary.is_special(token):
            return self.vocabulary.label(token)
        data = self.vocabulary.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _offset(self, token: int) -> int:
        """Complete characters before this token."""
        before = self._characters
        self._characters += len(self._decoder.decode(self.vocabulary.bytes_of(token)))
        return before
