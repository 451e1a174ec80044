"""Requests and replies of /v1/chat/completions: OpenAI's, for the fields of /v1/completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rfa.runtime.choices import Mode
from rfa.service.neutral import NullIs, OneOf, Only
from rfa.service.schemas.base import FieldError, Reply, Request, says
from rfa.service.schemas.chat_template import END_OF_TURN, dialogue
from rfa.service.schemas.fields import Seed
from rfa.service.schemas.openai import (
    LONGEST_MODEL_NAME,
    MAX_STOPS,
    ChoiceSeed,
    CompletionRequest,
    CompletionUsage,
    Stops,
    StreamOptions,
)
from rfa.service.schemas.reply_types import Many
from rfa.service.schemas.sampling import NEUTRAL, SamplingFields
from rfa.service.schemas.text_replies import CONFIDENCE, LOGPROB, FinishReason
from rfa.service.schemas.text_requests import DECODE, StopSequence

MAX_MESSAGES = 1_024

Text = Annotated[str, Field(max_length=2_000_000)]


class TextPart(Request):
    """A part of a message."""

    type: Literal["text"] = Field(description="constant")
    text: Text = Field(description="the text")


class ChatMessage(Request):
    """A message of the dialogue."""

    role: Literal["system", "developer", "user", "assistant"] = Field(description="who says it")
    content: Annotated[
        Text | Annotated[list[TextPart], Field(max_length=64, fail_fast=True)],
        OneOf("a string or a list of text parts"),
    ] = Field(description="what it says")
    name: str | None = Field(default=None, max_length=64, description="ignored")

    @property
    def text(self) -> str:
        """The whole content."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(SamplingFields):
    """A dialogue to continue by the assistant's next message."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 16, "seed": 7}]
        }
    )

    messages: list[ChatMessage] = Field(
        min_length=1, max_length=MAX_MESSAGES, fail_fast=True, description="the dialogue so far"
    )
    model: str | None = Field(
        default=None, max_length=LONGEST_MODEL_NAME, description="null: the server's first language model"
    )
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000, description="see max_completion_tokens")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="maximum number of generated tokens; null: max_tokens, else 128"
    )
    temperature: Annotated[float, NullIs(1.0)] = Field(default=1.0, ge=0, le=100, description="0 is greedy")
    top_p: Annotated[float, NullIs(1.0)] = Field(
        default=1.0, gt=0, le=1, description="sample from the smallest set with this probability"
    )
    top_k: int | None = Field(
        default=None, ge=-1, le=1_000_000, description="sample from the k most probable tokens; null, 0 and -1: all"
    )
    n: Annotated[int, NullIs(1)] = Field(default=1, ge=1, le=16, description="number of choices")
    stop: Annotated[StopSequence | Stops | None, OneOf(f"a string or a list of up to {MAX_STOPS} strings")] = Field(
        default=None, description="the text ends before the first of these, or where the user's turn begins"
    )
    seed: Seed | None = Field(default=None, description="null: random")
    logprobs: Annotated[bool, NullIs(False)] = Field(default=False, description="return the tokens")
    top_logprobs: int | None = Field(
        default=None, ge=0, le=5, description="return this number of alternatives of each token; needs logprobs"
    )
    stream: Annotated[bool, NullIs(False)] = Field(default=False, description="send the text as it is generated")
    stream_options: StreamOptions | None = Field(default=None, description="only with `stream`")
    user: str | None = Field(default=None, max_length=512, description="ignored")
    tools: Annotated[Any, Only(None, [])] = Field(default=None, description=NEUTRAL)
    tool_choice: Annotated[Any, Only(None, "none")] = Field(default=None, description=NEUTRAL)
    store: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)
    decode: Mode | None = Field(default=None, description=DECODE)
    deadline_ms: int | None = Field(
        default=None, ge=1, le=3_600_000, description='end the texts after this time, with ended_by "deadline"'
    )

    @model_validator(mode="after")
    def check_combinations(self) -> Self:
        """Refuse combinations of fields that exclude each other."""
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs needs logprobs: true", "needs_logprobs")
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options needs stream: true", "needs_stream")
        return self

    def completion(self) -> CompletionRequest:
        """The same request as a text to complete."""
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        shared = SamplingFields.model_fields.keys() | {
            "model", "temperature", "top_p", "top_k", "n", "seed", "stream", "stream_options", "decode", "deadline_ms",
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
    """A token at a position."""

    token: Annotated[str, says("text of the token; `bytes:\\x..` if its bytes are incomplete characters")]
    logprob: Annotated[float, says(LOGPROB)]
    bytes: Annotated[list[int], says("its bytes")]


@dataclass
class ChatToken(ChatTopToken):
    """A generated token."""

    confidence: Annotated[float, says(CONFIDENCE)]
    top_logprobs: Annotated[list[ChatTopToken], says("the most probable tokens")]


@dataclass
class ChatLogprobs(Reply):
    """The tokens of a message or piece."""

    content: Annotated[Many[ChatToken], says("by token")]


@dataclass
class AssistantMessage(Reply):
    """The new message."""

    role: Annotated[Literal["assistant"], says("constant")]
    content: Annotated[str, says("the text")]


@dataclass
class AssistantDelta(Reply):
    """The next piece of the message."""

    role: Annotated[Literal["assistant"] | None, says("in the first piece")]
    content: Annotated[str, says("the next piece of the text")]


Index = Annotated[int, says("position of the choice")]
Logprobs = Annotated[ChatLogprobs | None, says("the tokens; null unless requested")]


@dataclass
class ChatChoice(Reply):
    """One message."""

    index: Index
    message: Annotated[AssistantMessage, says("the new message")]
    logprobs: Logprobs
    finish_reason: Annotated[Literal["stop", "length"], says("OpenAI's reasons")]
    ended_by: Annotated[FinishReason, says("reason for the end")]
    seed: ChoiceSeed


@dataclass
class ChatChunkChoice(Reply):
    """The next piece of one message."""

    index: Index
    delta: Annotated[AssistantDelta, says("the next piece")]
    logprobs: Logprobs
    finish_reason: Annotated[Literal["stop", "length"] | None, says("OpenAI's reasons, in the last piece")]
    ended_by: Annotated[FinishReason | None, says("reason for the end, in the last piece")]
    seed: ChoiceSeed


@dataclass
class ChatHead(Reply):
    """Fields of every reply and chunk."""

    id: Annotated[str, says("id of the request")]
    object: Annotated[Literal["chat.completion", "chat.completion.chunk"], says("kind of the reply")]
    created: Annotated[int, says("seconds since 1970")]
    model: Annotated[str, says("the model that answered")]
    system_fingerprint: Annotated[str, says("version of the server and the bundle, with which results may change")]


@dataclass
class ChatCompletion(ChatHead):
    """All choices."""

    choices: Annotated[list[ChatChoice], says("all choices, by index")]
    usage: Annotated[CompletionUsage, says("numbers of tokens")]


@dataclass
class ChatChunk(ChatHead):
    """One chunk of the stream."""

    choices: Annotated[list[ChatChunkChoice], says("one; none in the chunk with the usage")]
    usage: Annotated[CompletionUsage | None, says("null unless requested by `stream_options`")]
