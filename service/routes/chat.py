"""POST /v1/chat/completions. The models are not trained on dialogues, and continue a dialogue as text."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from rfa.runtime.text.incremental import Vocabulary
from rfa.service.body import StrictJSONRoute
from rfa.service.disconnect import unless_disconnected
from rfa.service.encoding import Long
from rfa.service.engine.text.generated import Generation, TokenEvent
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import FieldNames
from rfa.service.routes.choices import OPENAI_REASONS
from rfa.service.routes.common import SSE, EngineDep, document_response, encode_document, open_stream
from rfa.service.routes.generate import MODEL_ERRORS
from rfa.service.routes.openai import DONE, check_limits, completion_options, fingerprint, language_of, submit_prompts
from rfa.service.routes.state import open_exchange
from rfa.service.routes.token_texts import token_name
from rfa.service.schemas.chat import (
    AssistantDelta,
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
    ChatToken,
    ChatTopToken,
)
from rfa.service.schemas.openai import CompletionUsage
from rfa.service.schemas.text_replies import FinishReason

router = APIRouter(route_class=StrictJSONRoute, prefix="/v1", tags=["openai"])
LIMIT = "max_completion_tokens"
FIELDS = FieldNames("messages", LIMIT, "", decode="decode", whole=LIMIT, prefix="")


@router.post(
    "/chat/completions",
    response_model=ChatCompletion,
    responses={
        200: {
            "model": ChatCompletion,
            "description": (
                "The generated messages. With `stream`, the reply has a `data:` line for each token of each choice, a "
                "line with the usage if it was requested, and `data: [DONE]` at the end. If an error occurs, "
                '`{"error": …}` replaces the remaining lines.'
            ),
        },
        **MODEL_ERRORS,
    },
)
async def chat(body: ChatRequest, request: Request, engine: EngineDep) -> Response:
    """Generate the next message of a dialogue, with the interface of OpenAI's chat completions. The messages are
    converted to a text with the template `chat_template` in /info, and the model continues this text."""
    facts, completion = language_of(engine, body.model), body.completion()
    check_limits(
        completion, engine.numbers_per_token(facts.name, completion.logprobs or 0, with_latents=False),
        request.app.state.settings,
    )  # fmt: skip
    kind = partial(engine.language_state, facts.name)
    exchange = await open_exchange(request, kind, state=None, return_state=False)
    options = completion_options(completion, str(completion.prompt), FIELDS, exchange, None)
    tokens = completion.n * completion.max_tokens
    (job,) = await submit_prompts(request, engine, facts.name, [options], tokens)
    writer = _Writer(job, body, facts.name, fingerprint(facts))
    if body.stream:
        return await open_stream(request, writer.chunks(), SSE)
    generation = await unless_disconnected(request, job.result())
    return await document_response(request, encode_document(writer.whole(generation)))


@dataclass
class _Writer:
    """Builds the reply to a request, as a whole or in chunks."""

    job: GenerateJob
    body: ChatRequest
    model: str
    fingerprint: str

    def __post_init__(self) -> None:
        self._id, self._created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())

    def whole(self, generation: Generation) -> ChatCompletion:
        """Return the complete reply."""
        choices = [
            ChatChoice(
                sample,
                AssistantMessage("assistant", text.text),
                self._logprobs(text.events),
                OPENAI_REASONS.get(text.finish_reason, "length"),
                text.finish_reason,
                self.job.options.seed,
            )
            for sample, text in enumerate(generation.texts)
        ]
        usage = self._usage(sum(len(text.events) for text in generation.texts))
        return ChatCompletion(**self._head("chat.completion"), choices=choices, usage=usage)

    async def chunks(self) -> AsyncIterator[ChatChunk | orjson.Fragment]:
        """Yield the chunks of a streamed reply."""
        begun: set[int] = set()
        generated = 0
        options = self.body.stream_options
        has_usage = options is not None and options.include_usage
        has_running_usage = options is not None and has_usage and options.continuous_usage_stats

        def chunk(sample: int, events: Sequence[TokenEvent], end: FinishReason | None = None) -> ChatChunk:
            text = "".join(event.token.text for event in events)
            delta = AssistantDelta(None if sample in begun else "assistant", text)
            begun.add(sample)
            reason = None if end is None else OPENAI_REASONS.get(end, "length")
            choice = ChatChunkChoice(sample, delta, self._logprobs(events), reason, end, self.job.options.seed)
            return self._chunk([choice], self._usage(generated) if has_running_usage else None)

        async for event in self.job.events():
            if not isinstance(event, Generation):
                generated += 1
                yield chunk(event.sample, [event])
                continue
            generated += event.last is not None
            for sample, text in enumerate(event.texts):
                last = [event.last] if event.last is not None and event.last.sample == sample else []
                yield chunk(sample, last, text.finish_reason)
        if has_usage:
            yield self._chunk([], self._usage(generated))
        yield DONE

    def _chunk(self, choices: list[ChatChunkChoice], usage: CompletionUsage | None) -> ChatChunk:
        return ChatChunk(**self._head("chat.completion.chunk"), choices=choices, usage=usage)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _usage(self, generated: int) -> CompletionUsage:
        prompt = len(self.job.prompt)
        return CompletionUsage(prompt, generated, prompt + generated)

    def _logprobs(self, events: Sequence[TokenEvent]) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        return ChatLogprobs(Long(events, partial(_chat_token, self.job.model.vocabulary), 16))


def _chat_token(vocabulary: Vocabulary, event: TokenEvent) -> ChatToken:
    def named(token: int) -> tuple[str, list[int]]:
        return token_name(vocabulary, token), list(vocabulary.bytes_of(token))

    name, data = named(event.token.id)
    top = []
    for one in event.top_tokens or ():
        other, others = named(one.id)
        top.append(ChatTopToken(other, one.logprob, others))
    return ChatToken(name, event.token.logprob, data, event.token.confidence, top)
