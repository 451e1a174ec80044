"""POST /score, which returns the probabilities of the tokens in texts."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from rfa.runtime.text.scores import TokenScores
from rfa.runtime.uncertainty.alarms import count_alarms
from rfa.service.body import StrictJSONRoute
from rfa.service.disconnect import unless_disconnected
from rfa.service.encoding import Long
from rfa.service.engine.engine import Engine
from rfa.service.engine.text.generated import Generation
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import FieldNames, GenerateOptions
from rfa.service.engine.text.scored import ScoredPrompt
from rfa.service.errors import ServiceError
from rfa.service.routes.common import NDJSON, SSE, EngineDep, document_response, encode_document, open_stream
from rfa.service.routes.generate import MODEL_ERRORS, save_state
from rfa.service.routes.merge_events import merge_events
from rfa.service.routes.openai import check_count, submit_prompts
from rfa.service.routes.state import StateExchange, open_exchange
from rfa.service.routes.token_texts import token_name
from rfa.service.schemas.filter_replies import AlarmChecks
from rfa.service.schemas.openai import is_one_prompt
from rfa.service.schemas.score import ScoreDone, ScoredPiece, ScoredText, ScoreReply, ScoreRequest, ScoreSum

router = APIRouter(route_class=StrictJSONRoute, tags=["language"])
NAMES = FieldNames("inputs", "inputs", "", decode="decode", whole="inputs", prefix="")


@router.post(
    "/score",
    response_model=ScoreReply,
    responses={
        200: {
            "model": ScoreReply,
            "description": (
                "The scores. With `stream`, each line contains the scores of several tokens. The format is NDJSON, or "
                'server-sent events if the Accept header requests them. The last line contains `"done": true` or '
                '`{"error": …}`.'
            ),
        },
        **MODEL_ERRORS,
    },
)
async def score(body: ScoreRequest, request: Request, engine: EngineDep) -> Response:
    """Compute scores of the tokens in texts: log probability, rank, entropy, confidence and tail probability."""
    for name, value in (("state", body.state), ("return_state", body.return_state)):
        if value:
            engine.check_has_state(body.model, name)
    kind = partial(engine.language_state, body.model)
    exchange = await open_exchange(request, kind, state=body.state, return_state=body.return_state)
    options = _options(body, exchange, engine)
    check_count(len(options), "inputs", request.app.state.settings)
    jobs = await submit_prompts(request, engine, body.model, options, tokens=0)
    rate = None if body.alarm is None else body.alarm.rate
    if body.stream:
        wants_events = SSE in request.headers.get("accept", "").lower()
        return await open_stream(request, _lines(jobs, exchange, rate), SSE if wants_events else NDJSON)
    reply = await unless_disconnected(request, _reply(jobs, exchange, rate))
    return await document_response(request, encode_document(reply))


def _options(body: ScoreRequest, exchange: StateExchange, engine: Engine) -> list[GenerateOptions]:
    resumed = None if exchange.opened is None else engine.read_language_state(body.model, exchange.opened.payload)
    prompts: Any = [body.inputs] if is_one_prompt(body.inputs) else body.inputs
    return [
        GenerateOptions(
            prompt=prompt if isinstance(prompt, str) else tuple(prompt),
            max_new_tokens=0,
            seed=0 if resumed is None else resumed.seed,
            mode=body.decode,
            passes=body.passes,
            is_streamed=body.stream,
            resumed=resumed,
            returns_state=exchange.is_requested,
            tenant=exchange.tenant,
            scored_top=body.top_n_tokens,
            emits_scores=body.stream,
            names=NAMES if is_one_prompt(body.inputs) else NAMES.of_item(position),
        )
        for position, prompt in enumerate(prompts)
    ]


async def _reply(jobs: Sequence[GenerateJob], exchange: StateExchange, rate: float | None) -> ScoreReply:
    states: dict[int, str | None] = {}
    async with aclosing(merge_events(jobs)) as events:
        async for position, event in events:
            if isinstance(event, ServiceError):
                raise event
            states[position] = await save_state(event, exchange)
    texts = []
    for position, job in enumerate(jobs):
        scored = job.scored_prompt
        parts = [] if scored.scores is None else [scored.scores]
        summed = _sum(position, job, parts, states[position], rate)
        texts.append(ScoredText(**_columns(position, 0, scored, job, rate), **_without_index(summed)))
    return ScoreReply(jobs[0].model.name, texts)


async def _lines(
    jobs: Sequence[GenerateJob], exchange: StateExchange, rate: float | None
) -> AsyncIterator[ScoredPiece | ScoreDone]:
    parts: list[list[TokenScores]] = [[] for _ in jobs]
    sent = [0] * len(jobs)
    states: list[str | None] = [None] * len(jobs)
    async with aclosing(merge_events(jobs)) as events:
        async for position, event in events:
            if isinstance(event, ServiceError):
                raise event
            job, is_last = jobs[position], isinstance(event, Generation)
            if is_last:
                states[position] = await save_state(event, exchange)
            else:
                parts[position].append(event._replace(top_tokens=event.top_tokens[:0]))
            piece = job.scored_piece(None if is_last else event, sent[position])
            if len(piece):
                yield ScoredPiece(**_columns(position, sent[position], piece, job, rate))
                sent[position] += len(piece)
    sums = [_sum(position, job, parts[position], states[position], rate) for position, job in enumerate(jobs)]
    yield ScoreDone(True, jobs[0].model.name, sums)


def _columns(index: int, first: int, scored: ScoredPrompt, job: GenerateJob, rate: float | None) -> dict[str, Any]:
    """Return the fields of `ScoredTokens` for consecutive tokens of a text."""
    vocabulary, scores = scored.vocabulary, scored.scores
    positions = range(len(scored))

    def column(make: Callable[[TokenScores, int], Any], numbers: int = 1) -> Long:
        def value(position: int) -> Any:
            row = scored.row(position)
            return None if row is None or scores is None else make(scores, row)

        return Long(positions, value, numbers)

    def top(scores: TokenScores, row: int) -> dict[str, float]:
        names = (token_name(vocabulary, token) for token in scores.top_tokens[row].tolist())
        return dict(zip(names, scores.top_log_probabilities[row].tolist(), strict=True))

    confidence = job.model.confidence(job.mode)
    return {
        "index": index,
        "first": first,
        "token_ids": Long(positions, lambda position: scored.tokens[position]),
        "tokens": Long(positions, lambda position: token_name(vocabulary, scored.tokens[position])),
        "logprobs": column(lambda scores, row: float(scores.log_probability[row])),
        "ranks": column(lambda scores, row: int(scores.rank[row])),
        "entropies": column(lambda scores, row: float(scores.entropy[row])),
        "confidences": column(lambda scores, row: float(confidence(scores.calibrated[row]))),
        "tails": column(lambda scores, row: float(confidence.tail(scores.tail[row]))),
        "alarms": None if rate is None else column(lambda scores, row: bool(confidence.tail(scores.tail[row]) <= rate)),
        "top_logprobs": column(top, 16) if job.options.scored_top else None,
    }


def _sum(index: int, job: GenerateJob, parts: Sequence[TokenScores], state: str | None, rate: float | None) -> ScoreSum:
    """Return the results for a whole text. The sum of the log probabilities is correctly rounded, so it does not depend
    on how the text was divided into parts."""
    numbers = np.concatenate([part.log_probability for part in parts]) if parts else np.zeros(0)
    read = [token for part in parts for token in part.tokens.tolist()]
    size = sum(len(job.model.vocabulary.bytes_of(token)) for token in read)
    return ScoreSum(index, math.fsum(numbers), len(read), size, _checks(job, parts, rate), state)


def _checks(job: GenerateJob, parts: Sequence[TokenScores], rate: float | None) -> AlarmChecks | None:
    if rate is None:
        return None
    confidence = job.model.confidence(job.mode)
    tails = np.concatenate([np.zeros(0), *(confidence.tail(part.tail) for part in parts)])
    checks = count_alarms(len(tails), rate * len(tails), int((tails <= rate).sum()))
    return None if checks is None else AlarmChecks(**vars(checks))


def _without_index(summed: ScoreSum) -> dict[str, Any]:
    return {name: value for name, value in vars(summed).items() if name != "index"}
