"""Requests and replies of /v1/chat/completions. The fields are those of OpenAI, and the additional ones of
/v1/completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rfa.runtime.choices import Mode
from rfa.service.neutral import NullIs, OneOf, Only
from rfa.service.schemas.base import FieldError, Reply, Request, says
from rfa.service.schemas.chat_template import END_OF_TURN, dialogue
from rfa.service.schemas.fields import Seed, TokenCount
from rfa.service.schemas.openai import (
    ALL_CHOICES,
    ONE_CHOICE,
    ChoiceSeed,
    ChunkEndedBy,
    ChunkReason,
    ChunkUsage,
    CompletionRequest,
    CompletionUsage,
    Deadline,
    EndedBy,
    LanguageModelName,
    OpenAIHead,
    OpenAIReason,
    StopChoice,
    Stream,
    StreamChoices,
    Temperature,
    TopK,
    TopP,
    User,
)
from rfa.service.schemas.reply_types import Many, NextText
from rfa.service.schemas.sampling import NEUTRAL, SamplingFields
from rfa.service.schemas.text_replies import CONFIDENCE, Logprob
from rfa.service.schemas.text_requests import DECODE, TextPasses

MAX_MESSAGES = 1_024

Text = Annotated[str, Field(max_length=2_000_000)]


class TextPart(Request):
    """Part of a message that contains text."""

    type: Literal["text"] = Field(description="Type of the part, which is always `text`.")
    text: Text = Field(description="Text of this part of the message.")


class ChatMessage(Request):
    """Message of a dialogue."""

    role: Literal["system", "developer", "user", "assistant"] = Field(description="Role of the author of the message.")
    content: Annotated[
        Text | Annotated[list[TextPart], Field(max_length=64, fail_fast=True)],
        OneOf("a string or a list of text parts"),
    ] = Field(description="Content of the message.")
    name: str | None = Field(default=None, max_length=64, description="Accepted for compatibility and ignored.")

    @property
    def text(self) -> str:
        """Whole content of the message as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(SamplingFields):
    """A dialogue. The next message of the assistant is generated."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 16, "seed": 7}]
        }
    )

    messages: list[ChatMessage] = Field(
        min_length=1, max_length=MAX_MESSAGES, fail_fast=True, description="Messages of the dialogue, oldest first."
    )
    model: LanguageModelName = None
    max_tokens: TokenCount | None = Field(default=None, description="Alternative name of `max_completion_tokens`.")
    max_completion_tokens: TokenCount | None = Field(
        default=None,
        description=(
            "Maximum number of generated tokens. The default is the value of `max_tokens`, or 128 if both are null."
        ),
    )
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = None
    n: Annotated[int, NullIs(1)] = Field(default=1, ge=1, le=16, description="Number of messages to generate.")
    stop: StopChoice = Field(
        default=None, description="Strings that end the text. The text also ends before the next message of the user."
    )
    seed: Seed | None = Field(default=None, description="Random seed; if null, it is chosen at random.")
    logprobs: Annotated[bool, NullIs(False)] = Field(
        default=False, description="Whether to return the tokens with their log probabilities."
    )
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=5,
        description="Number of alternatives to return for each token. Requires `logprobs`.",
    )
    stream: Stream = False
    stream_options: StreamChoices = None
    user: User = None
    tools: Annotated[Any, Only(None, [])] = Field(default=None, description=NEUTRAL)
    tool_choice: Annotated[Any, Only(None, "none")] = Field(default=None, description=NEUTRAL)
    store: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)
    decode: Mode | None = Field(default=None, description=DECODE)
    passes: TextPasses = None
    deadline_ms: Deadline = None

    @model_validator(mode="after")
    def check_combinations(self) -> Self:
        """Check that the combination of fields is supported."""
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs requires logprobs to be true", "needs_logprobs")
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options requires stream to be true", "needs_stream")
        return self

    def completion(self) -> CompletionRequest:
        """Return the equivalent request for /v1/completions."""
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        shared = SamplingFields.model_fields.keys() | {
            "model", "temperature", "top_p", "top_k", "n", "seed", "stream", "stream_options", "decode", "passes",
            "deadline_ms",
        }  # fmt: skip
        return CompletionRequest.model_construct(
            prompt=dialogue((message.role, message.text) for message in self.messages),
            max_tokens=self.max_completion_tokens or self.max_tokens or 128,
            stop=[*stops, END_OF_TURN],
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            **{name: getattr(self, name) for name in shared},
        )


@dataclass
class ChatTopToken(Reply):
    """One of the most probable tokens at a position."""

    token: Annotated[str, says("Text of the token, or `bytes:\\x..` if its bytes are not complete characters.")]
    logprob: Logprob
    bytes: Annotated[list[int], says("Bytes of the token.")]


@dataclass
class ChatToken(ChatTopToken):
    """A generated token with its log probability and confidence."""

    confidence: Annotated[float, says(f"{CONFIDENCE}.")]
    top_logprobs: Annotated[list[ChatTopToken], says("Most probable tokens at this position.")]


@dataclass
class ChatLogprobs(Reply):
    """Log probabilities of the tokens of a message or chunk."""

    content: Annotated[Many[ChatToken], says("List of the tokens with their log probabilities.")]


@dataclass
class AssistantMessage(Reply):
    """The generated message."""

    role: Annotated[Literal["assistant"], says("Role of the author, which is always `assistant`.")]
    content: Annotated[str, says("Text of the message.")]


@dataclass
class AssistantDelta(Reply):
    """Next part of the generated message."""

    role: Annotated[Literal["assistant"] | None, says("Role of the author; sent only in the first chunk.")]
    content: NextText


Index = Annotated[int, says("Index of the choice, counted from 0.")]
Logprobs = Annotated[ChatLogprobs | None, says("Log probabilities of the tokens; null unless requested.")]


@dataclass
class ChatChoice(Reply):
    """One of the `n` generated messages."""

    index: Index
    message: Annotated[AssistantMessage, says("Generated message.")]
    logprobs: Logprobs
    finish_reason: OpenAIReason
    ended_by: EndedBy
    seed: ChoiceSeed


@dataclass
class ChatChunkChoice(Reply):
    """Next part of one of the generated messages."""

    index: Index
    delta: Annotated[AssistantDelta, says("Next part of the message.")]
    logprobs: Logprobs
    finish_reason: ChunkReason
    ended_by: ChunkEndedBy
    seed: ChoiceSeed


@dataclass
class ChatHead(OpenAIHead):
    """Fields of all replies and chunks."""

    object: Annotated[Literal["chat.completion", "chat.completion.chunk"], says("Type of the object.")]


@dataclass
class ChatCompletion(ChatHead):
    """Reply with all generated messages for a dialogue."""

    choices: Annotated[list[ChatChoice], ALL_CHOICES]
    usage: Annotated[CompletionUsage, says("Numbers of tokens in the prompt and in the generated messages.")]


@dataclass
class ChatChunk(ChatHead):
    """One chunk of a streamed reply."""

    choices: Annotated[list[ChatChunkChoice], ONE_CHOICE]
    usage: ChunkUsage
