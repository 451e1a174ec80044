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

CONFIDENCE = "calibrated probability that this is the correct next token"
TOKEN_ID = "id of the token in the vocabulary of the model"
LOGPROB = "log probability under the model, before the temperature and sampling filters are applied"
TokenId = Annotated[int, says(TOKEN_ID)]
TextAlone = Annotated[str, says("text of this token alone")]
Logprob = Annotated[float, says(LOGPROB)]
IsSpecial = Annotated[bool, says("whether this is a special token without text")]
DETAILS = "details of the text; null unless requested"


@dataclass(frozen=True, slots=True)
class Token(Reply):
    """A generated token. The concatenated texts of all tokens are `generated_text`."""

    id: TokenId
    text: Annotated[
        str,
        says("text that this token completes. It is empty while a character or a possible stop string is incomplete"),
    ]
    logprob: Logprob
    special: IsSpecial
    confidence: Annotated[Probability, says(CONFIDENCE)]


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
    logprob: Annotated[float | None, says(LOGPROB + "; null for the first token, which has no context")]
    special: IsSpecial


@dataclass(frozen=True)
class GenerateTimings(Reply):
    """Durations in milliseconds."""

    queue_ms: Annotated[float, says("time in the queue")]
    prefill_ms: Annotated[float, says("time to process the prompt")]
    decode_ms: Annotated[float, says("time from the first token to the last")]
    tokens_per_second: Annotated[float, says("generated tokens per second, not counting the time for the prompt")]


@dataclass
class StreamDetails(Reply):
    """Details of a streamed continuation. Its tokens were sent before."""

    finish_reason: Annotated[FinishReason, says("why the text ended")]
    generated_tokens: Annotated[int, says("number of generated tokens")]
    input_length: Annotated[int, says("number of prompt tokens")]
    seed: Annotated[int, says("random seed. The same request with this seed returns the same text")]
    timings: Annotated[GenerateTimings, says("durations")]


@dataclass
class GenerateDetails(StreamDetails):
    """Details of a continuation."""

    prefill: Annotated[Many[PromptToken], says("tokens of the prompt; empty unless `decoder_input_details` is set")]
    tokens: Annotated[Many[Token], says("generated tokens in order")]
    top_tokens: Annotated[
        Many[Many[TopToken]] | None, says("most probable tokens at each position; null unless requested")
    ]
    latents: Latents


@dataclass
class Continuation(Reply):
    """One of the `n` continuations."""

    generated_text: Annotated[str, says("generated text, after the prompt if `return_full_text` is set")]
    details: Annotated[GenerateDetails | None, says(DETAILS)]


@dataclass
class GenerateReply(Continuation):
    """Generated text that continues the prompt."""

    continuations: Annotated[list[Continuation] | None, says("all continuations if n > 1, starting with this one")]
    state: State


@dataclass
class StreamContinuation(Reply):
    """One of the `n` streamed continuations."""

    generated_text: Annotated[str, says("complete generated text")]
    details: Annotated[StreamDetails, says("details of the text, without the tokens")]


@dataclass
class GenerateEvent(Reply):
    """Event of a stream. Only the last event contains `generated_text` and `details`."""

    index: Annotated[int, says("position of the token in its continuation, from 1")]
    sample: Annotated[int, says("index of the continuation, from 0")]
    token: Annotated[Token | None, says("generated token; null only if the deadline passed before the first token")]
    top_tokens: Annotated[Many[TopToken] | None, says("most probable tokens; null unless requested")]
    latent: Annotated[Rows | None, says("latent of the token, [heads, 2 D]; null unless requested")]
    generated_text: Annotated[str | None, says("complete generated text; null except in the last event")]
    details: Annotated[StreamDetails | None, says("details of the text; null except in the last event")]
    continuations: Annotated[
        list[StreamContinuation] | None, says("all continuations if n > 1; null except in the last event")
    ]
    state: State
