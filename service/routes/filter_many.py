"""POST /filter with several series. The reply for each series is identical to that of a request with this series alone.
It is sent when the series is complete."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from fastapi import Request, Response

from rfa.runtime.uncertainty.columns import Columns
from rfa.runtime.uncertainty.input import value_range
from rfa.runtime.uncertainty.interface import ReadoutOptions
from rfa.runtime.uncertainty.steps import Steps, select_fields
from rfa.service.access.quotas import client_of
from rfa.service.access.request_log import record_of
from rfa.service.arrow import ARROW, SeriesWriter, check_apart, keys_of
from rfa.service.cooperative import CooperativeWork
from rfa.service.disconnect import unless_disconnected
from rfa.service.encoding import Blocks, dumps, pieces
from rfa.service.engine.engine import Engine
from rfa.service.engine.filter.many import ManyJob, Part, SeriesEnd
from rfa.service.errors import NAMED, InvalidRequest, ServiceError, as_service_error
from rfa.service.long_format import Keys
from rfa.service.memory import lease_of
from rfa.service.routes.common import NDJSON, SSE, document_response, open_pieces, open_stream
from rfa.service.schemas.filter_replies import FilterColumns, FilterReply, FilterTimings
from rfa.service.schemas.filter_requests import FilterRequest, FilterSeries
from rfa.service.schemas.many import FilterManyDone, ManySummary
from rfa.service.validation import check_lengths, validated, validation_failure

if TYPE_CHECKING:
    from rfa.service.routes.filter import RunningFilter

# Time after which the validation of series pauses.
SLICE_SECONDS: Final = 0.001
Begin = Callable[[FilterRequest, int], Awaitable[tuple[Part, "RunningFilter"]]]


async def answer_many(body: FilterRequest, request: Request, engine: Engine, begin: Begin) -> Response:
    """Filter the series of a request, and return the response.

    Args:
        begin: Function that prepares the filtering of one series, given a request with only this series and the
            position of the series.

    Raises:
        ServiceError: If the request as a whole is invalid.
    """
    model = engine.filter_model(await engine.resolve_filter(body.model, body.system))
    options = ReadoutOptions(body.mode, passes=body.passes, range=value_range(*(body.range or (None, None))))
    model.readout(tuple(body.levels or model.levels), tuple(body.horizon), body.samples, options)
    batch = await unless_disconnected(request, SeriesBatch.of(body, request, begin))
    if (keys := keys_of(request)) is not None:
        check_apart(keys, batch.empty_columns())
    parts = [one.part for one in batch.running.values()]
    client, count = client_of(request), sum(len(part.job.options.observations) for part in parts)
    client.afford("observations", count)
    deadline = None if body.deadline_ms is None else body.deadline_ms / 1000
    batch.job = engine.filter_many(parts, deadline, lease_of(request)) if parts else None
    client.spend("observations", count)
    record_of(request).filtered(model.name, count)
    batch.model = model.name
    if keys is not None:
        return await open_pieces(request, _arrow(batch, keys), ARROW)
    if body.stream:
        wants_events = SSE in request.headers.get("accept", "").lower()
        return await open_stream(request, _lines(batch), SSE if wants_events else NDJSON)
    return await document_response(request, _document(batch))


@dataclass(frozen=True)
class RunningSeries:
    """A series that is being filtered.

    Attributes:
        names: Names of its columns. None if the request contains rows (`observations`).
        request: Request with all series.
        part: Series as a part of the job of the request.
        running: Request that contains only this series.
    """

    names: tuple[str, ...] | None
    request: FilterRequest
    part: Part
    running: RunningFilter

    def columns(self, *outputs: Any) -> Columns:
        """Return the outputs of the series as columns."""
        columns = Columns(self.names or (), self.request.fields, self.request.horizon)
        for one in outputs:
            columns.add(one)
        return columns

    def empty_columns(self) -> dict[str, np.ndarray]:
        """Return the columns of the results with no rows. They define the names and types of the reply."""
        columns = self.columns(self.part.job.no_steps())
        if self.request.smooth:
            columns.add_smoothed(())
        return columns.arrays()


@dataclass(frozen=True)
class SeriesResult:
    """Reply or error for a series. `place` is the position of the series in the request."""

    place: int
    name: str
    reply: FilterReply | FilterColumns | ServiceError


class SeriesBatch:
    """Validates and filters the series of a request.

    Attributes:
        names: Names of all series.
        running: Valid series by position, until they are complete.
        refused: Errors of invalid series by position.
    """

    def __init__(self, body: FilterRequest, request: Request) -> None:
        self.body = body
        self.names = list(body.series or ())
        self.running: dict[int, RunningSeries] = {}
        self.refused: dict[int, ServiceError] = {}
        self.job: ManyJob | None = None
        self.model = ""
        self._series = request.app.state.metrics.filter_series
        self._observations = 0
        self._timings = FilterTimings(0.0, 0.0)
        self._failed = 0

    @classmethod
    async def of(cls, body: FilterRequest, request: Request, begin: Begin) -> SeriesBatch:
        """Validate all series of a request, and return the batch. Other tasks can run during the validation."""
        batch = cls(body, request)
        shared = body.model_dump(exclude={"series", "stream"}, exclude_unset=True)
        pause = _Pauses(request.app.state.cooperative)
        for place, document in enumerate((body.series or {}).values()):
            await pause()
            try:
                one = _series_request(document, shared, request)
                names = None if one.values is None else tuple(one.values)
                # The request of the series is not stored, because its lists need more memory than its arrays.
                batch.running[place] = RunningSeries(names, body, *await begin(one, place))
            except NAMED as error:
                batch.refused[place] = as_service_error(error)
        return batch

    async def results(self) -> AsyncGenerator[SeriesResult]:
        """Yield the result of each series when the series is complete. Closing the iterator cancels the remaining
        series."""
        try:
            for place, error in self.refused.items():
                yield self._result(place, error)
            if self.job is None:
                return
            async for event in self.job.events():
                if not isinstance(event, SeriesEnd):
                    self._timings = event
                    continue
                one = self.running.pop(event.part.index)
                self._observations += one.part.job.filtered
                yield self._result(event.part.index, await _reply(one, event))
        finally:
            if self.job is not None:
                self.job.cancel()

    def _result(self, place: int, reply: FilterReply | FilterColumns | ServiceError) -> SeriesResult:
        has_failed = isinstance(reply, ServiceError)
        self._failed += has_failed
        self._series.labels(self.model, "failed" if has_failed else "answered").inc()
        return SeriesResult(place, self.names[place], reply)

    def empty_columns(self) -> dict[str, np.ndarray]:
        """Return the columns of a result with no rows. If all series were rejected, return no columns."""
        some = next(iter(self.running.values()), None)
        return {} if some is None else some.empty_columns()

    def summary(self) -> ManySummary:
        """Return the totals of all series. Call this after the end of `results`."""
        return ManySummary(self.model, len(self.names), self._failed, self._observations, self._timings)


class _Pauses:
    """Pauses if SLICE_SECONDS have passed since the last pause, so that other tasks can run."""

    def __init__(self, cooperative: CooperativeWork) -> None:
        self._cooperative = cooperative
        self._until = 0.0

    async def __call__(self) -> None:
        if time.perf_counter() > self._until:
            await self._cooperative.pause()
            self._until = time.perf_counter() + SLICE_SECONDS


def _series_request(document: Any, shared: dict[str, Any], request: Request) -> FilterRequest:
    """Build a request with a single series from its document and the fields that all series share."""
    if type(document) is not dict:
        raise InvalidRequest("Each series must be a JSON object.", code="model_type")
    check_lengths(document, request.app.state.settings.limits)
    for name in document:
        if name in FilterRequest.model_fields and name not in FilterSeries.model_fields:
            raise InvalidRequest(
                f"{name} applies to all series; move it from the series to the top level of the request",
                param=name,
                code="of_all_series",
            )
        if name not in FilterSeries.model_fields:
            raise validation_failure([{"type": "extra_forbidden", "loc": (name,), "msg": ""}])
    return validated(FilterRequest, shared | document, "A series")


async def _reply(one: RunningSeries, event: SeriesEnd) -> FilterReply | FilterColumns | ServiceError:
    if isinstance(event.end, ServiceError):
        return event.end
    try:
        if one.names is None:
            summary = await one.running.summary(event.end)
            steps: Any = _SeriesOutputs(event.outputs, one.request.fields)  # encoded as a JSON list
            return FilterReply(**vars(summary), steps=steps)
        columns = one.columns(*event.outputs)
        summary = await one.running.summary_of_columns(event.end, columns)
        return FilterColumns(**vars(summary), columns=columns.arrays())
    except NAMED as error:  # the state could not be saved
        return as_service_error(error)


class _SeriesOutputs(Blocks):
    """Steps of a series, which are converted to dictionaries while they are encoded."""

    def __init__(self, outputs: Sequence[Any], fields: Collection[str] | None) -> None:
        self._outputs = outputs
        self._fields = fields

    def blocks(self) -> Iterator[list[Any]]:
        for outputs in self._outputs:
            if isinstance(outputs, Steps):
                yield from outputs.blocks(self._fields)
            else:
                yield [select_fields(outputs, self._fields)]


async def _document(batch: SeriesBatch) -> AsyncIterator[bytes]:
    """Encode the JSON reply: first `series`, in the order in which they are completed, and then the totals."""
    between = b'{"series":{'
    async with aclosing(batch.results()) as results:
        async for one in results:
            yield between + orjson.dumps(one.name) + b":"
            reply = one.reply.payload() if isinstance(one.reply, ServiceError) else one.reply
            for piece in pieces(reply):
                yield piece
            between = b","
    yield b"}," + dumps(batch.summary())[1:]


async def _lines(batch: SeriesBatch) -> AsyncIterator[Any]:
    """Yield a document for each series when it is complete, and then the totals."""
    async with aclosing(batch.results()) as results:
        async for one in results:
            reply = one.reply.payload() if isinstance(one.reply, ServiceError) else one.reply
            yield {"series": one.name, **vars(reply)}
    yield FilterManyDone(True, **vars(batch.summary()))


async def _arrow(batch: SeriesBatch, keys: Keys) -> AsyncIterator[bytes]:
    """Encode the Arrow reply, with one record batch for each series. The first columns of a batch are the keys."""
    writer = SeriesWriter(keys, batch.empty_columns(), has_states=batch.body.return_state is True)
    begin = writer.begin()
    async with aclosing(batch.results()) as results:
        async for one in results:
            yield begin + _batch(writer, one)
            begin = b""
    yield writer.end(dumps(FilterManyDone(True, **vars(batch.summary()))))


def _batch(writer: SeriesWriter, one: SeriesResult) -> bytes:
    if isinstance(one.reply, ServiceError):
        return writer.add_failed(one.place, dumps(one.reply.payload()))
    assert isinstance(one.reply, FilterColumns)
    summary = {**vars(one.reply), "state": None}
    return writer.add(one.place, summary.pop("columns"), one.reply.state, dumps(summary))
