"""Requests and replies of the OpenAI routes: OpenAI's fields, and some of our own. Other fields are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rfa.runtime.choices import Mode
from rfa.service.neutral import NullIs, OneOf, Only
from rfa.service.schemas.base import FieldError, Reply, Request, says
from rfa.service.schemas.fields import MAX_ITEMS, InitialState, ReturnState, Seed
from rfa.service.schemas.reply_types import Many, State
from rfa.service.schemas.sampling import NEUTRAL, SamplingFields, TokenId
from rfa.service.schemas.text_replies import CONFIDENCE, LOGPROB, TOKEN_ID, FinishReason, Latents
from rfa.service.schemas.text_requests import DECODE, LatentNoise, ReturnLatents, StopSequence, check_state_use

MAX_PROMPTS = 256
MAX_STOPS = 16
LONGEST_MODEL_NAME = 256  # long enough for names of other servers, which are unknown here, not malformed

PromptText = Annotated[str, Field(max_length=2_000_000)]
PromptTokens = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
Prompts = (
    PromptText
    | PromptTokens
    | Annotated[list[PromptText], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    | Annotated[list[PromptTokens], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
)
ONE_OF_PROMPTS = OneOf(f"a string, a list of token ids, or a list of 1 to {MAX_PROMPTS} of either")
Stops = Annotated[list[StopSequence], Field(max_length=MAX_STOPS, fail_fast=True)]


class StreamOptions(Request):
    """Additional parts of a stream."""

    include_usage: Annotated[bool, NullIs(False)] = Field(
        default=False, description="send a last chunk with the usage and no choices"
    )
    continuous_usage_stats: Annotated[bool, NullIs(False)] = Field(
        default=False, description="with include_usage: also send the usage so far in every chunk"
    )
    include_obfuscation: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)


class CompletionRequest(SamplingFields):
    """Prompts to continue. Each prompt has `n` choices; choice j of prompt i has index i * n + j."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "It was the", "max_tokens": 24, "temperature": 0.8, "seed": 7},
                {"prompt": ["It was the", "She said"], "n": 2, "max_tokens": 8, "logprobs": 2},
            ]
        }
    )

    model: str | None = Field(
        default=None, max_length=LONGEST_MODEL_NAME, description="null: the server's first language model"
    )
    prompt: Annotated[Prompts | None, ONE_OF_PROMPTS] = Field(
        description="texts or lists of token ids; null: the empty text"
    )
    max_tokens: Annotated[int, NullIs(16)] = Field(
        default=16, ge=0, le=1_000_000, description="maximum number of generated tokens; 0 only reads the prompt"
    )
    temperature: Annotated[float, NullIs(1.0)] = Field(default=1.0, ge=0, le=100, description="0 is greedy")
    top_p: Annotated[float, NullIs(1.0)] = Field(
        default=1.0, gt=0, le=1, description="sample from the smallest set with this probability"
    )
    n: Annotated[int, NullIs(1)] = Field(default=1, ge=1, le=16, description="number of choices per prompt")
    best_of: int | None = Field(default=None, ge=1, le=16, description="must equal n: all choices are returned")
    stop: Annotated[StopSequence | Stops | None, OneOf(f"a string or a list of up to {MAX_STOPS} strings")] = Field(
        default=None, description="the text ends before the first of these"
    )
    seed: Seed | None = Field(default=None, description="of every prompt; null: random, each choice has its own")
    logprobs: int | None = Field(
        default=None, ge=0, le=5, description="return each token and this number of alternatives"
    )
    return_tokens_as_token_ids: Annotated[bool, NullIs(False)] = Field(
        default=False, description="name tokens `token_id:ID` in logprobs"
    )
    echo: Annotated[bool, NullIs(False)] = Field(
        default=False, description="put the prompt before the text, and its tokens into logprobs"
    )
    prompt_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=20,
        description="return each token of the prompt and this number of alternatives; not with stream",
    )
    stream: Annotated[bool, NullIs(False)] = Field(
        default=False, description="send the text in pieces, as it is generated"
    )
    stream_options: StreamOptions | None = Field(default=None, description="only with `stream`")
    user: str | None = Field(default=None, max_length=512, description="ignored")
    suffix: Annotated[Any, Only(None, "", reason="the models read from left to right and cannot fill in")] = Field(
        default=None, description=NEUTRAL
    )

    top_k: int | None = Field(
        default=None, ge=-1, le=1_000_000, description="sample from the k most probable tokens; null, 0 and -1: all"
    )
    truncate_prompt_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="use only the last tokens of each prompt"
    )
    decode: Mode | None = Field(default=None, description=DECODE)
    latent_noise: LatentNoise = 0.0
    return_latents: ReturnLatents = False
    deadline_ms: int | None = Field(
        default=None, ge=1, le=3_600_000, description='end the texts after this time, with ended_by "deadline"'
    )
    state: InitialState = None
    return_state: Annotated[ReturnState, NullIs(False)] = False

    @model_validator(mode="after")
    def check_combinations(self) -> Self:
        """Refuse invalid and unsupported combinations of fields."""
        if self.best_of is not None and self.best_of != self.n:
            raise FieldError("best_of", "best_of must be null or equal to n: every choice is returned", "not_supported")
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options needs stream: true", "needs_stream")
        if self.prompt_logprobs is not None and self.stream:
            raise FieldError("prompt_logprobs", "prompt_logprobs needs stream: false", "not_supported")
        check_state_use(self, "", [] if is_one_prompt(self.prompt) else ["prompt"])
        return self


def is_one_prompt(prompts: Any) -> bool:
    """Whether these `Prompts` are one text or list of tokens, not several."""
    return not isinstance(prompts, list) or isinstance(prompts[0], int)


@dataclass
class CompletionLogprobs(Reply):
    """The tokens of a choice or chunk; every list has one entry per token."""

    tokens: Annotated[Many[str], says("text of the token; `bytes:\\x..` if its bytes are incomplete characters")]
    token_logprobs: Annotated[Many[float | None], says(LOGPROB + "; null for the first token of the prompt")]
    top_logprobs: Annotated[
        Many[dict[str, float] | None], says("the most probable tokens, and this one; null as token_logprobs")
    ]
    text_offset: Annotated[Many[int], says("index of the token's first character in the text")]
    token_ids: Annotated[Many[int], says(TOKEN_ID)]
    confidence: Annotated[Many[float | None], says(CONFIDENCE + "; null as token_logprobs")]


@dataclass
class PromptLogprob(Reply):
    """A token at a position of the prompt."""

    logprob: Annotated[float, says(LOGPROB)]
    rank: Annotated[int, says("1 for the most probable token")]
    decoded_token: Annotated[str, says("the token's own characters")]


Index = Annotated[int, says("i * n + j for choice j of prompt i")]
Logprobs = Annotated[CompletionLogprobs | None, says("log probabilities of the tokens; null unless requested")]
ChoiceSeed = Annotated[int, says("repeats this choice for the same request")]


@dataclass
class CompletionChoice(Reply):
    """One continuation."""

    index: Index
    text: Annotated[str, says("the new text")]
    logprobs: Logprobs
    finish_reason: Annotated[Literal["stop", "length"], says("OpenAI's reasons")]
    ended_by: Annotated[FinishReason, says("reason for the end")]
    seed: ChoiceSeed
    latents: Latents
    prompt_logprobs: Annotated[
        Many[dict[str, PromptLogprob] | None] | None,
        says("by token of the prompt: it and its alternatives by id, null for the first; null unless requested"),
    ]
    state: State


@dataclass
class CompletionChunkChoice(Reply):
    """The next piece of one continuation."""

    index: Index
    text: Annotated[str, says("the next piece of the text")]
    logprobs: Logprobs
    finish_reason: Annotated[Literal["stop", "length"] | None, says("OpenAI's reasons, in the last piece")]
    ended_by: Annotated[FinishReason | None, says("reason for the end, in the last piece")]
    seed: ChoiceSeed
    latents: Latents
    state: State


@dataclass
class CompletionUsage(Reply):
    """Numbers of tokens. A prompt counts once for all its choices."""

    prompt_tokens: Annotated[int, says("tokens of the prompts")]
    completion_tokens: Annotated[int, says("generated tokens of all choices")]
    total_tokens: Annotated[int, says("sum of both")]


@dataclass
class CompletionHead(Reply):
    """Fields of every reply and chunk."""

    id: Annotated[str, says("id of the request")]
    object: Annotated[Literal["text_completion"], says("constant")]
    created: Annotated[int, says("seconds since 1970")]
    model: Annotated[str, says("the model that answered")]
    system_fingerprint: Annotated[str, says("version of the server and the bundle, with which results may change")]


@dataclass
class Completion(CompletionHead):
    """All choices of all prompts."""

    choices: Annotated[list[CompletionChoice], says("all choices, by index")]
    usage: Annotated[CompletionUsage, says("numbers of tokens")]


@dataclass
class CompletionChunk(CompletionHead):
    """One chunk of the stream."""

    choices: Annotated[list[CompletionChunkChoice], says("one; none in the chunk with the usage")]
    usage: Annotated[CompletionUsage | None, says("null unless requested by `stream_options`")]


@dataclass
class ModelCard(Reply):
    """A language model of this server."""

    id: Annotated[str, says("name in requests")]
    object: Annotated[Literal["model"], says("constant")]
    created: Annotated[int, says("always 0")]
    owned_by: Annotated[str, says("always the name of this software")]
    digest: Annotated[str, says("sha256 of the bundle's manifest")]
    modes: Annotated[tuple[Mode, ...], says("values of `decode` that it supports, the default last")]


@dataclass
class ModelList(Reply):
    """The language models of this server; /info also lists the filters."""

    object: Annotated[Literal["list"], says("constant")]
    data: Annotated[list[ModelCard], says("in the order of /info")]
