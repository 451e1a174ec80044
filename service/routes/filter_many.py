"""POST /filter with `series`: each is answered as if it had come alone, as soon as it ends."""

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
from rfa.runtime.uncertainty.steps import Steps, select_fields
from rfa.service.access.quotas import client_of
from rfa.service.access.record import record_of
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
from rfa.service.schemas.many import FilterManyDone, ManySummary
from rfa.service.schemas.replies import FilterColumns, FilterReply, FilterTimings
from rfa.service.schemas.requests import FilterRequest, FilterSeries
from rfa.service.validation import check_lengths, validated, validation_failure

if TYPE_CHECKING:
    from rfa.service.routes.filter import Asked

# What is done at once before others have a turn.
TURN_SECONDS: Final = 0.001
Begin = Callable[[FilterRequest, int], Awaitable[tuple[Part, "Asked"]]]


async def answer_many(body: FilterRequest, request: Request, engine: Engine, begin: Begin) -> Response:
    """Filter many series, each as if it had come alone.

    Args:
        begin: makes a part of the request of a series.

    Raises:
        ServiceError: what is wrong with the request as a whole.
    """
    model = engine.filter_model(await engine.choice(body.model, body.system))
    mode: dict[str, Any] = {} if body.mode == "recurrent" else {"mode": body.mode}
    model.readout(tuple(body.levels or model.levels), tuple(body.horizon), body.samples, passes=body.passes, **mode)
    many = await unless_disconnected(request, _Many.of(body, request, begin))
    if (keys := keys_of(request)) is not None:
        check_apart(keys, many.no_columns())
    parts = [one.part for one in many.begun.values()]
    client, count = client_of(request), sum(len(part.job.options.observations) for part in parts)
    client.afford("observations", count)
    deadline = None if body.deadline_ms is None else body.deadline_ms / 1000
    many.job = engine.filter_many(parts, deadline, lease_of(request)) if parts else None
    client.spend("observations", count)
    record_of(request).filtered(model.name, count)
    many.model = model.name
    if keys is not None:
        return await open_pieces(request, _arrow(many, keys), ARROW)
    if body.stream:
        wants_events = SSE in request.headers.get("accept", "").lower()
        return await open_stream(request, _lines(many), SSE if wants_events else NDJSON)
    return await document_response(request, _document(many))


@dataclass(frozen=True)
class _Series:
    """A series at work.

    Attributes:
        names: of its columns; None where it came in rows.
        request: what is of all series.
    """

    names: tuple[str, ...] | None
    request: FilterRequest
    part: Part
    asked: Asked

    def columns(self, *outputs: Any) -> Columns:
        """What is told of it, in columns."""
        columns = Columns(self.names or (), self.request.fields, self.request.horizon)
        for one in outputs:
            columns.add(one)
        return columns

    def no_columns(self) -> dict[str, np.ndarray]:
        """Every column that is told of it, empty."""
        columns = self.columns(self.part.job.no_steps())
        if self.request.smooth:
            columns.add_smoothed(())
        return columns.arrays()


class _Ended:
    """A series that has ended: what is told of it, or its error."""

    def __init__(self, place: int, name: str, reply: FilterReply | FilterColumns | ServiceError) -> None:
        self.place, self.name, self.reply = place, name, reply


class _Many:
    """The series of a request at work.

    Attributes:
        begun: by their places.
        refused: at once.
    """

    def __init__(self, body: FilterRequest, request: Request) -> None:
        self.body = body
        self.names = list(body.series or ())
        self.begun: dict[int, _Series] = {}
        self.refused: dict[int, ServiceError] = {}
        self.job: ManyJob | None = None
        self.model = ""
        self._series = request.app.state.metrics.filter_series
        self._observations = 0
        self._timings = FilterTimings(0.0, 0.0)
        self._failed = 0

    @classmethod
    async def of(cls, body: FilterRequest, request: Request, begin: Begin) -> _Many:
        """All series validated and ready to begin; other tasks run in between."""
        many = cls(body, request)
        shared = body.model_dump(exclude={"series", "stream"}, exclude_unset=True)
        pause = _Pauses(request.app.state.cooperative)
        for place, document in enumerate((body.series or {}).values()):
            await pause()
            try:
                one = _one(document, shared, request)
                names = None if one.values is None else tuple(one.values)
                # The request itself is not kept: its lists are longer than the arrays that were made of them.
                many.begun[place] = _Series(names, body, *await begin(one, place))
            except NAMED as error:
                many.refused[place] = as_service_error(error)
        return many

    async def ended(self) -> AsyncGenerator[_Ended]:
        """Every series once it has ended; at last `summary` is what it says. Closing it ends what is under way."""
        try:
            for place, error in self.refused.items():
                yield self._counted(place, error)
            if self.job is None:
                return
            async for event in self.job.events():
                if not isinstance(event, SeriesEnd):
                    self._timings = event
                    continue
                one = self.begun.pop(event.part.place)
                self._observations += one.part.job.taken
                yield self._counted(event.part.place, await _reply(one, event))
        finally:
            if self.job is not None:
                self.job.cancel()

    def _counted(self, place: int, reply: FilterReply | FilterColumns | ServiceError) -> _Ended:
        has_failed = isinstance(reply, ServiceError)
        self._failed += has_failed
        self._series.labels(self.model, "failed" if has_failed else "answered").inc()
        return _Ended(place, self.names[place], reply)

    def no_columns(self) -> dict[str, np.ndarray]:
        """Every column that is told of a series, empty; none where all were refused."""
        some = next(iter(self.begun.values()), None)
        return {} if some is None else some.no_columns()

    def summary(self) -> ManySummary:
        """The request as a whole, once all have ended."""
        return ManySummary(self.model, len(self.names), self._failed, self._observations, self._timings)


class _Pauses:
    """Waits for a turn where the one before it has lasted for long enough."""

    def __init__(self, cooperative: CooperativeWork) -> None:
        self._cooperative = cooperative
        self._until = 0.0

    async def __call__(self) -> None:
        if time.perf_counter() > self._until:
            await self._cooperative.pause()
            self._until = time.perf_counter() + TURN_SECONDS


def _one(document: Any, shared: dict[str, Any], request: Request) -> FilterRequest:
    """The request that a series would be alone.

    Raises:
        InvalidRequest: naming the field of the series.
    """
    if type(document) is not dict:
        raise InvalidRequest("A series must be a JSON object.", code="model_type")
    check_lengths(document, request.app.state.settings)
    for name in document:
        if name in FilterRequest.model_fields and name not in FilterSeries.model_fields:
            raise InvalidRequest(f"{name} is of all series: give it beside `series`", param=name, code="of_all_series")
        if name not in FilterSeries.model_fields:
            raise validation_failure([{"type": "extra_forbidden", "loc": (name,), "msg": ""}])
    return validated(FilterRequest, shared | document, "A series")


async def _reply(one: _Series, event: SeriesEnd) -> FilterReply | FilterColumns | ServiceError:
    if isinstance(event.end, ServiceError):
        return event.end
    try:
        if one.names is None:
            summary = await one.asked.summary(event.end)
            steps: Any = _SeriesOutputs(event.outputs, one.request.fields)  # in JSON it is a list
            return FilterReply(**vars(summary), steps=steps)
        columns = one.columns(*event.outputs)
        summary = await one.asked.summary_of_columns(event.end, columns)
        return FilterColumns(**vars(summary), columns=columns.arrays())
    except NAMED as error:  # of its state, which could not be kept
        return as_service_error(error)


class _SeriesOutputs(Blocks):
    """The steps of a series, made as they are encoded."""

    def __init__(self, outputs: Sequence[Any], fields: Collection[str] | None) -> None:
        self._outputs = outputs
        self._fields = fields

    def blocks(self) -> Iterator[list[Any]]:
        for outputs in self._outputs:
            if isinstance(outputs, Steps):
                yield from outputs.blocks(self._fields)
            else:
                yield [select_fields(outputs, self._fields)]


async def _document(many: _Many) -> AsyncIterator[bytes]:
    """The plain reply: `series` as they end, then the request as a whole."""
    between = b'{"series":{'
    async with aclosing(many.ended()) as ended:
        async for one in ended:
            yield between + orjson.dumps(one.name) + b":"
            reply = one.reply.payload() if isinstance(one.reply, ServiceError) else one.reply
            for piece in pieces(reply):
                yield piece
            between = b","
    yield b"}," + dumps(many.summary())[1:]


async def _lines(many: _Many) -> AsyncIterator[Any]:
    """A line for each series as it ends, and a last one."""
    async with aclosing(many.ended()) as ended:
        async for one in ended:
            reply = one.reply.payload() if isinstance(one.reply, ServiceError) else one.reply
            yield {"series": one.name, **vars(reply)}
    yield FilterManyDone(True, **vars(many.summary()))


async def _arrow(many: _Many, keys: Keys) -> AsyncIterator[bytes]:
    """The same as record batches, one for each series, with its keys first."""
    writer = SeriesWriter(keys, many.no_columns(), has_states=many.body.return_state is True)
    begin = writer.begin()
    async with aclosing(many.ended()) as ended:
        async for one in ended:
            yield begin + _batch(writer, one)
            begin = b""
    yield writer.end(dumps(FilterManyDone(True, **vars(many.summary()))))


def _batch(writer: SeriesWriter, one: _Ended) -> bytes:
    if isinstance(one.reply, ServiceError):
        return writer.failed(one.place, dumps(one.reply.payload()))
    assert isinstance(one.reply, FilterColumns)
    summary = {**vars(one.reply), "state": None}
    return writer.told(one.place, summary.pop("columns"), one.reply.state, dumps(summary))
