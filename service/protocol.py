"""HTTP/1.1 and WebSocket connections with the limits that uvicorn lacks, every refusal in the one error shape.

    head      the time from the first byte (of the connection: from its opening) to the end of the headers → 408,
              their size → 431; a connection that never sent a byte is closed without a word
    body      the gap between two pieces is bounded where the body is read (`service.body`) → 408; what is left of a
              body after its answer is thrown away for a short while, so that the answer arrives, then cut
    answer    a reader that takes nothing for `send_timeout_seconds` is cut, with whatever its socket still holds
    sockets   beyond `max_connections` a new one hears 503 and is closed
    syntax    what is not HTTP → 400

Written against uvicorn 0.54 (HttpToolsProtocol, RequestResponseCycle, WebSocketsSansIOProtocol): these are its
private interfaces, so its version is pinned, and `tests/service/test_protocol.py` holds every line above to its word
on raw sockets.
"""

from __future__ import annotations

import asyncio
import fcntl
import termios
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

import httptools
import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from service.errors import STATUS, HeadersTooLarge, MalformedRequest, NotReady, RequestTimeout, ServiceError
from service.metrics import Metrics
from service.settings import Settings

# A client that asks for so many things before it reads an answer is not a client.
MAX_PIPELINED = 64
# How long a body is read on after its answer: enough for a client in the middle of sending to see the answer.
LINGER_SECONDS = 1.0
# What of a burst of WebSocket frames is read before others have their turn: 34 KB of small frames took 15 ms.
BURST_BYTES = 4_096
BYTES_BESIDE_A_HEADER = len(": \r\n")


@dataclass(frozen=True)
class Guard:
    """Limits of the connections of one server, and where refusals are counted."""

    settings: Settings
    metrics: Metrics

    def count(self, reason: str) -> None:
        """Count a connection that was ended by the server; `reason` is one of a few words."""
        self.metrics.connections_refused.labels(reason).inc()


def guarded_http(settings: Settings, metrics: Metrics) -> type[GuardedHTTP]:
    """The HTTP protocol with these limits."""
    return type("BoundHTTP", (GuardedHTTP,), {"guard": Guard(settings, metrics)})


def guarded_websocket(settings: Settings, metrics: Metrics) -> type[GuardedWebSocket]:
    """The WebSocket protocol with these limits."""
    return type("BoundWebSocket", (GuardedWebSocket,), {"guard": Guard(settings, metrics)})


class StallGuard:
    """Sees off a peer that takes nothing.

    Closing a transport waits until its buffer is written, which a peer with a full window puts off for ever; so do
    uvicorn's own timeouts, which all end in `close`. A server calls `drop_if_stalled` from time to time.
    """

    guard: ClassVar[Guard]
    transport: asyncio.Transport
    _pending = 0
    _pending_since = 0.0

    def is_quiet(self) -> bool:
        """Nothing is added to the buffer now, so that what the peer has to take can only shrink."""
        raise NotImplementedError

    def drop_if_stalled(self, now: float) -> None:
        """Cut the connection when its peer has taken nothing for the send timeout."""
        pending = untaken_bytes(self.transport) if self.is_quiet() else 0
        if pending == 0 or pending < self._pending or self._pending == 0:
            self._pending_since = now
        elif now - self._pending_since >= self.guard.settings.send_timeout_seconds:
            self.guard.count("stalled_reader")
            self.transport.abort()
        self._pending = pending


class GuardedHTTP(StallGuard, HttpToolsProtocol):
    """One HTTP connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        self._in_head = True
        self._in_body = False
        self._is_lingering = False
        self._is_last = False
        self._heads = 0
        self._head_bytes = 0
        self._refusal: ServiceError | None = None

    # Life of the connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.guard.settings.max_connections:
            error = NotReady("The server has no connection left; try again later.", code="too_many_connections")
            self.guard.count(error.code)
            self.transport.write(refusal(error))
            self.transport.close()
        else:
            self._set_timer(self.guard.settings.header_timeout_seconds, self._head_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_timer()
        self._unset_keepalive_if_required()
        self._tell_of_disconnect()  # uvicorn tells the newest request, which is not the one under way in a pipeline
        super().connection_lost(exc)

    def close_after_answer(self) -> None:
        """Take no request after the one under way, or after the next one where the connection is idle."""
        self._is_last = True
        for cycle in (self._answering, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None:
                cycle.keep_alive = False

    def is_quiet(self) -> bool:
        return self.flow.write_paused or self.transport.is_closing() or not self._is_busy()

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _tell_of_disconnect(self) -> None:
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # Bytes from the client.

    def data_received(self, data: bytes) -> None:
        if self._is_lingering or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        was_in_head, heads = self._in_head, self._heads
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or MalformedRequest("The request is not valid HTTP/1.1."))
            return
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._upgrade()
            return
        if self._in_head and was_in_head and self._heads == heads:  # all of it belongs to a head without an end yet
            self._head_bytes += len(data)
            if self._head_bytes > self.guard.settings.max_header_bytes:
                self._refuse(self._too_large())
                return
        # While an answer is under way it is us who keep the client waiting; after it the keep-alive time runs.
        if self._in_head and not self._is_busy() and self._timer is None and self.timeout_keep_alive_task is None:
            self._set_timer(self.guard.settings.header_timeout_seconds, self._head_timed_out)

    def on_headers_complete(self) -> None:
        self._clear_timer()
        self._in_head = False
        self._heads += 1
        self._head_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) + BYTES_BESIDE_A_HEADER for name, value in self.headers)
        if size > self.guard.settings.max_header_bytes:
            self._refusal = self._too_large()
            raise self._refusal  # out of the parser
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refusal = MalformedRequest(f"At most {MAX_PIPELINED} requests may wait for their answers.")
            raise self._refusal
        self._in_body = True
        known = self.cycle
        super().on_headers_complete()
        if self.cycle is not known:
            self.cycle.transport = _Answers(self)  # type: ignore[assignment]
            self.cycle.keep_alive = self.cycle.keep_alive and not self._is_last

    def on_message_complete(self) -> None:
        self._in_head = True
        self._in_body = False
        super().on_message_complete()
        if not self._is_busy() and not self._is_upgrade():  # the answer was first; from here on the connection is idle
            self._clear_timer()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _is_upgrade(self) -> bool:
        return self.parser.should_upgrade() and self._should_upgrade()

    def _upgrade(self) -> None:
        self._clear_timer()
        if self._is_busy():
            self._refuse(MalformedRequest("A WebSocket must not be opened while an answer is under way."))
        else:
            self.handle_websocket_upgrade()

    def _too_large(self) -> HeadersTooLarge:
        limit = self.guard.settings.max_header_bytes
        return HeadersTooLarge(f"The request line and headers must not be larger than {limit} bytes.")

    def _head_timed_out(self) -> None:
        self._timer = None
        if self._head_bytes:
            seconds = self.guard.settings.header_timeout_seconds
            self._refuse(RequestTimeout(f"The headers must end within {seconds:g} s.", code="header_timeout"))
        else:
            self.transport.close()

    # The end of an answer.

    def on_response_complete(self) -> None:
        if self._is_lingering:
            self.server_state.total_requests += 1
            return
        super().on_response_complete()
        if self._in_body and not self.transport.is_closing() and not self.pipeline:
            # The rest of the body is read and thrown away, so that the connection can go on: but not for ever.
            self._unset_keepalive_if_required()
            self._set_timer(self.guard.settings.body_timeout_seconds, self.transport.close)

    def finish(self) -> None:
        """Close after an answer; while the client still sends, first let it see the answer.

        Closing a socket with unread bytes resets it, and a client in the middle of sending then never reads.
        """
        if not self._in_body or self.transport.is_closing():
            self.transport.close()
            return
        self._is_lingering = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timer(LINGER_SECONDS, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """uvicorn's refusal, in our shape."""
        self._refuse(MalformedRequest("The request is not valid HTTP/1.1."))

    def _refuse(self, error: ServiceError) -> None:
        """Answer outside of the application and close; an answer under way is cut instead of being mixed with it."""
        self.guard.count(error.code)
        self._clear_timer()
        is_begun = self._is_busy() and (len(self.pipeline) > 0 or self.cycle.response_started)
        self._tell_of_disconnect()
        if not is_begun:
            self.transport.write(refusal(error))
        self._in_body = True  # the client may be sending still
        self.finish()

    # One timer: a connection waits for one thing at a time.

    def _set_timer(self, seconds: float, act: Callable[[], None]) -> None:
        self._clear_timer()
        self._timer = self.loop.call_later(seconds, act)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Answers:
    """The transport as an answer under way sees it: closing lets the client see what was written."""

    def __init__(self, connection: GuardedHTTP) -> None:
        self._connection = connection
        self.write = connection.transport.write

    def close(self) -> None:
        self._connection.finish()


class GuardedWebSocket(StallGuard, WebSocketsSansIOProtocol):
    """One WebSocket connection, from the handshake on."""

    _unread = b""

    def is_quiet(self) -> bool:
        return not self.writable.is_set() or self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Hand frames on, a burst of them in pieces, so that one client does not hold up all the others."""
        if not self.handshake_initiated:
            self._receive_handshake(data)
            return
        is_burst_under_way = bool(self._unread)
        self._unread += data
        if is_burst_under_way:
            self._pause()
        else:
            self._hand_on()

    def _hand_on(self) -> None:
        if self.transport.is_closing():  # as the kernel's, what was not read yet is lost
            return
        piece, self._unread = self._unread[:BURST_BYTES], self._unread[BURST_BYTES:]
        super().data_received(piece)
        if self._unread:
            self._pause()
            self.loop.call_soon(self._hand_on)
        elif not (self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _pause(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def _receive_handshake(self, data: bytes) -> None:
        """Refuse one that the HTTP parser let through and this one does not, such as a header over 8 KiB.

        The whole of it comes at once; uvicorn leaves such a connection open without a word.
        """
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            error = MalformedRequest("The request is not a WebSocket handshake that this server reads.")
            self.guard.count(error.code)
            self.transport.write(refusal(error))
            self.transport.close()


def untaken_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the peer has not acknowledged, where some of them are still ours to write; else 0.

    The kernel's part counts because it takes more from us only once a third of its megabytes is free: a slow reader
    would look like one that takes nothing.
    """
    ours = transport.get_write_buffer_size()
    if ours == 0:
        return 0
    queued = array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
    except OSError:
        return ours
    return ours + queued[0]


def refusal(error: ServiceError) -> bytes:
    """A whole HTTP/1.1 response in the one error shape, after which the connection closes."""
    status = HTTPStatus(STATUS[type(error)])
    body = orjson.dumps(error.payload())
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **{name.lower(): value for name, value in error.headers().items()},
        "connection": "close",
    }
    lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
