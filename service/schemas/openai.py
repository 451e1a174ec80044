"""The JSON of the OpenAI routes: OpenAI's fields with OpenAI's meanings, and ours beside them.

Bounds and strictness are those of `rfa.service.schemas.requests`: what is not listed here is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rfa.runtime.choices import Mode
from rfa.service.neutral import NullIs, OneOf, Only
from rfa.service.schemas.base import FieldError, Reply, Request, says
from rfa.service.schemas.replies import CONFIDENCE, FinishReason, Latents, Many
from rfa.service.schemas.requests import DECODE, MAX_ITEMS, NEUTRAL, LatentNoise, ReturnLatents, Seed, StopSequence

MAX_PROMPTS = 256
MAX_STOPS = 16
LONGEST_MODEL_NAME = 256  # what other servers call theirs is unknown here, not malformed

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
PromptText = Annotated[str, Field(max_length=2_000_000)]
PromptTokens = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
Stops = Annotated[list[StopSequence], Field(max_length=MAX_STOPS, fail_fast=True)]


class StreamOptions(Request):
    """What a stream carries beside the text."""

    include_usage: Annotated[bool, NullIs(False)] = Field(
        default=False, description="a last chunk, without choices, that has the usage"
    )
    continuous_usage_stats: Annotated[bool, NullIs(False)] = Field(
        default=False, description="with include_usage: the usage so far in every chunk"
    )
    include_obfuscation: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)


class CompletionRequest(Request):
    """Prompts to continue. Every prompt gets `n` choices; choice j of prompt i has index i * n + j."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "It was the", "max_tokens": 24, "temperature": 0.8, "seed": 7},
                {"prompt": ["It was the", "She said"], "n": 2, "max_tokens": 8, "logprobs": 2},
            ]
        }
    )

    model: str | None = Field(
        default=None, max_length=LONGEST_MODEL_NAME, description="null is the first language model of the server"
    )
    prompt: Annotated[
        PromptText
        | PromptTokens
        | Annotated[list[PromptText], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[PromptTokens], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | None,
        OneOf(f"a string, a list of token ids, or a list of 1 to {MAX_PROMPTS} of either"),
    ] = Field(description="one text or several, or the tokens of one or several; null is the empty text")
    max_tokens: Annotated[int, NullIs(16)] = Field(
        default=16, ge=1, le=1_000_000, description="the text ends after so many at the latest"
    )
    temperature: Annotated[float, NullIs(1.0)] = Field(default=1.0, ge=0, le=100, description="0 is greedy")
    top_p: Annotated[float, NullIs(1.0)] = Field(
        default=1.0, gt=0, le=1, description="keep the smallest set with this probability"
    )
    n: Annotated[int, NullIs(1)] = Field(default=1, ge=1, le=16, description="choices for each prompt")
    best_of: int | None = Field(default=None, ge=1, le=16, description="only the value of n: all are returned")
    stop: Annotated[StopSequence | Stops | None, OneOf(f"a string or a list of up to {MAX_STOPS} strings")] = Field(
        default=None, description="ends the text before the first of these; not part of it"
    )
    seed: Seed | None = Field(
        default=None, description="of every prompt; null draws one for each, and the choice tells which"
    )
    logprobs: int | None = Field(
        default=None, ge=0, le=5, description="each token with so many alternatives; 0 is the token alone"
    )
    echo: Annotated[bool, NullIs(False)] = Field(default=False, description="put the prompt before the text")
    stream: Annotated[bool, NullIs(False)] = Field(default=False, description="send the text as it comes")
    stream_options: StreamOptions | None = Field(default=None, description="with `stream` alone")
    user: str | None = Field(
        default=None, max_length=512, description="a name of yours for the caller; changes nothing"
    )
    suffix: Annotated[Any, Only(None, "")] = Field(default=None, description=NEUTRAL)
    presence_penalty: Annotated[Any, Only(None, 0.0)] = Field(default=None, description=NEUTRAL)
    frequency_penalty: Annotated[Any, Only(None, 0.0)] = Field(default=None, description=NEUTRAL)
    logit_bias: Annotated[Any, Only(None, {})] = Field(default=None, description=NEUTRAL)

    top_k: int | None = Field(
        default=None, ge=-1, le=1_000_000, description="keep the k most probable tokens; null, 0 and -1 keep all"
    )
    truncate_prompt_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="keep only the last tokens of each prompt"
    )
    decode: Mode | None = Field(default=None, description=DECODE)
    latent_noise: LatentNoise = 0.0
    return_latents: ReturnLatents = False
    deadline_ms: int | None = Field(
        default=None, ge=1, le=3_600_000, description='after so long the texts end as they are: ended_by "deadline"'
    )

    @model_validator(mode="after")
    def check_combinations(self) -> Self:
        """Refuse fields that mean nothing, or nothing that is served, together."""
        if self.best_of is not None and self.best_of != self.n:
            raise FieldError("best_of", "best_of must be null or equal to n: every choice is returned", "not_supported")
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options needs stream: true", "needs_stream")
        if self.echo and self.logprobs is not None:
            raise FieldError(
                "logprobs",
                "logprobs cannot come with echo: a prompt's tokens have no log probabilities here",
                "not_supported",
            )
        return self


@dataclass
class CompletionLogprobs(Reply):
    """The tokens of a choice, or of a chunk of it; every list has one entry per token."""

    tokens: Annotated[Many[str], says("text of the token; `bytes:\\x..` where it is not whole characters")]
    token_logprobs: Annotated[Many[float], says("under the model itself, before temperature and filters")]
    top_logprobs: Annotated[Many[dict[str, float]], says("the most probable tokens, and the one chosen")]
    text_offset: Annotated[Many[int], says("character of the text at which the token begins")]
    token_ids: Annotated[Many[int], says("in the model's vocabulary")]
    confidence: Annotated[Many[float], says(CONFIDENCE)]


@dataclass
class CompletionChoice(Reply):
    """One continuation."""

    index: Annotated[int, says("i * n + j for choice j of prompt i")]
    text: Annotated[str, says("the new text")]
    logprobs: Annotated[CompletionLogprobs | None, says("null where none were asked for")]
    finish_reason: Annotated[Literal["stop", "length"], says("OpenAI's word for it")]
    ended_by: Annotated[FinishReason, says("the precise reason")]
    seed: Annotated[int, says("with it, the same request repeats this choice")]
    latents: Latents


@dataclass
class CompletionChunkChoice(Reply):
    """The next piece of one continuation."""

    index: Annotated[int, says("i * n + j for choice j of prompt i")]
    text: Annotated[str, says("the next piece of it")]
    logprobs: Annotated[CompletionLogprobs | None, says("of the piece's tokens; null where none were asked for")]
    finish_reason: Annotated[Literal["stop", "length"] | None, says("not null in the last piece")]
    ended_by: Annotated[FinishReason | None, says("the precise reason, in the last piece")]
    seed: Annotated[int, says("with it, the same request repeats this choice")]
    latents: Latents


@dataclass
class CompletionUsage(Reply):
    """Tokens read and made. A prompt counts once, whatever n is."""

    prompt_tokens: Annotated[int, says("read")]
    completion_tokens: Annotated[int, says("made, of all choices")]
    total_tokens: Annotated[int, says("of both")]


@dataclass
class CompletionHead(Reply):
    """What every line of a reply repeats."""

    id: Annotated[str, says("of the request")]
    object: Annotated[Literal["text_completion"], says("always this")]
    created: Annotated[int, says("seconds since 1970")]
    model: Annotated[str, says("that answered")]
    system_fingerprint: Annotated[str, says("changes when the server or the bundle does, and answers may")]


@dataclass
class Completion(CompletionHead):
    """All choices of all prompts."""

    choices: Annotated[list[CompletionChoice], says("all of them, by index")]
    usage: Annotated[CompletionUsage, says("tokens read and made")]


@dataclass
class CompletionChunk(CompletionHead):
    """One line of the stream."""

    choices: Annotated[list[CompletionChunkChoice], says("one, or none in the chunk that has the usage")]
    usage: Annotated[CompletionUsage | None, says("where `stream_options` ask for it, else null")]


@dataclass
class ModelCard(Reply):
    """A language model of this server."""

    id: Annotated[str, says("what requests call it")]
    object: Annotated[Literal["model"], says("always this")]
    created: Annotated[int, says("always 0: a bundle has no date")]
    owned_by: Annotated[str, says("always the name of this software")]
    digest: Annotated[str, says("sha256 of the bundle's manifest")]
    modes: Annotated[tuple[Mode, ...], says("what `decode` can be, the default last")]


@dataclass
class ModelList(Reply):
    """The language models of this server; /info also lists the filters."""

    object: Annotated[Literal["list"], says("always this")]
    data: Annotated[list[ModelCard], says("in the order of /info")]
