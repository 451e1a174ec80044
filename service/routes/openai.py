"""POST /v1/completions and GET /v1/models, for clients of OpenAI's API."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Path, Request, Response

from rfa.service.access.quotas import reserve_tokens
from rfa.service.body import StrictJSONRoute
from rfa.service.disconnect import unless_disconnected
from rfa.service.engine.engine import Engine
from rfa.service.engine.text.generated import Generation
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import FieldNames, GenerateOptions
from rfa.service.engine.text.state import LanguageState
from rfa.service.errors import InvalidRequest, MethodNotAllowed, NotFound, NotReady, ServiceError
from rfa.service.memory import lease_of
from rfa.service.routes.choices import ChoiceWriter
from rfa.service.routes.common import (
    SSE,
    EngineDep,
    document_response,
    encode_document,
    error_responses,
    json_response,
    open_stream,
)
from rfa.service.routes.generate import MODEL_ERRORS, common_options, save_state
from rfa.service.routes.info import server_version
from rfa.service.routes.merge_events import merge_events
from rfa.service.routes.state import StateExchange, choose_seed, open_exchange
from rfa.service.schemas.openai import (
    LONGEST_MODEL_NAME,
    Completion,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionHead,
    CompletionRequest,
    CompletionUsage,
    ModelCard,
    ModelList,
    is_one_prompt,
)
from rfa.service.schemas.server_replies import ModelInfo
from rfa.service.settings import Settings

router = APIRouter(route_class=StrictJSONRoute, prefix="/v1", tags=["openai"])
OWNER = "rfa-server"
FINGERPRINT_DIGITS = 12
# Number of jobs of a request that are submitted between two pauses.
PROMPTS_PER_PAUSE = 16
NAMES = FieldNames("prompt", "max_tokens", "truncate_prompt_tokens", decode="decode", whole="max_tokens", prefix="")
DONE = orjson.Fragment(b"[DONE]")  # the only event that is not JSON


@router.post(
    "/completions",
    response_model=Completion,
    responses={
        200: {
            "model": Completion,
            "description": (
                "The generated texts. With `stream`, the reply has a `data:` line for each token of each choice, a "
                "line with the usage if it was requested, and `data: [DONE]` at the end. If an error occurs, "
                '`{"error": …}` replaces the remaining lines.'
            ),
        },
        **MODEL_ERRORS,
    },
)
async def complete(body: CompletionRequest, request: Request, engine: EngineDep) -> Response:
    """Generate text that continues one or more prompts, with the interface of OpenAI's completions."""
    facts = language_of(engine, body.model)
    for name, value in (("state", body.state), ("return_state", body.return_state)):
        if value:
            engine.check_has_state(facts.name, name)
    per_token = engine.numbers_per_token(facts.name, body.logprobs or 0, with_latents=body.return_latents)
    check_limits(body, per_token, request.app.state.settings)
    kind = partial(engine.language_state, facts.name)
    exchange = await open_exchange(request, kind, state=body.state, return_state=body.return_state)
    head = CompletionHead(
        id=f"cmpl-{uuid.uuid4().hex}",
        object="text_completion",
        created=int(time.time()),
        model=facts.name,
        system_fingerprint=fingerprint(facts),
    )
    if body.stream:
        return await open_stream(request, _chunks(body, request, engine, head, exchange), SSE)
    reply = await unless_disconnected(request, _completion(body, request, engine, head, exchange))
    return await document_response(request, encode_document(reply))


@router.get("/models", response_model=ModelList, responses=error_responses(MethodNotAllowed, NotReady))
async def list_models(engine: EngineDep) -> Response:
    """List the language models. The first one is the default."""
    return json_response(ModelList("list", [_card(facts) for facts in _languages(engine)]))


@router.get(
    "/models/{model:path}",
    response_model=ModelCard,
    responses=error_responses(NotFound, MethodNotAllowed, InvalidRequest, NotReady),
)
async def retrieve_model(model: Annotated[str, Path(max_length=LONGEST_MODEL_NAME)], engine: EngineDep) -> Response:
    """Describe one language model."""
    return json_response(_card(language_of(engine, model)))


def fingerprint(facts: ModelInfo) -> str:
    """Return an identifier of the versions of the server and of the bundle."""
    return f"{OWNER}-{server_version()}-{facts.digest[:FINGERPRINT_DIGITS]}"


def _languages(engine: Engine) -> list[ModelInfo]:
    return [facts for facts in engine.models.facts if facts.kind == "lm"]


def language_of(engine: Engine, name: str | None) -> ModelInfo:
    """Return the description of a language model by its name. If the name is None, return that of the default model.

    Raises:
        NotFound: If the server has no such language model.
    """
    for facts in _languages(engine):
        if name is None or facts.name == name:
            return facts
    raise NotFound(
        "model must be the name of a language model on this server; /v1/models lists them.",
        param="model",
        code="model_not_found",
    )


def _card(facts: ModelInfo) -> ModelCard:
    return ModelCard(facts.name, "model", 0, OWNER, facts.digest, facts.modes, facts.passes)


def prompts_of(prompts: Any) -> list[str | tuple[int, ...]]:
    """Return the prompts of a request as a list. Each prompt is a text or a tuple of token ids."""
    listed = [prompts or ""] if is_one_prompt(prompts) else prompts
    return [prompt if isinstance(prompt, str) else tuple(prompt) for prompt in listed]


def check_limits(body: CompletionRequest, per_token: int, settings: Settings) -> None:
    """Check the limits on the number of prompts, the number of choices and the size of the reply. The engine checks
    each prompt.

    Args:
        per_token: Estimated number of numbers in the reply for each generated token.

    Raises:
        InvalidRequest: If a limit is exceeded.
    """
    count = len(prompts_of(body.prompt))
    check_count(count, "prompt", settings)
    if count * body.n > settings.limits.max_choices:
        raise InvalidRequest(
            f"The number of prompts times n must be at most {settings.limits.max_choices} on this server, got "
            f"{count * body.n}.",
            param="n",
            code="too_large",
        )
    numbers = count * body.n * body.max_tokens * per_token
    if numbers > settings.limits.max_reply_numbers:
        raise InvalidRequest(
            f"The reply would contain about {numbers} numbers, but this server sends at most "
            f"{settings.limits.max_reply_numbers}; reduce the number of prompts, max_tokens, n or logprobs, or do not "
            "set return_latents.",
            param="max_tokens",
            code="reply_too_large",
        )


def completion_options(
    body: CompletionRequest,
    prompt: str | tuple[int, ...],
    names: FieldNames,
    exchange: StateExchange,
    resumed: LanguageState | None,
) -> GenerateOptions:
    """Return the options of the engine for one prompt of a request.

    Args:
        names: Names of the request fields for error messages.
        resumed: State from which the text continues.
    """
    tops = [body.logprobs if body.echo else None, body.prompt_logprobs]
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return GenerateOptions(
        prompt=prompt,
        max_new_tokens=body.max_tokens,
        seed=choose_seed(body.seed, resumed),
        temperature=body.temperature,
        top_k=body.top_k if body.top_k is not None and body.top_k > 0 else None,
        top_p=body.top_p,
        is_sampled=body.temperature > 0,
        stops=tuple(stops),
        top_n_tokens=body.logprobs or 0,
        truncate=body.truncate_prompt_tokens,
        is_streamed=body.stream,
        **common_options(body),
        resumed=resumed,
        returns_state=exchange.is_requested,
        tenant=exchange.tenant,
        scored_top=max((top for top in tops if top is not None), default=None),
        names=names,
    )


async def _submit(
    body: CompletionRequest, request: Request, engine: Engine, model: str, exchange: StateExchange
) -> list[GenerateJob]:
    resumed = None if exchange.opened is None else engine.read_language_state(model, exchange.opened.payload)
    prompts = prompts_of(body.prompt)
    options = [
        completion_options(
            body, prompt, NAMES if is_one_prompt(body.prompt) else NAMES.of_item(position), exchange, resumed
        )
        for position, prompt in enumerate(prompts)
    ]
    return await submit_prompts(request, engine, model, options, len(prompts) * body.n * body.max_tokens)


async def submit_prompts(
    request: Request, engine: Engine, model: str | None, options: Sequence[GenerateOptions], tokens: int
) -> list[GenerateJob]:
    """Submit one job for each prompt, and return the jobs. If a job is rejected, the jobs before it are cancelled.

    Args:
        options: Options of each job.
        tokens: Maximum number of tokens that all jobs generate together.

    Raises:
        ServiceError: If a job is rejected (see `Engine.generate`).
    """
    jobs: list[GenerateJob] = []
    with reserve_tokens(request, tokens) as charged:
        try:
            for position, one in enumerate(options):
                if position % PROMPTS_PER_PAUSE == PROMPTS_PER_PAUSE - 1:
                    await request.app.state.cooperative.pause()
                jobs.append(engine.generate(model, one, lease_of(request)))
        except BaseException:  # including the cancellation of this task when the client disconnects
            for job in jobs:
                job.cancel()
            raise
        charged.extend(jobs)
    return jobs


def check_count(count: int, param: str, settings: Settings) -> None:
    """Check that the server can process and queue all prompts of a request.

    Args:
        param: Name of the field with the prompts, for errors.

    Raises:
        InvalidRequest: If there are too many prompts.
    """
    capacity = settings.limits.max_running + settings.limits.max_waiting
    if count > capacity:
        raise InvalidRequest(
            f"{param} must have at most {capacity} items on this server, got {count}.", param=param, code="too_large"
        )


def _writers(body: CompletionRequest, position: int, job: GenerateJob) -> list[ChoiceWriter]:
    samples = job.options.samples
    return [ChoiceWriter(position * samples + sample, job, body) for sample in range(samples)]


async def _completion(
    body: CompletionRequest, request: Request, engine: Engine, head: CompletionHead, exchange: StateExchange
) -> Completion:
    jobs = await _submit(body, request, engine, head.model, exchange)
    generations: dict[int, Generation] = {}
    async with aclosing(merge_events(jobs)) as events:
        async for position, event in events:
            if isinstance(event, ServiceError):
                raise event
            generations[position] = event
    states = {position: await save_state(generation, exchange) for position, generation in generations.items()}
    choices = [
        writer.whole(text, states[position])
        for position, job in enumerate(jobs)
        for writer, text in zip(_writers(body, position, job), generations[position].texts, strict=True)
    ]
    prompt_tokens = sum(generation.input_length for generation in generations.values())
    usage = _usage(prompt_tokens, sum(map(_generated, generations.values())))
    return Completion(**vars(head), choices=choices, usage=usage)


async def _chunks(
    body: CompletionRequest, request: Request, engine: Engine, head: CompletionHead, exchange: StateExchange
) -> AsyncIterator[CompletionChunk | orjson.Fragment]:
    jobs = await _submit(body, request, engine, head.model, exchange)
    writers = [_writers(body, position, job) for position, job in enumerate(jobs)]
    stream_options = body.stream_options
    has_usage = stream_options is not None and stream_options.include_usage
    has_running_usage = stream_options is not None and has_usage and stream_options.continuous_usage_stats
    generated = 0

    def chunk(choices: list[CompletionChunkChoice], with_usage: bool) -> CompletionChunk:
        usage = _usage(sum(len(job.prompt) for job in jobs), generated) if with_usage else None
        return CompletionChunk(**vars(head), choices=choices, usage=usage)

    async with aclosing(merge_events(jobs)) as events:
        async for position, event in events:
            if isinstance(event, ServiceError):
                raise event
            if not isinstance(event, Generation):
                generated += 1
                yield chunk([writers[position][event.sample].piece([event], None)], has_running_usage)
                continue
            generated += event.last is not None
            for choice in _last_pieces(event, writers[position], await save_state(event, exchange)):
                yield chunk([choice], has_running_usage)
    if has_usage:
        yield chunk([], True)
    yield DONE


def _last_pieces(
    generation: Generation, writers: Sequence[ChoiceWriter], state: str | None
) -> list[CompletionChunkChoice]:
    """Return the last chunk of each choice of a prompt. One of the chunks contains the last token."""
    last = generation.last
    return [
        writer.piece([last] if last is not None and last.sample == sample else [], text.finish_reason, state)
        for sample, (writer, text) in enumerate(zip(writers, generation.texts, strict=True))
    ]


def _generated(generation: Generation) -> int:
    return sum(len(text.events) for text in generation.texts)


def _usage(prompt_tokens: int, completion_tokens: int) -> CompletionUsage:
    return CompletionUsage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)
