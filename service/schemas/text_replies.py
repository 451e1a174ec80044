"""Replies of /generate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.reply_types import Many, Probability, Rows, State

FinishReason = Literal["length", "eos_token", "stop_sequence", "cancelled", "deadline", "error"]
Latents = Annotated[
    Many[Rows] | None, Field(description="latents of the tokens, [tokens, heads, 2 D]; null unless requested")
]

CONFIDENCE = "calibrated probability that this is the right next token"
TOKEN_ID = "id in the model's vocabulary"
LOGPROB = "log probability by the model, before temperature and filters"
SPECIAL = "whether it is a special token without text"
DETAILS = "details; null unless requested"


@dataclass(frozen=True, slots=True)
class Token(Reply):
    """A generated token. The texts of all tokens, joined, are `generated_text`."""

    id: Annotated[int, says(TOKEN_ID)]
    text: Annotated[str, says("text that this token completed; empty while a character or stop is incomplete")]
    logprob: Annotated[float, says(LOGPROB)]
    special: Annotated[bool, says(SPECIAL)]
    confidence: Annotated[Probability, says(CONFIDENCE)]


@dataclass(frozen=True, slots=True)
class TopToken(Reply):
    """One of the most probable tokens at a position."""

    id: Annotated[int, says(TOKEN_ID)]
    text: Annotated[str, says("the token's own characters")]
    logprob: Annotated[float, says(LOGPROB)]
    special: Annotated[bool, says(SPECIAL)]


@dataclass(frozen=True, slots=True)
class PromptToken(Reply):
    """A token of the prompt."""

    id: Annotated[int, says(TOKEN_ID)]
    text: Annotated[str, says("the token's own characters")]
    logprob: Annotated[float | None, says(LOGPROB + "; null for the first, before which nothing was read")]
    special: Annotated[bool, says(SPECIAL)]


@dataclass(frozen=True)
class GenerateTimings(Reply):
    """Durations in milliseconds."""

    queue_ms: Annotated[float, says("time in the queue")]
    prefill_ms: Annotated[float, says("duration of reading the prompt")]
    decode_ms: Annotated[float, says("from the first token to the last")]
    tokens_per_second: Annotated[float, says("while decoding")]


@dataclass
class StreamDetails(Reply):
    """Details of a streamed continuation, whose tokens were sent before."""

    finish_reason: Annotated[FinishReason, says("why the text ends")]
    generated_tokens: Annotated[int, says("number of generated tokens")]
    input_length: Annotated[int, says("number of prompt tokens")]
    seed: Annotated[int, says("repeats this text for the same request")]
    timings: Annotated[GenerateTimings, says("durations")]


@dataclass
class GenerateDetails(StreamDetails):
    """Details of a continuation."""

    prefill: Annotated[Many[PromptToken], says("tokens of the prompt, if requested by `decoder_input_details`")]
    tokens: Annotated[Many[Token], says("generated tokens, in order")]
    top_tokens: Annotated[Many[Many[TopToken]] | None, says("most probable tokens by position; null unless requested")]
    latents: Latents


@dataclass
class Continuation(Reply):
    """One of `n` continuations."""

    generated_text: Annotated[str, says("the new text, after the prompt if `return_full_text`")]
    details: Annotated[GenerateDetails | None, says(DETAILS)]


@dataclass
class GenerateReply(Continuation):
    """A continuation of the prompt."""

    continuations: Annotated[list[Continuation] | None, says("all continuations, this one first, if n > 1")]
    state: State


@dataclass
class StreamContinuation(Reply):
    """One of `n` streamed continuations."""

    generated_text: Annotated[str, says("the whole new text")]
    details: Annotated[StreamDetails, says("details, without the tokens")]


@dataclass
class GenerateEvent(Reply):
    """One event of the stream. Only the last one has `generated_text` and `details`."""

    index: Annotated[int, says("position of the token in its continuation, from 1")]
    sample: Annotated[int, says("index of the continuation, from 0")]
    token: Annotated[Token | None, says("null only if the deadline passed before the first token")]
    top_tokens: Annotated[Many[TopToken] | None, says("most probable tokens; null unless requested")]
    latent: Annotated[Rows | None, says("latent of the token, [heads, 2 D]; null unless requested")]
    generated_text: Annotated[str | None, says("the whole new text, in the last event")]
    details: Annotated[StreamDetails | None, says("details, in the last event")]
    continuations: Annotated[list[StreamContinuation] | None, says("all continuations, in the last event, if n > 1")]
    state: State
