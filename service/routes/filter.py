"""POST /filter: state estimation, one JSON reply or a stream of steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response

from service.access.record import record_of
from service.body import StrictJSONRoute
from service.engine.engine import draw_seed
from service.engine.filtering import Filtered, FilterJob, FilterOptions
from service.routes.common import NDJSON, SSE, EngineDep, json_response, open_stream, unless_disconnected
from service.routes.generate import MODEL_ERRORS, refuse_state
from service.schemas import FilterReply, FilterRequest

router = APIRouter(route_class=StrictJSONRoute)


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
    refuse_state(body.state, body.return_state)
    options = _options(body)
    name = engine.filter_name(body.model)
    job = engine.filter(body.model, options)
    record_of(request).filtered(name, len(options.observations))
    if body.stream:
        wants_events = SSE in request.headers.get("accept", "").lower()
        return await open_stream(request, _lines(job, name), SSE if wants_events else NDJSON)
    filtered = await unless_disconnected(request, job.result())
    return json_response({"steps": filtered.steps, **_summary(filtered, name, options)})


def _options(body: FilterRequest) -> FilterOptions:
    count = len(body.observations)
    return FilterOptions(
        times=[float(index) for index in range(count)] if body.times is None else body.times,
        observations=body.observations,
        noise=body.noise,
        levels=tuple(body.levels or ()),
        horizon=tuple(body.horizon),
        samples=body.samples,
        seed=draw_seed() if body.seed is None else body.seed,
        mode=body.mode,
        smooth=body.smooth,
        is_streamed=body.stream,
    )


def _summary(filtered: Filtered, name: str, options: FilterOptions) -> dict[str, Any]:
    return {
        "model": name,
        "smoothed": filtered.smoothed,
        "log_likelihood": filtered.log_likelihood,
        "seed": options.seed,
        "timings": filtered.timings,
        "state": None,
    }


async def _lines(job: FilterJob, name: str) -> AsyncIterator[Any]:
    async for event in job.events():
        if isinstance(event, Filtered):
            yield {"done": True, **_summary(event, name, job.options)}
        else:
            yield event
