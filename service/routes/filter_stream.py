"""WS /filter/stream, which filters a live stream. The server replies to each frame with an observation, in order.

    → {"model" | "system", "levels", "horizon", "samples", "seed", "state", "return_state", "state_every"}, all optional
    ← {"ready": true, "model", "seed", "observation_size", "levels", "index"}
    → {"t", "y", "noise"}                    further observations may be sent before the reply
    ← a step as in POST /filter              with "state" and "warnings" every `state_every` steps
    ← {"error", "index", "t"}                for a late or invalid observation; the stream continues
    → {"close": true}
    ← {"done": true, "steps", "log_likelihood", "calibration", "warnings", "reason", "state", "refused"}

Then the server closes the connection. Unless the client disconnects, the last frame is the one with `done`, or
`{"error": …}` without `index`. A stream ends with the reason `refused` after 100 consecutive rejected observations. If
a client sends observations faster than the filter processes them, or does not read the replies, its frames are not read
for some time. A stream without observations for `stream_idle_seconds` ends with the reason `idle`, and a stream ends
with the reason `drain` when the server shuts down. In both cases, the last frame contains the state, if it was
requested. Pings are not observations, because client libraries send them even if the application does nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from rfa.data.utc_offsets import UtcOffsets
from rfa.runtime.errors import RefusedRow
from rfa.runtime.uncertainty.alarms import NEVER
from rfa.runtime.uncertainty.input import value_range
from rfa.runtime.uncertainty.steps import select_fields
from rfa.service.access.quotas import client_of
from rfa.service.disconnect import ClientGone
from rfa.service.engine.choices import ModelChoice, WithCovariates
from rfa.service.engine.engine import Engine
from rfa.service.engine.filter.stream import FilterStreamOptions, Observed, StreamEnd, StreamStep
from rfa.service.errors import (
    NAMED,
    ErrorReply,
    InvalidRequest,
    NotReady,
    RequestTimeout,
    as_service_error,
)
from rfa.service.frames import FRAMES, Frames
from rfa.service.memory import Lease
from rfa.service.routes.late import late_options
from rfa.service.routes.live_stream import LiveStream, refused_row
from rfa.service.routes.state import choose_seed, open_exchange
from rfa.service.routes.stream_frames import FRAME
from rfa.service.schemas.filter_replies import StreamDone
from rfa.service.schemas.stream_requests import FilterStreamRequest
from rfa.service.settings import Settings
from rfa.service.validation import validated
from rfa.service.websocket import NORMAL, POLICY, SERVICE_RESTART, JsonSocket, close_code

logger = logging.getLogger("rfa.stream")

# Maximum number of frames and replies that are processed before other tasks run.
FRAMES_PER_SLICE = 8
CLOSE_CODES: dict[str, int] = {"drain": SERVICE_RESTART, "refused": POLICY}


class FilterStream:
    """ASGI application for the endpoint /filter/stream."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Logs and metrics use the route. Starlette sets it only for HTTP.
        scope["route"] = ROUTE
        settings: Settings = scope["app"].state.settings
        socket = JsonSocket(
            receive,
            send,
            max_bytes=settings.limits.max_message_bytes,
            send_timeout=settings.limits.send_timeout_seconds,
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
    """Serve one stream, from its first frame to its last frame."""
    try:
        document, code = await _run(connection, socket)
    except ClientGone:
        raise
    except Exception as error:
        if not isinstance(error, NAMED):
            logger.exception("a live stream failed with an unexpected error")
        document, code = _terminal(error)
    await socket.end(document, code)


def _terminal(error: Exception) -> tuple[ErrorReply, int]:
    """Return the last frame of a stream that failed, and the close code.

    This is a separate function because an error in a local variable of `_serve` would keep the rejected document in
    memory, through a reference cycle of the error and the stack frame.
    """
    failure = as_service_error(error)
    return failure.payload(), close_code(failure)


async def _run(connection: HTTPConnection, socket: JsonSocket) -> tuple[StreamDone | ErrorReply, int]:
    """Process the stream until it ends. Return the last frame of the stream and the close code."""
    state = connection.app.state
    engine: Engine | None = state.engine
    if engine is None:
        raise NotReady("The bundles are not loaded yet; try again later.")
    request = await _read_request(socket, state.settings.limits.body_timeout_seconds)
    client = client_of(connection)
    with client.stream(), state.memory.take(0) as lease:
        engine.switch_when_due()  # a stream begins with its first frame, which may be long after the handshake
        stream = await _open(connection, engine, request, lease)
        try:
            await socket.write([stream.ready()])
            pace = client.pacer()
            reading = asyncio.create_task(_read(socket, stream, pace))
            frames: Frames | None = connection.scope.get("extensions", {}).get(FRAMES)
            if frames is not None:
                stream.use_direct_path(frames, 0 if pace is not None else socket.small_bytes)
            stream.end_when_idle(state.settings.limits.stream_idle_seconds)
            try:
                return await _reply(socket, stream)
            finally:
                reading.cancel()
                stream.close()
                await asyncio.gather(reading, return_exceptions=True)
        finally:
            stream.job.cancel()


async def _read_request(socket: JsonSocket, seconds: float) -> FilterStreamRequest:
    try:
        async with asyncio.timeout(seconds):
            document = await socket.read()
    except TimeoutError:
        raise RequestTimeout(f"The first frame must arrive within {seconds:g} seconds.") from None
    return validated(FilterStreamRequest, document, FRAME)


async def _open(connection: HTTPConnection, engine: Engine, request: FilterStreamRequest, lease: Lease) -> LiveStream:
    resolved = await engine.resolve_filter(request.model, request.system)
    choice: ModelChoice = resolved if request.known is None else WithCovariates(resolved, len(request.known))
    kind = partial(engine.filter_state, choice, request.size)
    exchange = await open_exchange(connection, kind, state=request.state, return_state=request.return_state)
    resumed = (
        None if exchange.opened is None else engine.read_filter_state(choice, exchange.opened.payload, request.size)
    )
    model = engine.filter_model(choice, request.size)
    rule = NEVER if request.alarm is None else request.alarm.options(request.tz)
    model.check_input(rule, resumed, is_given=False)
    job = engine.filter_stream(
        choice,
        FilterStreamOptions(
            levels=tuple(request.levels or ()),
            horizon=tuple(request.horizon),
            samples=request.samples,
            alarm=rule,
            passes=request.passes,
            range=value_range(*(request.range or (None, None))),
            weights="weights" in (request.fields or ()),
            seed=choose_seed(request.seed, resumed),
            state=resumed,
            # With a session, the state is stored before each reply is sent.
            state_every=1 if exchange.is_durable else request.state_every or 0,
            wants_state=exchange.is_requested,
            utc_offsets=UtcOffsets.of_zone(request.tz),
            late=late_options(request.late, model, exchange),
        ),
        lease,
        request.size,
    )
    return LiveStream(
        job,
        exchange,
        model.name,
        job.readout.passes,
        model.observation_size,
        asyncio.Event(),
        lease,
        request.fields,
        engine.retirement_warnings(request.model),
        request.known or (),
    )


async def _read(socket: JsonSocket, stream: LiveStream, pace: Callable[[int], float] | None) -> None:
    """Pass observations to the job, until the client closes the stream or disconnects, or a frame is too large.

    Args:
        pace: Function that counts observations, and returns the seconds until the next one is allowed.
    """
    job, loop = stream.job, get_running_loop()
    try:
        for count in itertools.count(1):
            observed = await _next_row(socket, stream)
            if observed is None:
                job.close()
                return
            await stream.wait_for_capacity()  # the direct path may have used the reserved memory in the meantime
            job.push(observed)
            recomputed, job.recomputed = job.recomputed, 0
            if pace is not None and (seconds := pace(1 + recomputed)):
                await asyncio.sleep(seconds)
            if count % FRAMES_PER_SLICE == 0:
                await asyncio.sleep(0)
            await stream.wait_for_capacity()
            stream.received_at = loop.time()
    except ClientGone:
        job.leave()
    except NAMED as error:
        job.close(as_service_error(error))
    except Exception as error:
        logger.exception("a live stream failed with an unexpected error")
        job.close(as_service_error(error))


async def _next_row(socket: JsonSocket, stream: LiveStream) -> Observed | RefusedRow | None:
    """Return the next observation or rejected row. Return None if the client has closed the stream."""
    try:
        document = await socket.read()
    except InvalidRequest as error:
        return refused_row(error)
    return stream.parse_row(document)


async def _reply(socket: JsonSocket, stream: LiveStream) -> tuple[StreamDone | ErrorReply, int]:
    """Send the replies until the stream ends. Return the last frame of the stream and the close code."""
    most = max(1, FRAMES_PER_SLICE // stream.job.event_rows)
    while True:
        replies = await stream.job.replies(most)
        if isinstance(replies, StreamEnd):
            return await _done(replies, stream), CLOSE_CODES.get(replies.reason, NORMAL)
        stream.sending = len(replies)
        await _send(socket, replies, stream)
        stream.on_replies_sent()
        await asyncio.sleep(0)


async def _send(socket: JsonSocket, replies: Sequence[StreamStep], stream: LiveStream) -> None:
    """Send replies. If the state of a reply cannot be saved, send the replies before it, and raise the error."""
    documents: list[Any] = []
    try:
        for reply in replies:
            documents.append(await _document(reply, stream))  # noqa: PERF401 - an error must keep the earlier documents
    finally:
        await socket.write(documents)


async def _document(reply: StreamStep, stream: LiveStream) -> Any:
    step, state = reply.step, reply.state
    if state is None:
        return select_fields(step, stream.fields)
    reference = await stream.exchange.save(state.payload, state.count)
    warnings = [*stream.notes, *(reply.warnings or [])]
    fields = vars(step) if stream.fields is None else select_fields(step, stream.fields)
    return {**fields, "state": reference, "warnings": warnings}


async def _done(end: StreamEnd, stream: LiveStream) -> StreamDone:
    state = None if end.state is None else await stream.exchange.save(end.state.payload, end.state.count)
    warnings = [*stream.notes, *end.warnings]
    return StreamDone(True, end.steps, end.log_likelihood, end.calibration, warnings, end.reason, state, end.refused)
