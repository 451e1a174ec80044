"""POST /generate: text continuation, plain or as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response

from service.access.record import Record, record_of
from service.body import StrictJSONRoute
from service.engine.engine import draw_seed
from service.engine.generation import Continuation, GenerateJob, GenerateOptions, Generation, TokenEvent
from service.errors import (
    EngineFailure,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from service.routes.common import SSE, EngineDep, error_responses, json_response, open_stream, unless_disconnected
from service.schemas import GenerateReply, GenerateRequest

router = APIRouter(route_class=StrictJSONRoute)
MODEL_ERRORS = error_responses(
    NotFound,
    MethodNotAllowed,
    PayloadTooLarge,
    UnsupportedMediaType,
    InvalidRequest,
    Overloaded,
    EngineFailure,
    NotReady,
)


def refuse_state(state: str | None, return_state: bool) -> None:
    """State tokens are not served yet.

    Raises:
        InvalidRequest: when a request uses them.
    """
    if state is not None or return_state:
        name = "state" if state is not None else "return_state"
        raise InvalidRequest(f"{name}: resuming from a state is not supported yet.", param=name, code="not_supported")


@router.post(
    "/generate",
    response_model=GenerateReply,
    responses={
        200: {
            "model": GenerateReply,
            "description": "The text; with `stream` one `data:` line per token, exactly one of them terminal: "
            'it has `generated_text` and `details`, or is `{"error": …}`.',
        },
        **MODEL_ERRORS,
    },
    tags=["language"],
)
async def generate(body: GenerateRequest, request: Request, engine: EngineDep) -> Response:
    """Continue a prompt."""
    refuse_state(body.state, body.return_state)
    job = engine.generate(body.model, _options(body))
    record = record_of(request)
    record.model = job.model.name
    if body.stream:
        return await open_stream(request, _events(job, record), SSE)
    generation = await unless_disconnected(request, job.result())
    _note(generation, record)
    return json_response(_reply(generation, job.options, body.parameters.details))


def _note(generation: Generation, record: Record) -> None:
    continuations = generation.continuations
    record.generated(
        input_tokens=generation.input_length,
        output_tokens=sum(len(continuation.events) for continuation in continuations),
        finish_reasons=[continuation.finish_reason for continuation in continuations],
    )


def _options(body: GenerateRequest) -> GenerateOptions:
    given = body.parameters
    temperature = 1.0 if given.temperature is None else given.temperature
    asks_for_sampling = any(value is not None for value in (given.temperature, given.top_k, given.top_p))
    return GenerateOptions(
        prompt=body.inputs,
        max_new_tokens=given.max_new_tokens,
        seed=draw_seed() if given.seed is None else given.seed,
        temperature=temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        is_sampled=temperature > 0 and (asks_for_sampling if given.do_sample is None else given.do_sample),
        stops=tuple(given.stop),
        top_n_tokens=given.top_n_tokens,
        return_full_text=given.return_full_text,
        truncate=given.truncate,
        decode=given.decode,
        latent_noise=given.latent_noise,
        samples=given.n,
        return_latents=given.return_latents,
        deadline_ms=given.deadline_ms,
        is_streamed=body.stream,
    )


def _reply(generation: Generation, options: GenerateOptions, with_details: bool) -> dict[str, Any]:
    texts = [
        {
            "generated_text": continuation.text,
            "details": _details(generation, continuation, options) if with_details else None,
        }
        for continuation in generation.continuations
    ]
    return {**texts[0], "continuations": texts if options.samples > 1 else None, "state": None}


def _details(generation: Generation, continuation: Continuation, options: GenerateOptions) -> dict[str, Any]:
    events = continuation.events
    return {
        **_stream_details(generation, continuation, options),
        "prefill": [],
        "tokens": [event.token for event in events],
        "top_tokens": [event.top_tokens for event in events] if options.top_n_tokens else None,
        "latents": [event.latent for event in events] if options.return_latents else None,
    }


def _stream_details(generation: Generation, continuation: Continuation, options: GenerateOptions) -> dict[str, Any]:
    return {
        "finish_reason": continuation.finish_reason,
        "generated_tokens": len(continuation.events),
        "input_length": generation.input_length,
        "seed": options.seed,
        "timings": generation.timings,
    }


async def _events(job: GenerateJob, record: Record) -> AsyncIterator[dict[str, Any]]:
    async for event in job.events():
        if isinstance(event, Generation):
            _note(event, record)
            yield _terminal_event(event, job.options)
        else:
            record.output_tokens = (record.output_tokens or 0) + 1
            yield _event(event)


def _event(event: TokenEvent) -> dict[str, Any]:
    return {
        "index": event.index,
        "sample": event.sample,
        "token": event.token,
        "top_tokens": event.top_tokens,
        "latent": event.latent,
        "generated_text": None,
        "details": None,
        "continuations": None,
        "state": None,
    }


def _terminal_event(generation: Generation, options: GenerateOptions) -> dict[str, Any]:
    texts = [
        {
            "generated_text": continuation.text,
            "details": _stream_details(generation, continuation, options),
        }
        for continuation in generation.continuations
    ]
    last = generation.last
    nothing = {"index": 0, "sample": 0, "token": None, "top_tokens": None, "latent": None}
    return {
        **(nothing if last is None else _event(last)),
        **texts[0],
        "continuations": texts if options.samples > 1 else None,
        "state": None,
    }
