"""POST /filter: state estimation, one JSON reply or a stream of steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from rfa.service.access.quotas import client_of
from rfa.service.access.record import record_of
from rfa.service.body import StrictJSONRoute
from rfa.service.encoding import Long, pieces
from rfa.service.engine.filter.jobs import Filtered, FilterJob, SequenceJob
from rfa.service.engine.filter.model import FilterOptions
from rfa.service.errors import InvalidRequest
from rfa.service.memory import lease_of
from rfa.service.routes.common import NDJSON, SSE, EngineDep, document_response, open_stream
from rfa.service.routes.generate import MODEL_ERRORS
from rfa.service.routes.state import StateExchange, choose_seed, open_exchange
from rfa.service.schemas.replies import FilterDone, FilterReply, FilterSummary
from rfa.service.schemas.requests import FilterRequest

router = APIRouter(route_class=StrictJSONRoute)
SMOOTHED_NUMBERS = 32  # more or less, of a smoothed step


@router.post(
    "/filter",
    response_model=FilterReply,
    responses={
        200: {
            "model": FilterReply,
            "description": "One step per observation; with `stream` one line per step, as NDJSON or, where the Accept "
            'header asks for it, as server-sent events; the last line has `"done": true` or is `{"error": …}`.',
        },
        **MODEL_ERRORS,
    },
    tags=["filter"],
)
async def filter_sequence(body: FilterRequest, request: Request, engine: EngineDep) -> Response:
    """Estimate the state behind a sequence of observations."""
    kind = partial(engine.filter_state, body.model)
    exchange = await open_exchange(request, kind, state=body.state, return_state=body.return_state)
    resumed = None if exchange.opened is None else engine.read_filter_state(body.model, exchange.opened.payload)
    options = _options(body, exchange, resumed)
    name = engine.filter_model(body.model).name
    client, count = client_of(request), len(options.observations)
    client.afford("observations", count)
    job = engine.filter(body.model, options, lease_of(request))
    client.spend("observations", count)
    record_of(request).filtered(name, count)
    if body.stream:
        wants_events = SSE in request.headers.get("accept", "").lower()
        return await open_stream(request, _lines(job, name, exchange), SSE if wants_events else NDJSON)
    return await document_response(request, _document(job, name, exchange))


def _options(body: FilterRequest, exchange: StateExchange, resumed: Any) -> FilterOptions:
    return FilterOptions(
        times=_times(body, resumed),
        observations=body.observations,
        noise=body.noise,
        levels=tuple(body.levels or ()),
        horizon=tuple(body.horizon),
        samples=body.samples,
        seed=choose_seed(body.seed, resumed),
        mode=body.mode,
        smooth=body.smooth,
        is_streamed=body.stream,
        state=resumed,
        wants_state=exchange.is_wanted,
    )


def _times(body: FilterRequest, resumed: Any) -> list[float]:
    """The times that were given, else the indices of the steps.

    Raises:
        InvalidRequest: the first lies before the last of the state.
    """
    begin = 0 if resumed is None else resumed.count
    times = body.times or [float(begin + index) for index in range(len(body.observations))]
    if begin and times[0] < resumed.time:
        name = "times" if body.times is None else "times[0]"
        message = f"{name} must not begin before the last time of the state"
        raise InvalidRequest(message, param=name, code="time_not_monotonic")
    return times


async def _document(job: FilterJob | SequenceJob, name: str, exchange: StateExchange) -> AsyncIterator[bytes]:
    """The plain reply: `steps` as they come, then what is known at their end."""
    begin = b'{"steps":['
    async for event in job.events():
        if isinstance(event, Filtered):
            summary = pieces(await _summary(event, name, job.options, exchange))
            yield b"]," + next(summary)[1:]
            for piece in summary:
                yield piece
        else:
            yield begin
            for piece in pieces(event):
                yield piece
            begin = b","


async def _summary(filtered: Filtered, name: str, options: FilterOptions, exchange: StateExchange) -> FilterSummary:
    state = None if filtered.state is None else await exchange.save(filtered.state.payload, filtered.state.count)
    return FilterSummary(
        model=name,
        smoothed=None if filtered.smoothed is None else Long(filtered.smoothed, numbers=SMOOTHED_NUMBERS),
        log_likelihood=filtered.log_likelihood,
        calibration=filtered.calibration,
        seed=options.seed,
        timings=filtered.timings,
        state=state,
    )


async def _lines(job: FilterJob | SequenceJob, name: str, exchange: StateExchange) -> AsyncIterator[Any]:
    async for event in job.events():
        if isinstance(event, Filtered):
            yield FilterDone(True, **vars(await _summary(event, name, job.options, exchange)))
        else:
            yield event
