"""Replies of /generate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.reply_types import Many, Probability, QueueTime, Rows, State

FinishReason = Literal["length", "eos_token", "stop_sequence", "cancelled", "deadline", "error"]
Latents = Annotated[
    Many[Rows] | None,
    Field(description="Latents of the last layer for each token, [tokens, heads, 2 D]; null unless requested."),
]

CONFIDENCE = "Calibrated probability that this is the correct next token"
TOKEN_ID = "Id of the token in the vocabulary of the model."
LOGPROB = "Log probability under the model, before the temperature and sampling filters are applied"
TokenId = Annotated[int, says(TOKEN_ID)]
TextAlone = Annotated[str, says("Text of this token alone.")]
Logprob = Annotated[float, says(f"{LOGPROB}.")]
IsSpecial = Annotated[bool, says("Whether this is a special token without text.")]
DETAILS = "Details of the text; null unless requested."


@dataclass(frozen=True, slots=True)
class Token(Reply):
    """A generated token. The texts of all tokens together are the generated text."""

    id: TokenId
    text: Annotated[
        str,
        says("Text that this token adds. It is empty while a character or a possible stop string is incomplete."),
    ]
    logprob: Logprob
    special: IsSpecial
    confidence: Annotated[Probability, says(f"{CONFIDENCE}.")]


@dataclass(frozen=True, slots=True)
class TopToken(Reply):
    """One of the most probable tokens at a position."""

    id: TokenId
    text: TextAlone
    logprob: Logprob
    special: IsSpecial


@dataclass(frozen=True, slots=True)
class PromptToken(Reply):
    """A token of the prompt."""

    id: TokenId
    text: TextAlone
    logprob: Annotated[float | None, says(LOGPROB + "; null for the first token, which has no context.")]
    special: IsSpecial


@dataclass(frozen=True)
class GenerateTimings(Reply):
    """Durations of the phases of a request in milliseconds, and the generation speed."""

    queue_ms: QueueTime
    prefill_ms: Annotated[float, says("Time to process the prompt in milliseconds.")]
    decode_ms: Annotated[float, says("Time to generate the tokens in milliseconds.")]
    tokens_per_second: Annotated[float, says("Number of generated tokens per second of `decode_ms`.")]


@dataclass
class StreamDetails(Reply):
    """Details of a streamed continuation, whose tokens were sent in earlier events."""

    finish_reason: Annotated[FinishReason, says("Reason why the text ended.")]
    generated_tokens: Annotated[int, says("Number of generated tokens.")]
    input_length: Annotated[int, says("Number of tokens in the prompt.")]
    seed: Annotated[int, says("Random seed. The same request with this seed returns the same text.")]
    timings: Annotated[GenerateTimings, says("Durations of the phases of the request.")]


@dataclass
class GenerateDetails(StreamDetails):
    """Details of a continuation, including its tokens."""

    prefill: Annotated[Many[PromptToken], says("Tokens of the prompt; empty unless `decoder_input_details` is set.")]
    tokens: Annotated[Many[Token], says("Generated tokens, in order.")]
    top_tokens: Annotated[
        Many[Many[TopToken]] | None, says("Most probable tokens at each position; null unless requested.")
    ]
    latents: Latents


@dataclass
class Continuation(Reply):
    """One of the `n` continuations of a prompt."""

    generated_text: Annotated[str, says("Generated text, after the prompt if `return_full_text` is set.")]
    details: Annotated[GenerateDetails | None, says(DETAILS)]


@dataclass
class GenerateReply(Continuation):
    """Reply with the generated text that continues the prompt."""

    continuations: Annotated[
        list[Continuation] | None, says("All continuations, including the first one; null unless n is greater than 1.")
    ]
    state: State


@dataclass
class StreamContinuation(Reply):
    """One of the `n` streamed continuations of a prompt."""

    generated_text: Annotated[str, says("Complete generated text.")]
    details: Annotated[StreamDetails, says("Details of the text, without the tokens.")]


@dataclass
class GenerateEvent(Reply):
    """Event of a streamed reply. Only the last event contains `generated_text` and `details`."""

    index: Annotated[int, says("Position of the token in its continuation, counted from 1.")]
    sample: Annotated[int, says("Index of the continuation, counted from 0.")]
    token: Annotated[Token | None, says("Generated token; null only if the deadline passed before the first token.")]
    top_tokens: Annotated[Many[TopToken] | None, says("Most probable tokens; null unless requested.")]
    latent: Annotated[Rows | None, says("Latent of the last layer for the token, [heads, 2 D]; null unless requested.")]
    generated_text: Annotated[str | None, says("Complete generated text; null except in the last event.")]
    details: Annotated[StreamDetails | None, says("Details of the text; null except in the last event.")]
    continuations: Annotated[
        list[StreamContinuation] | None, says("All continuations; null unless n is greater than 1, in the last event.")
    ]
    state: State
