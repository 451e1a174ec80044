"""POST /generate, which generates text. The reply is a JSON document or a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from operator import attrgetter
from typing import Any

from fastapi import APIRouter, Request, Response

from rfa.runtime.text.logit_adjustments import SamplingRules
from rfa.service.access.quotas import reserve_tokens
from rfa.service.access.request_log import Record, record_of
from rfa.service.body import StrictJSONRoute
from rfa.service.disconnect import unless_disconnected
from rfa.service.encoding import Long
from rfa.service.engine.engine import NUMBERS_PER_TOKEN
from rfa.service.engine.text.generated import FinishedText, Generation, TokenEvent, latents_of
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.engine.text.scored import ScoredPrompt
from rfa.service.engine.text.state import LanguageState
from rfa.service.errors import (
    Conflict,
    EngineFailure,
    InvalidRequest,
)
from rfa.service.memory import lease_of
from rfa.service.routes.common import (
    BODY_ERRORS,
    SSE,
    EngineDep,
    document_response,
    encode_document,
    error_responses,
    open_stream,
)
from rfa.service.routes.state import StateExchange, choose_seed, open_exchange
from rfa.service.schemas.openai import CompletionRequest
from rfa.service.schemas.text_replies import (
    Continuation,
    GenerateDetails,
    GenerateEvent,
    GenerateReply,
    PromptToken,
    StreamContinuation,
    StreamDetails,
)
from rfa.service.schemas.text_requests import GenerateParameters, GenerateRequest

router = APIRouter(route_class=StrictJSONRoute)
MODEL_ERRORS = error_responses(*BODY_ERRORS, Conflict, EngineFailure)


@router.post(
    "/generate",
    response_model=GenerateReply,
    responses={
        200: {
            "model": GenerateReply,
            "description": (
                "The generated text. With `stream`, the reply has a `data:` line for each token. Only the last line "
                'contains `generated_text` and `details`. If an error occurs, the last line is `{"error": …}`.'
            ),
        },
        **MODEL_ERRORS,
    },
    tags=["language"],
)
async def generate(body: GenerateRequest, request: Request, engine: EngineDep) -> Response:
    """Generate text that continues a prompt, with the interface of Text Generation Inference (TGI)."""
    if body.parameters.return_latents and not (body.stream or body.parameters.details):
        name = "parameters.return_latents"
        raise InvalidRequest(f"{name} requires that parameters.details is true.", param=name, code="needs_details")
    for name, value in (("state", body.state), ("return_state", body.return_state)):
        if value:
            engine.check_has_state(body.model, name)
    kind = partial(engine.language_state, body.model)
    exchange = await open_exchange(request, kind, state=body.state, return_state=body.return_state)
    resumed = None if exchange.opened is None else engine.read_language_state(body.model, exchange.opened.payload)
    with reserve_tokens(request, body.parameters.max_new_tokens * body.parameters.n) as jobs:
        job = engine.generate(body.model, _options(body, exchange, resumed), lease_of(request))
        jobs.append(job)
    record = record_of(request)
    record.model = job.model.name
    if body.stream:
        return await open_stream(request, _events(job, exchange, record), SSE)
    generation = await unless_disconnected(request, job.result())
    record_generation(generation, record)
    state = await save_state(generation, exchange)
    scored = job.scored_prompt if body.parameters.decoder_input_details else None
    reply = _reply(generation, job.options, state, body.parameters.details, scored)
    return await document_response(request, encode_document(reply))


def record_generation(generation: Generation, record: Record) -> None:
    """Record the numbers of tokens and the finish reasons of a generated text for the access log."""
    record.generated(
        input_tokens=generation.input_length,
        output_tokens=sum(len(text.events) for text in generation.texts),
        finish_reasons=[text.finish_reason for text in generation.texts],
    )


async def save_state(generation: Generation, exchange: StateExchange) -> str | None:
    """Save the state of a generated text, and return the value of `state` in the reply. Return None if there is no
    state, because it was not requested and the server has not interrupted the text."""
    if generation.state is None:
        return None
    return await exchange.save(generation.state.pack(), generation.position)


def common_options(fields: GenerateParameters | CompletionRequest) -> dict[str, Any]:
    """Return the options whose request fields have the same names in /generate and /v1/completions."""
    bias = {int(token): amount for token, amount in (fields.logit_bias or {}).items()}
    penalties = fields.repetition_penalty, fields.presence_penalty, fields.frequency_penalty
    return {
        "min_p": fields.min_p or None,
        "typical_p": None if fields.typical_p == 1 else fields.typical_p,
        "rules": SamplingRules(*penalties, bias, fields.min_tokens),
        "stop_tokens": tuple(fields.stop_token_ids or ()),
        "ignores_eos": fields.ignore_eos,
        "mode": fields.decode,
        "passes": fields.passes,
        "latent_noise": fields.latent_noise,
        "samples": fields.n,
        "return_latents": fields.return_latents,
        "deadline_ms": fields.deadline_ms,
    }


def _options(body: GenerateRequest, exchange: StateExchange, resumed: LanguageState | None) -> GenerateOptions:
    parameters = body.parameters
    temperature = 1.0 if parameters.temperature is None else parameters.temperature
    common = common_options(parameters)
    filters = parameters.top_k, parameters.top_p, common["min_p"], common["typical_p"]
    has_sampling_parameters = any(value is not None for value in (parameters.temperature, *filters))
    return GenerateOptions(
        prompt=body.inputs,
        max_new_tokens=parameters.max_new_tokens,
        seed=choose_seed(parameters.seed, resumed),
        temperature=temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        is_sampled=temperature > 0
        and (has_sampling_parameters if parameters.do_sample is None else parameters.do_sample),
        stops=tuple(parameters.stop),
        top_n_tokens=parameters.top_n_tokens,
        return_full_text=parameters.return_full_text,
        truncate=parameters.truncate,
        is_streamed=body.stream,
        scored_top=0 if parameters.decoder_input_details else None,
        **common,
        resumed=resumed,
        returns_state=exchange.is_requested,
        tenant=exchange.tenant,
    )


def _reply(
    generation: Generation,
    options: GenerateOptions,
    state: str | None,
    with_details: bool,
    scored: ScoredPrompt | None,
) -> GenerateReply:
    texts = [
        Continuation(text.text, _details(generation, text, options, scored) if with_details else None)
        for text in generation.texts
    ]
    all_texts = texts if options.samples > 1 else None
    return GenerateReply(texts[0].generated_text, texts[0].details, all_texts, state)


def _details(
    generation: Generation, text: FinishedText, options: GenerateOptions, scored: ScoredPrompt | None
) -> GenerateDetails:
    events, top = text.events, options.top_n_tokens
    return GenerateDetails(
        **vars(_stream_details(generation, text, options)),
        prefill=[] if scored is None else Long(range(len(scored)), partial(_prompt_token, scored), 4),
        tokens=Long(events, attrgetter("token"), NUMBERS_PER_TOKEN),
        top_tokens=Long(events, attrgetter("top_tokens"), 4 * top) if top else None,
        latents=latents_of(events) if options.return_latents else None,
    )


def _prompt_token(scored: ScoredPrompt, position: int) -> PromptToken:
    token, row, vocabulary = scored.tokens[position], scored.row(position), scored.vocabulary
    logprob = None if row is None or scored.scores is None else float(scored.scores.log_probability[row])
    return PromptToken(token, vocabulary.label(token), logprob, vocabulary.is_special(token))


def _stream_details(generation: Generation, text: FinishedText, options: GenerateOptions) -> StreamDetails:
    count = len(text.events)
    return StreamDetails(text.finish_reason, count, generation.input_length, options.seed, generation.timings)


async def _events(job: GenerateJob, exchange: StateExchange, record: Record) -> AsyncIterator[GenerateEvent]:
    async for event in job.events():
        if isinstance(event, Generation):
            record_generation(event, record)
            yield _terminal_event(event, job.options, await save_state(event, exchange))
        else:
            record.output_tokens = (record.output_tokens or 0) + 1
            yield _event(event)


def _event(
    event: TokenEvent | None,
    text: str | None = None,
    details: StreamDetails | None = None,
    continuations: list[StreamContinuation] | None = None,
    state: str | None = None,
) -> GenerateEvent:
    """Return an event of a streamed reply. It has no token if the deadline passed before the first one."""
    if event is None:
        return GenerateEvent(0, 0, None, None, None, text, details, continuations, state)
    fields = event.index, event.sample, event.token, event.top_tokens, event.latent
    return GenerateEvent(*fields, text, details, continuations, state)


def _terminal_event(generation: Generation, options: GenerateOptions, state: str | None) -> GenerateEvent:
    texts = [StreamContinuation(text.text, _stream_details(generation, text, options)) for text in generation.texts]
    all_texts = texts if options.samples > 1 else None
    return _event(generation.last, texts[0].generated_text, texts[0].details, all_texts, state)
