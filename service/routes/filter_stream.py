"""WS /filter/stream: a live filter, one frame per observation and one reply frame each, in order.

    → {"model" | "system", "levels", "horizon", "samples", "seed", "state", "return_state", "state_every"}, all optional
    ← {"ready": true, "model", "seed", "observation_size", "levels", "index"}
    → {"t", "y", "noise"} …                  pipelining is welcome
    ← a step of POST /filter … plus "state" and "warnings" where they are due
    → {"close": true}
    ← {"done": true, "steps", "log_likelihood", "calibration", "warnings", "reason", "state"}, then a normal close

Exactly one terminal frame ends every stream that the client did not leave: `done`, or `{"error": …}`. A bad frame ends
the stream after the answers to what came before it. A client that pipelines faster than the filter works, or does not
take its replies, is read no further until it has caught up. One that sends no observation for `stream_idle_seconds`
gets its `done` with the reason `idle`, and goes on from the state where it likes, as when the server goes down. Pings
do not count: libraries send them for clients that have forgotten their stream.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from rfa.runtime.errors import InvalidInput
from rfa.runtime.outputs import FilterWarning
from rfa.runtime.uncertainty.alarms import NEVER
from rfa.runtime.uncertainty.input import (
    LARGEST_OBSERVATION,
    LARGEST_TIME,
    LEAST_NOISE,
    MOST_COMPONENTS,
    MOST_NOISE,
    bias_out_of_range,
    check_size,
)
from rfa.runtime.uncertainty.steps import select_fields
from rfa.service.access.quotas import client_of
from rfa.service.body import decode_json
from rfa.service.disconnect import ClientGone
from rfa.service.encoding import dumps
from rfa.service.engine.engine import Engine
from rfa.service.engine.filter.stream import FilterStreamOptions, Observed, StreamEnd, StreamJob, StreamStep
from rfa.service.errors import (
    NAMED,
    ErrorReply,
    InvalidRequest,
    NotReady,
    Overloaded,
    RequestTimeout,
    as_service_error,
)
from rfa.service.frames import FRAMES, Frames
from rfa.service.memory import SMALL_BYTES, Lease
from rfa.service.routes.state import StateExchange, choose_seed, open_exchange
from rfa.service.schemas.replies import StreamDone, StreamReady, StreamStepReply
from rfa.service.schemas.requests import FilterStreamRequest, StreamClose, StreamObservation
from rfa.service.settings import Settings
from rfa.service.validation import validated
from rfa.service.websocket import NORMAL, SERVICE_RESTART, JsonSocket, close_code

logger = logging.getLogger("rfa.stream")

FRAME = "The frame"
_PLAIN_FIELDS = frozenset(StreamObservation.model_fields) - {"input", "bias"}
# Frames that were there already are taken so many at a time, and answers sent: then others have their turn.
FRAMES_A_TURN = 8
# Observations that a stream may have under way without asking for memory, where they are small.
PIPELINED = 2
_Frame = tuple[float | None, list[float | None] | None, float | None, list[float] | None, list[float] | None]
_NUMBERS = (float, int)  # as `type(…)` says: a bool is neither


class FilterStream:
    """The endpoint, as an ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette names only the routes of HTTP; logs and metrics want this one, too.
        scope["route"] = ROUTE
        settings: Settings = scope["app"].state.settings
        socket = JsonSocket(
            receive,
            send,
            max_bytes=settings.max_message_bytes,
            send_timeout=settings.send_timeout_seconds,
            cooperative=scope["app"].state.cooperative,
        )
        try:
            await socket.accept(scope["subprotocols"])
            await _serve(HTTPConnection(scope), socket)
        finally:
            socket.close()


ROUTE = WebSocketRoute("/filter/stream", FilterStream())
router = APIRouter(routes=[ROUTE])


async def _serve(connection: HTTPConnection, socket: JsonSocket) -> None:
    """One stream from its first frame to its terminal one."""
    try:
        document, code = await _run(connection, socket)
    except ClientGone:
        raise
    except Exception as error:
        if not isinstance(error, NAMED):
            logger.exception("stream failed")
        document, code = _terminal(error)
    await socket.end(document, code)


def _terminal(error: Exception) -> tuple[ErrorReply, int]:
    """What a stream that failed ends with. An error that its own frame held would keep all of that frame alive, a
    refused document included, until the collector comes by, which is seldom."""
    failure = as_service_error(error)
    return failure.payload(), close_code(failure)


async def _run(connection: HTTPConnection, socket: JsonSocket) -> tuple[StreamDone | ErrorReply, int]:
    """Everything up to the terminal frame, which is returned with its close code."""
    state = connection.app.state
    engine: Engine | None = state.engine
    if engine is None:
        raise NotReady("The bundles are not loaded.")
    request = await _read_request(socket, state.settings.body_timeout_seconds)
    client = client_of(connection)
    with client.stream(), state.memory.take(0) as lease:
        engine.settle()  # a stream begins with its first frame, however long its connection has been open
        stream = await _open(connection, engine, request, lease)
        try:
            await socket.write([stream.ready()])
            pace = client.pacer()
            reading = asyncio.create_task(_read(socket, stream, pace))
            frames: Frames | None = connection.scope.get("extensions", {}).get(FRAMES)
            if frames is not None:
                stream.shorten(frames, 0 if pace is not None else socket.small_bytes)
            stream.end_when_idle(state.settings.stream_idle_seconds)
            try:
                return await _reply(socket, stream)
            finally:
                reading.cancel()
                stream.forget()
                await asyncio.gather(reading, return_exceptions=True)
        finally:
            stream.job.cancel()


async def _read_request(socket: JsonSocket, seconds: float) -> FilterStreamRequest:
    try:
        async with asyncio.timeout(seconds):
            document = await socket.read()
    except TimeoutError:
        raise RequestTimeout(f"The first frame must come within {seconds:g} seconds.") from None
    return validated(FilterStreamRequest, document, FRAME)


@dataclass
class _Stream:
    """An open stream."""

    job: StreamJob
    exchange: StateExchange
    model: str
    passes: int
    size: int
    index: int
    time: float
    capacity_freed: asyncio.Event
    lease: Lease
    fields: Sequence[str] | None
    notes: list[FilterWarning]
    seen: float = 0.0  # when the client's last observation was taken, by the loop's clock
    timer: asyncio.TimerHandle | None = None
    leased_answers: int = 1
    sending: int = 0
    frames: Frames | None = None
    small_bytes: int = 0

    @property
    def may_read(self) -> bool:
        """Whether there is room for one observation more: none under way can always be followed by one."""
        outstanding = self.job.unanswered + self.sending + 1
        if self.job.is_full:
            return False
        if outstanding > self.leased_answers:
            try:
                self.lease.grow((outstanding - self.leased_answers) * self.job.answer_bytes)
            except Overloaded:
                return False
            self.leased_answers = outstanding
        return True

    async def wait_for_capacity(self) -> None:
        """Until `may_read`."""
        while not self.may_read:
            self.capacity_freed.clear()
            await self.capacity_freed.wait()

    def answered(self) -> None:
        """Answers were sent: give back what they took, and read on."""
        self.sending = 0
        kept = max(self.job.unanswered, PIPELINED if self.job.answer_bytes < SMALL_BYTES else 1)
        if kept < self.leased_answers:
            self.lease.shrink((self.leased_answers - kept) * self.job.answer_bytes)
            self.leased_answers = kept
        self.capacity_freed.set()

    def ready(self) -> StreamReady:
        """The answer to the first frame."""
        return StreamReady(True, self.model, self.passes, self.job.seed, self.size, self.job.options.levels, self.index)

    def take(self, document: Any) -> Observed | None:
        """Check a frame; None closes the stream.

        Raises:
            InvalidRequest: naming the field.
        """
        if type(document) is dict and "close" in document:
            validated(StreamClose, document, FRAME)
            return None
        t, y, noise, held, bias = _observation(document)
        if t is None:
            if self.job.options.alarm.per_time:
                raise InvalidRequest(
                    "t is needed where alarm.rate is per time, in seconds.", param="t", code="no_times"
                )
            t = float(self.index)
        if y is not None:
            self._check_columns(y)
        if t < self.time:
            raise InvalidRequest("t must not be smaller than the time before it.", param="t", code="time_not_monotonic")
        if held is not None:
            model = self.job.filtering.model
            model.check_input(self.job.options.alarm, None, is_given=True)
            check_size("input", held, model.state_size, self.model)
        if bias is not None:
            check_size("bias", bias, self.size, self.model)
            if y is not None:
                y = [None if seen is None else seen - offset for seen, offset in zip(y, bias, strict=True)]
                if not _is_observation(y):
                    raise bias_out_of_range("bias")
        self.time = t
        self.index += 1
        return Observed(t, y, 1.0 if noise is None else noise, held)

    def _check_columns(self, y: list[float | None]) -> None:
        try:
            check_size("y", y, self.size, self.model)
        except InvalidInput as error:
            if not self.job.filtering.model.suits_any:
                raise
            raise InvalidRequest(
                f'{error}: say "size": {len(y)} in the first frame', param="y", code="shape_mismatch"
            ) from None

    def shorten(self, frames: Frames, small_bytes: int) -> None:
        """Take and answer observations without a task, where nothing has to wait and nothing is wrong.

        Args:
            small_bytes: of a frame that may be taken so; 0 is none, where the client's are held back by a quota.
        """
        self.frames, self.small_bytes = frames, small_bytes
        if small_bytes:
            frames.listen(self._hear)
        if self.job.is_quick:
            self.job.listen(self._tell)

    def _hear(self, frame: bytes) -> bool:
        """Take an observation, where there is room; anything else is declined, and so read by `_read`."""
        if len(frame) > self.small_bytes or not self.may_read:
            return False
        try:
            observed = self.take(decode_json(frame, "A frame"))
        except Exception:  # which `_read` will find, too
            return False
        if observed is None:
            return False
        self.job.push(observed)
        self.seen = get_running_loop().time()
        return True

    def _tell(self, events: Sequence[Any]) -> bool:
        """Send the answers to observations; anything else is declined, and so sent by `_reply`."""
        assert self.frames is not None
        for event in events:
            if not isinstance(event, StreamStep) or event.state is not None:
                return False
        try:
            frames = [dumps(select_fields(event.step, self.fields)) for event in events]
        except Exception:  # which `_reply` will find, too, for this client alone
            return False
        if not self.frames.send_now(frames):
            return False
        self.job.consumed(len(events))
        self.answered()
        return True

    def end_when_idle(self, seconds: float) -> None:
        """End the stream once nothing has come for so long. One timer for its life: one for each frame is dear."""
        self.seen = get_running_loop().time()
        self._look(seconds)

    def _look(self, seconds: float) -> None:
        loop = get_running_loop()
        if not self.job.is_idle:  # an answer is still to come: it is the client that waits
            self.seen = loop.time()
        if loop.time() - self.seen >= seconds:
            self.job.close(reason="idle")
        else:
            self.timer = loop.call_at(self.seen + seconds, self._look, seconds)

    def forget(self) -> None:
        """The stream is over."""
        if self.frames is not None:
            self.frames.listen(None)
            self.job.listen(None)
        if self.timer is not None:
            self.timer.cancel()


async def _open(connection: HTTPConnection, engine: Engine, request: FilterStreamRequest, lease: Lease) -> _Stream:
    choice = await engine.choice(request.model, request.system)
    kind = partial(engine.filter_state, choice, request.size)
    exchange = await open_exchange(connection, kind, state=request.state, return_state=request.return_state)
    resumed = (
        None if exchange.opened is None else engine.read_filter_state(choice, exchange.opened.payload, request.size)
    )
    model = engine.filter_model(choice, request.size)
    rule = NEVER if request.alarm is None else request.alarm.rule()
    model.check_input(rule, resumed, is_given=False)
    job = engine.filter_stream(
        choice,
        FilterStreamOptions(
            levels=tuple(request.levels or ()),
            horizon=tuple(request.horizon),
            samples=request.samples,
            alarm=rule,
            passes=request.passes,
            seed=choose_seed(request.seed, resumed),
            state=resumed,
            # A session is stored before each answer.
            state_every=1 if exchange.is_durable else request.state_every or 0,
            wants_state=exchange.is_requested,
        ),
        lease,
        request.size,
    )
    count, time = (0, -LARGEST_TIME) if resumed is None or not resumed.count else (resumed.count, resumed.time)
    return _Stream(
        job,
        exchange,
        model.name,
        job.readout.passes,
        model.observation_size,
        count,
        time,
        asyncio.Event(),
        lease,
        request.fields,
        engine.retirement(request.model),
    )


async def _read(socket: JsonSocket, stream: _Stream, pace: Callable[[], float] | None) -> None:
    """Hand the client's observations over until it closes, errs or leaves.

    Args:
        pace: counts an observation and gives the seconds until the client may send another.
    """
    job, loop = stream.job, get_running_loop()
    try:
        for count in itertools.count(1):
            observed = stream.take(await socket.read())
            if observed is None:
                job.close()
                return
            await stream.wait_for_capacity()  # what came meanwhile by the short way may have taken it
            job.push(observed)
            if pace is not None and (seconds := pace()):
                await asyncio.sleep(seconds)
            if count % FRAMES_A_TURN == 0:
                await asyncio.sleep(0)
            await stream.wait_for_capacity()
            stream.seen = loop.time()
    except ClientGone:
        job.leave()
    except NAMED as error:
        job.close(as_service_error(error))
    except Exception as error:
        logger.exception("stream failed")
        job.close(as_service_error(error))


async def _reply(socket: JsonSocket, stream: _Stream) -> tuple[StreamDone | ErrorReply, int]:
    """Send the answers as they come; returns the terminal frame and its close code."""
    most = max(1, FRAMES_A_TURN // stream.job.event_rows)
    while True:
        replies = await stream.job.replies(most)
        if isinstance(replies, StreamEnd):
            code = SERVICE_RESTART if replies.reason == "drain" else NORMAL
            return await _done(replies, stream), code
        stream.sending = len(replies)
        await _answer(socket, replies, stream)
        stream.answered()
        await asyncio.sleep(0)


async def _answer(socket: JsonSocket, replies: Sequence[StreamStep], stream: _Stream) -> None:
    """Send answers; one whose state cannot be kept is not sent, those before it are."""
    documents: list[Any] = []
    try:
        for reply in replies:
            documents.append(await _document(reply, stream))  # noqa: PERF401 - a failure leaves those before it
    finally:
        await socket.write(documents)


async def _document(reply: StreamStep, stream: _Stream) -> Any:
    step, state = reply.step, reply.state
    if state is None:
        return select_fields(step, stream.fields)
    reference = await stream.exchange.save(state.payload, state.count)
    warnings = [*stream.notes, *(reply.warnings or [])]
    if stream.fields is None:
        return StreamStepReply(**vars(step), state=reference, warnings=warnings)
    return {**select_fields(step, stream.fields), "state": reference, "warnings": warnings}


async def _done(end: StreamEnd, stream: _Stream) -> StreamDone:
    state = None if end.state is None else await stream.exchange.save(end.state.payload, end.state.count)
    warnings = [*stream.notes, *end.warnings]
    return StreamDone(True, end.steps, end.log_likelihood, end.calibration, warnings, end.reason, state)


def _observation(document: Any) -> _Frame:
    """`t`, `y`, `noise`, `input` and `bias` of a frame, by the rules of `StreamObservation`, without its cost where all
    is well and the last two are not there."""
    if type(document) is dict and "y" in document and document.keys() <= _PLAIN_FIELDS:
        t, y, noise = document.get("t"), document["y"], document.get("noise")
        if (
            (t is None or (type(t) in _NUMBERS and -LARGEST_TIME <= t <= LARGEST_TIME))
            and (y is None or _is_observation(y))
            and (noise is None or (type(noise) in _NUMBERS and LEAST_NOISE <= noise <= MOST_NOISE))
        ):
            return None if t is None else float(t), y, None if noise is None else float(noise), None, None
    frame = validated(StreamObservation, document, FRAME)
    return frame.t, frame.y, frame.noise, frame.input, frame.bias


def _is_observation(y: Any) -> bool:
    if type(y) is not list or not 1 <= len(y) <= MOST_COMPONENTS:
        return False
    for value in y:
        if value is not None and (
            type(value) not in _NUMBERS or not -LARGEST_OBSERVATION <= value <= LARGEST_OBSERVATION
        ):
            return False
    return True
