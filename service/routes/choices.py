"""Build the choices in replies of /v1/completions, with their text, tokens and finish reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rfa.service.encoding import Long
from rfa.service.engine.text.generated import FinishedText, TokenEvent, latents_of
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.scored import ScoredPrompt
from rfa.service.routes.token_texts import TextOffsets, token_name
from rfa.service.schemas.openai import (
    CompletionChoice,
    CompletionChunkChoice,
    CompletionLogprobs,
    CompletionRequest,
    PromptLogprob,
)
from rfa.service.schemas.text_replies import FinishReason

# All other reasons are limits on tokens or time. OpenAI's name for them is "length".
OPENAI_REASONS: dict[str, Literal["stop", "length"]] = {"eos_token": "stop", "stop_sequence": "stop"}
# A token of a choice: the position of a prompt token, or the event of a generated token.
_Listed = int | TokenEvent


@dataclass
class ChoiceWriter:
    """Builds one choice, as a whole or in chunks. Chunks must be encoded in order and only once, because the tokens are
    decoded during the encoding.

    Attributes:
        index: Position of the choice in the reply.
        job: Job that generates the text.
        body: Validated request.
    """

    index: int
    job: GenerateJob
    body: CompletionRequest

    def __post_init__(self) -> None:
        self._has_begun = False
        self._vocabulary = self.job.model.vocabulary

    def whole(self, text: FinishedText, state: str | None) -> CompletionChoice:
        """Return the complete choice."""
        scored = None if self.body.prompt_logprobs is None else self.job.scored_prompt
        prompt = scored and Long(range(len(scored)), lambda place: self._prompt_logprob(scored, place), numbers=16)
        return CompletionChoice(
            **self._fields(text.events, text.finish_reason), prompt_logprobs=prompt or None, state=state
        )

    def piece(
        self, events: Sequence[TokenEvent], finish: FinishReason | None, state: str | None = None
    ) -> CompletionChunkChoice:
        """Return the next chunk with the tokens of `events`. Only the last chunk has a reason `finish`."""
        return CompletionChunkChoice(**self._fields(events, finish), state=state)

    def _fields(self, events: Sequence[TokenEvent], finish: FinishReason | None) -> dict[str, Any]:
        prefix, scored = self._prompt_part()
        return {
            "index": self.index,
            "text": prefix + "".join(event.token.text for event in events),
            "logprobs": None if self.body.logprobs is None else self._logprobs(scored, events),
            "finish_reason": None if finish is None else OPENAI_REASONS.get(finish, "length"),
            "ended_by": finish,
            "seed": self.job.options.seed,
            "latents": latents_of(events) if self.body.return_latents else None,
        }

    def _prompt_part(self) -> tuple[str, ScoredPrompt | None]:
        """Return the text and the scores of the prompt for the first chunk, if `echo` is set. Otherwise, return an
        empty text and None."""
        if self._has_begun:
            return "", None
        self._has_begun = True
        options = self.job.options
        scored = self.job.scored_prompt if self.body.echo and self.body.logprobs is not None else None
        prefix = "" if not self.body.echo else self.job.prompt_text if scored is None else scored.text
        left = options.resumed.undecoded if options.resumed and not options.prompt else b""
        self._prompt_offsets, self._offsets = TextOffsets(), TextOffsets(len(prefix), left)
        return prefix, scored

    def _logprobs(self, scored: ScoredPrompt | None, events: Sequence[TokenEvent]) -> CompletionLogprobs:
        listed: list[_Listed] = [*range(0 if scored is None else len(scored)), *events]

        def token(one: _Listed) -> int:
            return one.token.id if isinstance(one, TokenEvent) else scored.tokens[one]  # type: ignore[union-attr]

        def offset(one: _Listed) -> int:
            if isinstance(one, TokenEvent):
                return self._offsets.next(self._vocabulary.bytes_of(one.token.id))
            return self._prompt_offsets.next(scored.bytes_of(one))  # type: ignore[union-attr]

        def logprob(one: _Listed) -> float | None:
            return one.token.logprob if isinstance(one, TokenEvent) else _score(scored, one, "log_probability")

        def confidence(one: _Listed) -> float | None:
            if isinstance(one, TokenEvent):
                return one.token.confidence
            calibrated = _score(scored, one, "calibrated")
            confidences = self.job.model.confidence(self.job.mode)
            return None if calibrated is None else float(confidences(calibrated))

        def alternatives(one: _Listed) -> dict[str, float] | None:
            own = logprob(one)
            if own is None:
                return None
            top = _top(one, scored)
            return {**{self._name(index): number for index, number in top}, self._name(token(one)): own}

        return CompletionLogprobs(
            tokens=Long(listed, lambda one: self._name(token(one))),
            token_logprobs=Long(listed, logprob),
            top_logprobs=Long(listed, alternatives, numbers=16),
            text_offset=Long(listed, offset),
            token_ids=Long(listed, token),
            confidence=Long(listed, confidence),
        )

    def _prompt_logprob(self, scored: ScoredPrompt, position: int) -> dict[str, PromptLogprob] | None:
        row = scored.row(position)
        if row is None or scored.scores is None:
            return None
        scores, label, token = scored.scores, self._vocabulary.label, scored.tokens[position]
        own = PromptLogprob(float(scores.log_probability[row]), int(scores.rank[row]), label(token))
        top = enumerate(_top(position, scored), 1)
        best = {str(index): PromptLogprob(number, rank, label(index)) for rank, (index, number) in top}
        return {**best, str(token): own}

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self.body.return_tokens_as_token_ids else token_name(self._vocabulary, token)


def _score(scored: ScoredPrompt | None, position: int, column: str) -> float | None:
    """Return a score of the prompt token at a position. Return None for the first token, which has no scores."""
    row = None if scored is None else scored.row(position)
    return None if row is None else float(getattr(scored.scores, column)[row])  # type: ignore[union-attr]


def _top(one: _Listed, scored: ScoredPrompt | None) -> list[tuple[int, float]]:
    """Return the most probable tokens at the position of a token, and their log probabilities."""
    if isinstance(one, TokenEvent):
        return [(top.id, top.logprob) for top in one.top_tokens or ()]
    row = None if scored is None else scored.row(one)
    if scored is None or scored.scores is None or row is None:
        return []
    scores = scored.scores
    return list(zip(scores.top_tokens[row].tolist(), scores.top_log_probabilities[row].tolist(), strict=True))
