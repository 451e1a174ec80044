"""Requests and replies of /v1/completions and /v1/models. They have the fields of OpenAI and a few additional ones.
Unknown fields are errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rfa.runtime.choices import Mode
from rfa.service.neutral import NullIs, OneOf, Only
from rfa.service.schemas.base import FieldError, Reply, Request, says
from rfa.service.schemas.fields import MAX_ITEMS, TEXT_MODEL, InitialState, Milliseconds, ReturnState, Seed, TokenCount
from rfa.service.schemas.reply_types import Many, NextText, RequestName, ServerName, State, SupportedPasses, TokenTexts
from rfa.service.schemas.sampling import NEUTRAL, TOP_P, SamplingFields, Share, TokenId
from rfa.service.schemas.text_replies import CONFIDENCE, LOGPROB, TOKEN_ID, FinishReason, Latents, Logprob, TextAlone
from rfa.service.schemas.text_requests import (
    DECODE,
    LatentNoise,
    ReturnLatents,
    StopSequence,
    TextPasses,
    check_state_use,
)

MAX_PROMPTS = 256
MAX_STOPS = 16
# This is long enough for names of models on other servers, so that these are reported as unknown and not as invalid.
LONGEST_MODEL_NAME = 256

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
StopChoice = Annotated[StopSequence | Stops | None, OneOf(f"a string or a list of up to {MAX_STOPS} strings")]
LanguageModelName = Annotated[
    str | None,
    Field(
        max_length=LONGEST_MODEL_NAME,
        description=TEXT_MODEL,
    ),
]
Temperature = Annotated[
    float,
    Field(ge=0, le=100, description="Sampling temperature; 0 always selects the most probable token."),
    NullIs(1.0),
]
TopP = Annotated[Share, NullIs(1.0), Field(description=TOP_P)]
TopK = Annotated[
    int | None,
    Field(
        ge=-1, le=1_000_000, description="Sample only from the k most probable tokens; null, 0 and -1 mean no limit."
    ),
]
Stream = Annotated[
    bool, NullIs(False), Field(description="Whether to send each part of the text as soon as it is generated.")
]
User = Annotated[str | None, Field(max_length=512, description="Accepted for compatibility and ignored.")]
Deadline = Annotated[
    Milliseconds | None,
    Field(description='Time limit in milliseconds. Texts that are not complete by then end with ended_by "deadline".'),
]


class StreamOptions(Request):
    """Options for a streamed reply."""

    include_usage: Annotated[bool, NullIs(False)] = Field(
        default=False, description="Whether to send the numbers of tokens in an additional last chunk without choices."
    )
    continuous_usage_stats: Annotated[bool, NullIs(False)] = Field(
        default=False,
        description="Whether to send the current numbers of tokens in each chunk. Requires `include_usage`.",
    )
    include_obfuscation: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)


StreamChoices = Annotated[
    StreamOptions | None, Field(description="Options for a streamed reply. They are allowed only if `stream` is true.")
]


class CompletionRequest(SamplingFields):
    """Prompts to continue. Each prompt has `n` choices, which are independent continuations."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "It was the", "max_tokens": 24, "temperature": 0.8, "seed": 7},
                {"prompt": ["It was the", "She said"], "n": 2, "max_tokens": 8, "logprobs": 2},
            ]
        }
    )

    model: LanguageModelName = None
    prompt: Annotated[Prompts | None, ONE_OF_PROMPTS] = Field(
        description="One prompt or several prompts, as texts or lists of token ids; null means the empty text."
    )
    max_tokens: Annotated[int, NullIs(16)] = Field(
        default=16,
        ge=0,
        le=1_000_000,
        description="Maximum number of generated tokens; 0 processes the prompt without generating text.",
    )
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    n: Annotated[int, NullIs(1)] = Field(
        default=1, ge=1, le=16, description="Number of choices to generate for each prompt."
    )
    best_of: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="Accepted for compatibility; must be null or equal to `n`, because all choices are returned.",
    )
    stop: StopChoice = Field(default=None, description="Strings that end the text.")
    seed: Seed | None = Field(
        default=None, description="Random seed of all choices; if null, a seed is chosen at random for each prompt."
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=5,
        description="Number of alternatives to return for each token, in addition to the token.",
    )
    return_tokens_as_token_ids: Annotated[bool, NullIs(False)] = Field(
        default=False, description="Whether tokens in `logprobs` are written as `token_id:ID`."
    )
    echo: Annotated[bool, NullIs(False)] = Field(
        default=False, description="Whether to prepend the prompt to the text, and its tokens to `logprobs`."
    )
    prompt_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=20,
        description=(
            "Number of alternatives to return for each token of the prompt, in addition to the token. This cannot be "
            "combined with `stream`."
        ),
    )
    stream: Stream = False
    stream_options: StreamChoices = None
    user: User = None
    suffix: Annotated[
        Any,
        Only(
            None,
            "",
            reason="the models generate text only from left to right and cannot insert text; leave this field out",
        ),
    ] = Field(default=None, description=NEUTRAL)

    top_k: TopK = None
    truncate_prompt_tokens: TokenCount | None = Field(
        default=None, description="Number of tokens to keep at the end of each prompt; earlier tokens are dropped."
    )
    decode: Mode | None = Field(default=None, description=DECODE)
    passes: TextPasses = None
    latent_noise: LatentNoise = 0.0
    return_latents: ReturnLatents = False
    deadline_ms: Deadline = None
    state: InitialState = None
    return_state: Annotated[ReturnState, NullIs(False)] = False

    @model_validator(mode="after")
    def check_combinations(self) -> Self:
        """Check that the values and the combination of fields are supported."""
        if self.best_of is not None and self.best_of != self.n:
            raise FieldError(
                "best_of", "best_of must be null or equal to n, because every choice is returned", "not_supported"
            )
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options requires stream to be true", "needs_stream")
        if self.prompt_logprobs is not None and self.stream:
            raise FieldError("prompt_logprobs", "prompt_logprobs requires stream to be false", "not_supported")
        check_state_use(self, "", [] if is_one_prompt(self.prompt) else ["prompt"])
        return self


def is_one_prompt(prompts: Any) -> bool:
    """Return whether the value of a field with prompts is a single text or a single list of token ids."""
    return not isinstance(prompts, list) or isinstance(prompts[0], int)


@dataclass
class CompletionLogprobs(Reply):
    """Log probabilities of the tokens of a choice or chunk. All lists have one entry per token."""

    tokens: TokenTexts
    token_logprobs: Annotated[Many[float | None], says(LOGPROB + "; null for the first token of the prompt.")]
    top_logprobs: Annotated[
        Many[dict[str, float] | None],
        says(
            "Log probabilities of the most probable tokens and of this token, by the text of the token; null for the "
            "first token of the prompt."
        ),
    ]
    text_offset: Annotated[Many[int], says("Index in the text of the first character of the token.")]
    token_ids: Annotated[Many[int], says(TOKEN_ID)]
    confidence: Annotated[Many[float | None], says(CONFIDENCE + "; null for the first token of the prompt.")]


@dataclass
class PromptLogprob(Reply):
    """A token at a position of the prompt, with its log probability."""

    logprob: Logprob
    rank: Annotated[int, says("Rank of the token by probability; 1 is the most probable token.")]
    decoded_token: TextAlone


Index = Annotated[int, says("Index of the choice. Choice j of prompt i has the index i * n + j.")]
Logprobs = Annotated[CompletionLogprobs | None, says("Log probabilities of the tokens; null unless requested.")]
OpenAIReason = Annotated[Literal["stop", "length"], says("Reason why the text ended, as one of the values of OpenAI.")]
EndedBy = Annotated[FinishReason, says("Reason why the text ended, in more detail than `finish_reason`.")]
ChunkReason = Annotated[
    Literal["stop", "length"] | None,
    says("Reason why the text ended, as one of the values of OpenAI; null except in the last chunk."),
]
ChunkEndedBy = Annotated[
    FinishReason | None,
    says("Reason why the text ended, in more detail than `finish_reason`; null except in the last chunk."),
]
ChoiceSeed = Annotated[int, says("Random seed of this choice. The same request with this seed returns the same text.")]


@dataclass
class CompletionChoice(Reply):
    """One continuation."""

    index: Index
    text: Annotated[str, says("Generated text.")]
    logprobs: Logprobs
    finish_reason: OpenAIReason
    ended_by: EndedBy
    seed: ChoiceSeed
    latents: Latents
    prompt_logprobs: Annotated[
        Many[dict[str, PromptLogprob] | None] | None,
        says(
            "Log probabilities of each token of the prompt and of its alternatives, by token id. The entry of the "
            "first token is null. The list is null unless requested."
        ),
    ]
    state: State


@dataclass
class CompletionChunkChoice(Reply):
    """Next part of one continuation."""

    index: Index
    text: NextText
    logprobs: Logprobs
    finish_reason: ChunkReason
    ended_by: ChunkEndedBy
    seed: ChoiceSeed
    latents: Latents
    state: State


@dataclass
class CompletionUsage(Reply):
    """Numbers of tokens. The tokens of a prompt are counted once, and not for each choice."""

    prompt_tokens: Annotated[int, says("Number of tokens in all prompts.")]
    completion_tokens: Annotated[int, says("Number of generated tokens in all choices.")]
    total_tokens: Annotated[int, says("Sum of `prompt_tokens` and `completion_tokens`.")]


ALL_CHOICES: Final = says("List of all choices, ordered by index.")
ONE_CHOICE: Final = says("List with one choice; empty in the last chunk, which contains the usage.")
ChunkUsage = Annotated[CompletionUsage | None, says("Numbers of tokens; null unless requested with `stream_options`.")]


@dataclass
class OpenAIHead(Reply):
    """Fields of all replies and chunks of the OpenAI endpoints."""

    id: Annotated[str, says("Id of the request.")]
    object: str
    created: Annotated[int, says("Time when the reply was created, in seconds since 1970.")]
    model: Annotated[str, says("Name of the model that generated the reply.")]
    system_fingerprint: Annotated[
        str,
        says("Versions of the server and the bundle. With other versions, the same request may have other results."),
    ]


@dataclass
class CompletionHead(OpenAIHead):
    """Fields of all replies and chunks."""

    object: Annotated[Literal["text_completion"], says("Type of the object, which is always `text_completion`.")]


@dataclass
class Completion(CompletionHead):
    """Reply with all choices for all prompts."""

    choices: Annotated[list[CompletionChoice], ALL_CHOICES]
    usage: Annotated[CompletionUsage, says("Numbers of tokens in the prompts and in the generated texts.")]


@dataclass
class CompletionChunk(CompletionHead):
    """One chunk of a streamed reply."""

    choices: Annotated[list[CompletionChunkChoice], ONE_CHOICE]
    usage: ChunkUsage


@dataclass
class ModelCard(Reply):
    """A language model of the server."""

    id: RequestName
    object: Annotated[Literal["model"], says("Type of the object, which is always `model`.")]
    created: Annotated[int, says("Always 0, because the time is not known.")]
    owned_by: ServerName
    digest: Annotated[str, says("SHA-256 hash of the manifest of the bundle.")]
    modes: Annotated[tuple[Mode, ...], says("Supported values of `decode`; the last one is the default.")]
    passes: SupportedPasses


@dataclass
class ModelList(Reply):
    """The language models of the server. /info also lists the filters."""

    object: Annotated[Literal["list"], says("Type of the object, which is always `list`.")]
    data: Annotated[list[ModelCard], says("Language models, in the order of /info.")]
