"""HTTP/1.1 connection. It handles requests in order, until it is closed or upgraded to a WebSocket.

    head ── complete ──> body ── complete ──> response ── complete ──> head
                          └── response complete first: the rest of the body is discarded ──┘

Each request has its own parser. Pipelined requests are not parsed before the response to the current request is
complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

import h11
from starlette.types import Scope

from rfa.service.errors import (
    HeadersTooLarge,
    MalformedRequest,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
    ServiceError,
)
from rfa.service.http.connection import SLICE_SECONDS, Connection, ConnectionManager, host_and_port, is_reset
from rfa.service.http.error_response import error_response
from rfa.service.http.head import END, LINE_END, check_line_ends, check_start, parse_error, parse_head, wants_websocket
from rfa.service.http.request_response import CONTINUE, RequestResponse, make_scope
from rfa.service.http.websocket import WebSocketConnection

# Maximum number of bytes of pipelined requests that are read ahead.
MAX_AHEAD_BYTES: Final = 65_536
# Maximum number of body bytes that are passed to the parser at a time. With chunks, it is smaller, because parsing a
# chunk of one byte takes as long as parsing one of 64 KiB, and a trailer takes longer.
CHUNKED_SLICE_BYTES: Final = 1_024
PLAIN_SLICE_BYTES: Final = 65_536
# After the last response, the server reads from a client that is still sending for this time and up to this size, so
# that the client receives the response.
LINGER_SECONDS: Final = 1.0
LINGER_BYTES: Final = 16_777_216
# Interval between checks whether a client that has shut down its sending side is still connected.
PROBE_SECONDS: Final = 0.1
HTTP_1_1: Final = b"1.1"


class HTTPConnection(Connection):
    """HTTP/1.1 connection of one client, until it is closed or upgraded."""

    def __init__(self, manager: ConnectionManager) -> None:
        super().__init__(manager)
        self.current: RequestResponse | None = None
        self.client: tuple[str, int] | None = None
        self._phase: Literal["head", "body", "response", "lingering"] = "head"
        self._searched = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_kept_alive = False
        self._is_last = False
        self._is_half_closed = False
        self._body_is_chunked = False
        self._framing_bytes = 0
        self._discarded_bytes = 0

    # Opening and closing.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client = host_and_port(transport.get_extra_info("peername"))
        if not self.manager.has_capacity():
            error = NotReady("The server has no free connections; try again later.", code="too_many_connections")
            self.write(error_response(self.manager, error, self.client))
            self.transport.close()
            return
        self.manager.waiting[self] = None
        self._set_timer(self.manager.limits.header_timeout_seconds, self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unregister()
        self.writable.set()
        if self.current is not None:
            self.current.disconnect()

    def eof_received(self) -> bool:
        """Handle the end of the client's input. Return True if the connection must stay open, because the client may
        still be waiting for responses."""
        self._is_half_closed = True
        if self._phase == "lingering":
            self.transport.close()
        elif not self._is_queued:
            self._process()
        return not self.transport.is_closing()

    def close_after_response(self) -> None:
        """Close the connection after the current response. If the connection is idle, close it after the next one."""
        self._is_last = True
        if self.current is not None:
            self.current.is_last = True

    def shutdown(self) -> None:
        """Close the connection now, or after the current response. uvicorn calls this when the server stops."""
        if self._phase in ("body", "response"):
            self.close_after_response()
        else:
            self.transport.close()

    def evict(self) -> None:
        """Close this idle connection, so that another client can be served."""
        if self._unread or self._phase == "body":
            self._send_error(
                NotReady(
                    "The server closed this idle connection to accept another client.", code="too_many_connections"
                )
            )
        self.transport.close()
        self._unregister()

    def is_quiet(self) -> bool:
        is_responding = self.current is not None and not self.current.is_complete
        return not self.writable.is_set() or self.transport.is_closing() or not is_responding

    def _unregister(self) -> None:
        self.manager.remove(self)
        self.manager.waiting.pop(self, None)
        self._lease.release()
        self._clear_timer()

    # Bytes from the client.

    def data_received(self, data: bytes) -> None:
        if self._phase == "lingering":
            self._discard(len(data), LINGER_BYTES)
        if self._phase == "lingering" or self.transport.is_closing():
            return
        self._unread += data
        if not self._is_queued and not self.manager.run_now(self._process):
            self._queue()
            self._update_reading()

    def read_more_body(self) -> None:
        """Continue reading the body, after the application has received some of it."""
        if not self._is_queued and self._phase == "body":
            self._queue()

    def _queue(self) -> None:
        self._is_queued = True
        self.manager.run_later(self._process_queued)

    def _process_queued(self) -> None:
        self._is_queued = False
        if self._phase != "lingering" and not self.transport.is_closing():
            self._process()

    def _process(self) -> None:
        """Parse received bytes for one time slice."""
        until = self._loop.time() + SLICE_SECONDS
        try:
            while self._step():
                if self._loop.time() >= until:
                    self._queue()
                    break
            self._lease.resize(len(self._unread))
        except (MalformedRequest, HeadersTooLarge, PayloadTooLarge, Overloaded) as error:
            self._send_error(error)
        except h11.RemoteProtocolError as error:
            self._send_error(parse_error(error))
            error.__traceback__ = None  # breaks a reference cycle between h11's frame, the error and this connection
        if self._is_half_closed and self._phase == "response" and self._timer is None:
            self._set_timer(PROBE_SECONDS, self._probe)
        self._update_reading()

    def _step(self) -> bool:
        """Parse one part of the received bytes. Return whether there may be more to parse."""
        if self.transport.is_closing():
            return False
        if self._phase == "head":
            return self._read_head()
        return self._phase == "body" and self._read_body()

    def _update_reading(self) -> None:
        if self.transport.is_closing() or self._is_half_closed:
            return
        is_full = self._phase == "body" and self.current is not None and self.current.is_full
        is_waiting = self._is_queued or self._phase == "response" or is_full
        self._pause_reading(is_waiting and len(self._unread) > (MAX_AHEAD_BYTES if self._phase == "response" else 0))

    # The head.

    def _read_head(self) -> bool:
        unread, limit = self._unread, self.manager.limits.max_header_bytes
        while not self._searched and unread.startswith(LINE_END):  # RFC 9112, 2.2
            del unread[:2]
            self._framing_bytes += 2
        check_start(unread)
        end = unread.find(END, max(0, self._searched - len(END) + 1))
        size = self._framing_bytes + (len(unread) if end < 0 else end + len(END))
        if size > limit:
            raise HeadersTooLarge(f"The request line and headers must not be larger than {limit} bytes.")
        if end < 0:
            check_line_ends(unread, self._searched)
            self._searched = 0 if unread == b"\r" else len(unread)
            if self._is_half_closed:
                self.transport.close()
            elif self._is_kept_alive and (unread or self._framing_bytes):
                self._set_timer(self.manager.limits.header_timeout_seconds, self._on_head_timeout)
            return False
        head = bytes(unread[: end + len(END)])
        del unread[: end + len(END)]
        self._searched = self._framing_bytes = 0
        self._clear_timer()
        self._lease.release()
        self._start_request(head)
        return True

    def _start_request(self, head: bytes) -> None:
        """Parse a head. Start the application for the request, or upgrade the connection to a WebSocket."""
        parser, request = parse_head(head)
        if wants_websocket(request):
            self._upgrade(request, make_scope(request, "websocket", self))
            return
        scope = make_scope(request, "http", self)
        self._phase, self._discarded_bytes = "body", 0
        self._body_is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
        self.current = RequestResponse(self, parser, scope, self.manager.state)
        self.current.is_last = self._is_last
        self.manager.start_task(self.current.run(self.manager.app))

    def _upgrade(self, request: h11.Request, scope: Scope) -> None:
        """Pass the connection, and bytes that were received after the handshake, to a WebSocket."""
        ahead = bytes(self._unread)
        self._unread.clear()
        self._unregister()
        successor = WebSocketConnection(self.manager, request, scope)
        self.transport.set_protocol(successor)
        self._phase = "lingering"  # in this phase, this object ignores everything
        self._pause_reading(False)
        successor.connection_made(self.transport)
        if ahead:
            successor.data_received(ahead)

    def _on_head_timeout(self) -> None:
        self._timer = None
        if self._unread or self._framing_bytes:
            seconds = self.manager.limits.header_timeout_seconds
            self._send_error(
                RequestTimeout(f"The headers must be complete within {seconds:g} s.", code="header_timeout")
            )
        else:
            self.transport.close()

    # The body.

    def _read_body(self) -> bool:
        current = self.current
        assert current is not None
        if current.is_full:
            return False
        event = current.parser.next_event()
        if isinstance(event, h11.Data):
            self._framing_bytes -= len(event.data)
            if current.is_complete:
                self._discard(len(event.data), self.manager.limits.max_body_bytes)
            current.feed(event.data)
        elif isinstance(event, h11.EndOfMessage):  # the headers of the event are the trailers, which are ignored
            current.end_body()
            self._end_body(current)
        elif event is h11.NEED_DATA:
            return self._feed_parser(current.parser)
        else:
            return False
        return True

    def _feed_parser(self, parser: h11.Connection) -> bool:
        if not self._unread:
            if self._is_half_closed:
                raise MalformedRequest("The request body is shorter than its Content-Length.")
            return False
        size = CHUNKED_SLICE_BYTES if self._body_is_chunked else PLAIN_SLICE_BYTES
        piece = bytes(self._unread[:size])
        del self._unread[: len(piece)]
        self._framing_bytes += len(piece)
        limit = self.manager.limits.max_body_bytes
        if self._body_is_chunked and self._framing_bytes > limit:
            raise PayloadTooLarge(
                f"The chunk sizes and trailers of a body must not be larger than {limit} bytes in total."
            )
        parser.receive_data(piece)
        return True

    def _discard(self, size: int, limit: int) -> None:
        """Count bytes that are discarded after a response. Close the connection if they exceed the limit."""
        self._discarded_bytes += size
        if self._discarded_bytes > limit:
            self.transport.close()

    def _end_body(self, current: RequestResponse) -> None:
        ahead, _ = current.parser.trailing_data
        self._unread[:0] = ahead
        self._framing_bytes = 0
        self.manager.waiting.pop(self, None)
        self._phase = "response"
        if current.is_complete:
            self._await_next_request()

    # The end of a response.

    def on_response_complete(self) -> None:
        """Read the next request, or close the connection. This is called after the last byte of a response was
        written."""
        self.manager.state.total_requests += 1
        current = self.current
        assert current is not None
        if self.transport.is_closing():
            return
        if current.parser.our_state is not h11.DONE:  # this was the last request
            self._finish()
        elif self._phase == "response":
            self._await_next_request()
            if not self._is_queued:
                self._queue()
        else:
            # Discard the rest of the body for a limited time, so that the connection can be reused.
            self._set_timer(self.manager.limits.body_timeout_seconds, self.transport.close)
            self.read_more_body()

    def _await_next_request(self) -> None:
        self._phase, self.current = "head", None
        self._searched = self._framing_bytes = 0
        self.manager.waiting[self] = None
        self._set_timer(self.manager.limits.keep_alive_seconds, self.transport.close)
        self._is_kept_alive = True

    def _finish(self) -> None:
        """Close the connection after a response. If the client is still sending, wait before closing.

        Closing a socket with unread bytes resets the connection, and the client could lose the response.
        """
        is_sending = (self._phase != "response" or self._unread) and not self._is_half_closed
        self._phase, self._discarded_bytes = "lingering", 0
        self._unread.clear()
        self._lease.release()
        if not is_sending or self.transport.is_closing():
            self.transport.close()
            return
        self._pause_reading(False)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timer(LINGER_SECONDS, self.transport.close)

    def _send_error(self, error: ServiceError) -> None:
        """Close the connection. Send an error response first, unless another response has already started."""
        self._clear_timer()
        current = self.current
        if current is not None:
            current.disconnect()
        if current is not None and current.is_started:
            self.manager.count(error.code)
        else:
            self.write(error_response(self.manager, error, self.client))
        self._finish()

    # A client that has shut down its sending side.

    def _probe(self) -> None:
        """Send an interim response (RFC 9110, 15.2), to find out whether the client is waiting or has disconnected.

        For TCP, the two cases look the same. If the client has disconnected, its kernel replies with a reset. The event
        loop does not notice a reset while it neither reads nor writes, so `_check_reset` polls for it.
        """
        current = self.current
        self._timer = None
        if current is None or self._phase != "response" or self.transport.is_closing():
            return
        if current.parser.their_http_version == HTTP_1_1 and not current.is_started:
            self.write(current.parser.send(CONTINUE) or b"")
        self._set_timer(PROBE_SECONDS, self._check_reset)

    def _check_reset(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if is_reset(self.transport.get_extra_info("socket")):
            self.transport.abort()
        elif self._phase == "response":
            self._set_timer(PROBE_SECONDS, self._check_reset)

    # One timer is enough, because a connection waits for only one event at a time.

    def _set_timer(self, seconds: float, act: Callable[[], None]) -> None:
        self._clear_timer()
        self._timer = self._loop.call_later(seconds, act)

    def _clear_timer(self) -> None:
        self._is_kept_alive = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
