"""POST /filter, which estimates states. The reply is one document, or a stream with a document for each step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from rfa.data import usual_lag
from rfa.data.utc_offsets import UtcOffsets
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.ahead import followed
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.outputs import FilterWarning
from rfa.runtime.series.covariates import CovariateInputs
from rfa.runtime.uncertainty.alarms import NEVER
from rfa.runtime.uncertainty.columns import Columns
from rfa.runtime.uncertainty.input import (
    as_array,
    check_noise,
    from_columns,
    input_rows,
    level_name,
    value_range,
    without_bias,
)
from rfa.runtime.uncertainty.interface import FilterOptions, Inputs
from rfa.runtime.uncertainty.steps import Steps, select_fields
from rfa.service.access.quotas import client_of
from rfa.service.access.request_log import record_of
from rfa.service.arrow import ARROW, ARROW_BODY, BY_PARAMETER, ArrowRoute, encode_arrow, request_is_arrow
from rfa.service.disconnect import unless_disconnected
from rfa.service.encoding import Long, dumps, items, pieces
from rfa.service.engine.choices import ModelChoice, WithCovariates
from rfa.service.engine.engine import Engine
from rfa.service.engine.filter.filter_job import Filtered, FilterJob
from rfa.service.engine.filter.many import Part
from rfa.service.engine.filter.sequence_job import SequenceJob
from rfa.service.errors import InvalidRequest
from rfa.service.memory import lease_of
from rfa.service.routes.common import NDJSON, SSE, EngineDep, document_response, open_stream
from rfa.service.routes.filter_many import answer_many
from rfa.service.routes.generate import MODEL_ERRORS
from rfa.service.routes.late import late_options
from rfa.service.routes.state import StateExchange, choose_seed, open_exchange
from rfa.service.routes.stream_rows import times_of, without_refused
from rfa.service.schemas.filter_replies import ColumnsSummary, FilterColumns, FilterDone, FilterReply, FilterSummary
from rfa.service.schemas.filter_requests import FilterRequest
from rfa.service.schemas.many import FilterManyReply

router = APIRouter(route_class=ArrowRoute)
SMOOTHED_NUMBERS = 32  # estimated number of numbers in a smoothed step


@router.post(
    "/filter",
    response_model=FilterReply | FilterColumns | FilterManyReply,
    responses={
        200: {
            "model": FilterReply | FilterColumns | FilterManyReply,
            "description": (
                "The estimates for each observation. With `stream`, the reply has one line for each step. The format "
                "is NDJSON, or server-sent events if the Accept header requests them. For a rejected row, the line "
                'contains `error`, `index` and `t`. The last line contains `"done": true` or `{"error": …}`. If the '
                "request contains `values`, the reply contains columns. If the request is an Arrow stream, so is the "
                "reply. The metadata `rfa` of its schema contains the rest of the reply as JSON. If the request "
                "contains `series`, the reply contains the results by the name of the series. With `stream`, there is "
                "one line for each series. If the request is an Arrow stream with `by`, the reply has one record batch "
                "for each series. It contains the key columns, the columns as for a single series, `error`, and "
                "`state` in its last row if `return_state` is set. Its metadata `rfa` contains the rest of the reply "
                "for this series. The last batch is empty, and its metadata contains the totals."
            ),
            "content": {ARROW: {"schema": {"type": "string", "format": "binary"}}},
        },
        **MODEL_ERRORS,
    },
    tags=["filter"],
    openapi_extra={"requestBody": {"content": {ARROW: ARROW_BODY}}, "parameters": [BY_PARAMETER]},
)
async def filter_sequence(body: FilterRequest, request: Request, engine: EngineDep) -> Response:
    """Estimate the states of one or several series of observations."""
    if body.series is not None:
        return await answer_many(body, request, engine, partial(_part, request, engine))
    choice, name, passes, exchange, options = await _prepare(request, engine, body)
    client, count = client_of(request), len(options.observations)
    client.afford("observations", count)
    job = engine.filter(choice, options, lease_of(request))
    client.spend("observations", count)
    record_of(request).filtered(name, count)
    running = RunningFilter(request, job, name, passes, exchange, engine.retirement_warnings(body.model))
    if body.values is not None:
        columns = Columns(list(body.values), body.fields, body.horizon)
        if request_is_arrow(request):
            return await _arrow(running, columns)
        return await document_response(request, _columns(running, columns))
    if body.stream:
        wants_events = SSE in request.headers.get("accept", "").lower()
        return await open_stream(request, _lines(running, body.fields), SSE if wants_events else NDJSON)
    return await document_response(request, _document(running, body.fields))


async def _prepare(
    request: Request, engine: Engine, body: FilterRequest
) -> tuple[ModelChoice, str, int, StateExchange, FilterOptions]:
    """Return the choice of the model, its name, the number of passes, the states of the request, and the options."""
    size = _size(body)
    resolved = await engine.resolve_filter(body.model, body.system)
    choice: ModelChoice = resolved if body.known is None else WithCovariates(resolved, len(body.known))
    model = _model(body, engine, choice, size)
    kind = partial(engine.filter_state, choice, size)
    exchange = await open_exchange(request, kind, state=body.state, return_state=body.return_state)
    resumed = None if exchange.opened is None else engine.read_filter_state(choice, exchange.opened.payload, size)
    passes = model.passes.checked(body.passes, model.name)
    return choice, model.name, passes, exchange, _options(body, model, exchange, resumed)


async def _part(request: Request, engine: Engine, body: FilterRequest, place: int) -> tuple[Part, RunningFilter]:
    """Prepare the filtering of one series in a request with several series. Return the series for the engine, and the
    running request from which its reply is built."""
    choice, name, passes, exchange, options = await _prepare(request, engine, body)
    part = engine.filter_part(choice, options, place)
    return part, RunningFilter(request, part.job, name, passes, exchange, engine.retirement_warnings(body.model))


@dataclass(frozen=True)
class RunningFilter:
    """A running filter request. It stores what is needed to build the reply.

    Attributes:
        request: HTTP request.
        job: Job that filters the observations.
        model: Name of the model.
        passes: Number of reweighting passes.
        exchange: Object that opens and saves the states of the request.
        notes: Warnings about the request.
    """

    request: Request
    job: FilterJob | SequenceJob
    model: str
    passes: int
    exchange: StateExchange
    notes: list[FilterWarning]

    async def summary(self, filtered: Filtered) -> FilterSummary:
        """Return the results for the whole series. The quota for observations is adjusted: observations that were
        filtered repeatedly are added, and those that were not filtered are refunded."""
        if recomputed := getattr(self.job, "recomputed", 0):
            client_of(self.request).spend("observations", recomputed)
        if filtered.finish_reason != "complete":
            left, record = len(self.job.options.observations) - self.job.filtered, record_of(self.request)
            client_of(self.request).spend("observations", -left)
            record.filtered(self.model, -left)
            record.finish_reasons = (filtered.finish_reason,)
        state, calibration, options = filtered.state, filtered.calibration, self.job.options
        return FilterSummary(
            model=self.model,
            passes=self.passes,
            smoothed=None if filtered.smoothed is None else Long(filtered.smoothed, numbers=SMOOTHED_NUMBERS),
            log_likelihood=filtered.log_likelihood,
            calibration=replace(calibration, leads=calibration.leads[: len(options.horizon) - options.followed]),
            incidents=filtered.incidents.listed,
            omitted_incidents=filtered.incidents.omitted,
            warnings=[*self.notes, *filtered.warnings],
            seed=options.seed,
            timings=filtered.timings,
            finish_reason=filtered.finish_reason,
            state=None if state is None else await self.exchange.save(state.payload, state.count),
        )

    async def summary_of_columns(self, filtered: Filtered, columns: Columns) -> ColumnsSummary:
        """Return the results for the whole series for a reply in columns. The smoothed states are added to
        `columns`."""
        if filtered.smoothed is not None:
            columns.add_smoothed(filtered.smoothed)
        summary = await self.summary(replace(filtered, smoothed=None))
        names = [level_name(level) for level in self.job.options.levels]
        ahead = None if filtered.ahead is None else columns.ahead(filtered.ahead, names)
        return ColumnsSummary(**vars(summary), ahead=ahead)


def _model(body: FilterRequest, engine: Engine, choice: ModelChoice, size: int) -> FilterRuntime:
    """Return the model for `size` components. Errors name the field of the request that contains the observations."""
    try:
        return engine.filter_model(choice, size)
    except (InvalidInput, InvalidRequest) as error:
        if body.values is None or error.param != "observations":
            raise
        raise InvalidRequest(error.message, param="values", code=error.code) from None


def _size(body: FilterRequest) -> int:
    """Return the number of components of an observation. If there is no observation, return 1."""
    if body.values is not None:
        return len(body.values)
    return next((len(row) for row in body.observations or () if row is not None), 1)


def _options(body: FilterRequest, model: FilterRuntime, exchange: StateExchange, resumed: Any) -> FilterOptions:
    size = model.observation_size
    refused: Mapping[int, InvalidInput] = {}
    if body.is_forgiving:
        body, refused = without_refused(body, model)
    if body.values is not None:
        observations = from_columns(body.values, size, model.name)
    else:
        observations = as_array(body.observations or (), size, model.name)
    if body.bias is not None:
        observations = without_bias(observations, body.bias, model.name)
    rule = NEVER if body.alarm is None else body.alarm.options(body.tz)
    model.check_input(rule, resumed, is_given=body.input is not None)
    times = _times(body, len(observations), resumed)
    ahead, followed_leads = _ahead(body, model, times, resumed)
    horizon = (*body.horizon, *followed_leads)
    inputs, covariates_ahead = _inputs(body, model, times, horizon, ahead, resumed)
    return FilterOptions(
        times=times,
        observations=observations,
        noise=check_noise(body.noise, len(observations)),
        levels=tuple(body.levels or ()),
        horizon=horizon,
        ahead=ahead,
        followed=len(followed_leads),
        samples=body.samples,
        alarm=rule,
        utc_offsets=UtcOffsets.of_zone(body.tz),
        range=value_range(*(body.range or (None, None))),
        weights="weights" in (body.fields or ()),
        seed=choose_seed(body.seed, resumed),
        mode=body.mode,
        smooth=body.smooth,
        is_streamed=body.stream,
        state=resumed,
        wants_state=exchange.is_requested,
        is_whole=body.values is not None,
        deadline_seconds=None if body.deadline_ms is None else body.deadline_ms / 1000,
        passes=body.passes,
        inputs=inputs,
        covariates_ahead=covariates_ahead,
        names=tuple(body.values or ()),
        refused=refused,
        late=late_options(body.late, model, exchange),
    )


def _inputs(
    body: FilterRequest, model: FilterRuntime, times: np.ndarray, horizon: tuple[float, ...], ahead: tuple[float, ...],
    resumed: Any,
) -> tuple[Inputs | None, np.ndarray | None]:  # fmt: skip
    """Return the inputs for the observations, and the known columns at the future rows. If there are known columns, the
    inputs contain their values."""
    if body.known is None:
        return None if body.input is None else input_rows("input", body.input, model.state_size, model.name), None
    step = 1.0 if body.times is None else _usual_lag(times, resumed)
    columns = np.array(list(body.known.values()), np.float64).T
    later = step * np.arange(1, len(columns) - len(times) + 1)
    inputs = CovariateInputs(np.concatenate((times, times[-1:] + later)), columns, horizon, step)
    return inputs, inputs.at(times[-1] + np.array(ahead)) if ahead else None


def _times(body: FilterRequest, count: int, resumed: Any) -> np.ndarray:
    """Return the times of the request, `[N]`. If there are none, return the indices of the steps."""
    begin = 0 if resumed is None else resumed.count
    times = (
        np.arange(begin, begin + count, dtype=np.float64) if body.times is None else np.array(body.times, np.float64)
    )
    if body.is_forgiving:
        return times_of(body, times)
    if begin and times[0] < resumed.time:
        name = "times" if body.times is None else "times[0]"
        message = f"{name} must not be before the last time of the state"
        raise InvalidRequest(message, param=name, code="time_not_monotonic")
    return times


def _ahead(
    body: FilterRequest, model: FilterRuntime, times: np.ndarray, resumed: Any
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the horizons of the future rows, and additional horizons up to the last row for which the coverage is
    checked."""
    count = body.rows_ahead
    if not count:
        return (), ()
    step = 1.0 if body.times is None else _usual_lag(times, resumed)
    if not step:
        message = "ahead requires at least two different times, to determine the time step; use horizon instead"
        raise InvalidRequest(message, param="ahead", code="no_times")
    followed_leads = followed(model, step, count * step)
    return (
        tuple((step * np.arange(1, count + 1)).tolist()),
        tuple(lead for lead in followed_leads if lead not in body.horizon),
    )


def _usual_lag(times: np.ndarray, resumed: Any) -> float:
    """Return the typical time step of the times in the request. If it cannot be determined from the request, return
    that of the state. Return 0 if all times are equal."""
    if lag := usual_lag(times):
        return lag
    if resumed is None or not resumed.count:
        return 0.0
    return float(resumed.step or times[0] - resumed.time)


async def _document(running: RunningFilter, selected: Collection[str] | None) -> AsyncIterator[bytes]:
    """Encode the JSON reply: first `steps`, while they are computed, and then the results for the whole series."""
    between = begin = b'{"steps":['
    async for event in running.job.events():
        if isinstance(event, Filtered):
            summary = pieces(await running.summary(event))
            yield (begin if between is begin else b"") + b"]," + next(summary)[1:]
            for piece in summary:
                yield piece
        else:
            for block in event.blocks(selected) if isinstance(event, Steps) else ([select_fields(event, selected)],):
                yield between
                for piece in items(block):
                    yield piece
                between = b","


async def _lines(running: RunningFilter, selected: Collection[str] | None) -> AsyncIterator[Any]:
    async for event in running.job.events():
        if isinstance(event, Filtered):
            yield FilterDone(True, **vars(await running.summary(event)), refused=event.refused)
        elif isinstance(event, Steps):
            for block in event.blocks(selected):
                for step in block:
                    yield step
        else:
            yield select_fields(event, selected)


async def _collect(running: RunningFilter, columns: Columns) -> ColumnsSummary:
    """Add the outputs of all steps to `columns`, and return the results for the whole series."""
    async for event in running.job.events():
        if isinstance(event, Filtered):
            return await running.summary_of_columns(event, columns)
        columns.add(event)
    raise AssertionError("the job ended without a result")


async def _columns(running: RunningFilter, columns: Columns) -> AsyncIterator[bytes]:
    """Encode the JSON reply in columns."""
    summary = vars(await _collect(running, columns))
    for piece in pieces(FilterColumns(**summary, columns=columns.arrays())):
        yield piece


async def _arrow(running: RunningFilter, columns: Columns) -> Response:
    """Return the Arrow reply. The metadata `rfa` of its schema is JSON with the results for the whole series."""
    summary = await unless_disconnected(running.request, _collect(running, columns))
    return Response(encode_arrow(columns.arrays(), dumps(summary)), media_type=ARROW)
