"""One HTTP/1.1 connection: heads, bodies and answers in turn, until it closes or becomes a WebSocket.

    HEAD ── a head is complete ──> BODY ── the body is complete ──> ANSWER ── answered ──> HEAD
                                     └──── answered first, the rest of the body thrown away ──┘

Requests have a parser each, so that nothing of one can show in the next; what is sent ahead waits unparsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Literal, cast

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
from rfa.service.wire.connection import TURN_SECONDS, Holding, StalledReader, Wire, address_of, is_reset
from rfa.service.wire.exchange import CONTINUE, Exchange, scope_of
from rfa.service.wire.head import (
    END,
    LINE_END,
    check_framing,
    check_line_ends,
    check_text,
    path_and_query,
    starts_like_a_request,
)
from rfa.service.wire.refusal import refuse
from rfa.service.wire.websocket import WebSocketConnection, wants_websocket

Phase = Literal["head", "body", "answer", "lingering"]

# Of requests that are sent before their turn; the rest waits in the client's socket.
MAX_AHEAD_BYTES: Final = 65_536
# Of a body, to the parser at once: a chunk of one byte costs it as much as one of 64 KiB, and a trailer more.
CHUNKED_SLICE_BYTES: Final = 1_024
PLAIN_SLICE_BYTES: Final = 65_536
# All trailers, or the line of a chunk's size: they are parsed in one go.
MAX_TRAILER_BYTES: Final = 1_024
# How long a client in the middle of sending is read on after the last answer, so that it sees that answer.
LINGER_SECONDS: Final = 1.0
LINGER_BYTES: Final = 16_777_216
# How often a client that has shut its sending side is asked whether it is still there.
PROBE_SECONDS: Final = 0.1
HTTP_1_1: Final = b"1.1"
NOT_HTTP: Final = "The request is not valid HTTP/1.1."


class HTTPConnection(StalledReader, asyncio.Protocol):
    """One connection of a client, from its opening to its end or to its upgrade."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.writable = asyncio.Event()
        self.writable.set()
        self.exchange: Exchange | None = None
        self.client: tuple[str, int] | None = None
        self._loop = asyncio.get_running_loop()
        self._phase: Phase = "head"
        self._unread = bytearray()
        self._searched = 0
        self._held = Holding(wire.memory)
        self._timer: asyncio.TimerHandle | None = None
        self._is_kept_alive = False
        self._has_turn = False
        self._is_last = False
        self._is_half_closed = False
        self._is_paused = False
        self._body_is_chunked = False
        self._framing_bytes = 0
        self._dropped_bytes = 0

    # Life of the connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self.client = address_of(transport.get_extra_info("peername"))
        self.wire.state.connections.add(self)  # type: ignore[arg-type]  # uvicorn's set of uvicorn's own
        if not self.wire.has_capacity():
            error = NotReady("The server has no connection left; try again later.", code="too_many_connections")
            self.transport.write(refuse(self.wire, error, self.client))
            self.transport.close()
            return
        self.wire.waiting[self] = None
        self._set_timer(self.wire.settings.header_timeout_seconds, self._head_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self.writable.set()
        if self.exchange is not None:
            self.exchange.leave()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def eof_received(self) -> bool:
        """The client sends no more; it may wait for its answers all the same."""
        self._is_half_closed = True
        if self._phase == "lingering":
            self.transport.close()
        elif not self._has_turn:
            self._work()
        return not self.transport.is_closing()

    def close_after_answer(self) -> None:
        """Take no request after the one under way, or after the next one where the connection is idle."""
        self._is_last = True
        if self.exchange is not None:
            self.exchange.is_last = True

    def shutdown(self) -> None:
        """uvicorn's word that the server stops: end now, or with the answer under way."""
        if self._phase in ("body", "answer"):
            self.close_after_answer()
        else:
            self.transport.close()

    def evict(self) -> None:
        """End, for a connection that may have more to say."""
        if self._unread or self._phase == "body":
            self._refuse(NotReady("The server needs this connection's place.", code="too_many_connections"))
        self.transport.close()
        self._forget()

    def is_quiet(self) -> bool:
        is_answering = self.exchange is not None and not self.exchange.is_complete
        return not self.writable.is_set() or self.transport.is_closing() or not is_answering

    def _forget(self) -> None:
        self.wire.state.connections.discard(self)  # type: ignore[arg-type]
        self.wire.waiting.pop(self, None)
        self._held.release()
        self._clear_timer()

    # Bytes from the client.

    def data_received(self, data: bytes) -> None:
        if self._phase == "lingering":
            self._drop(len(data), LINGER_BYTES)
        if self._phase == "lingering" or self.transport.is_closing():
            return
        self._unread += data
        if not self._has_turn and not self.wire.take_turn(self._work):
            self._queue_turn()
            self._read_on_or_pause()

    def body_taken(self) -> None:
        """There is room for more of the body."""
        if not self._has_turn and self._phase == "body":
            self._queue_turn()

    def _queue_turn(self) -> None:
        self._has_turn = True
        self.wire.queue_turn(self._go_on)

    def _go_on(self) -> None:
        self._has_turn = False
        if self._phase != "lingering" and not self.transport.is_closing():
            self._work()

    def _work(self) -> None:
        """Read what has come, for one turn."""
        until = self._loop.time() + TURN_SECONDS
        try:
            while self._advance():
                if self._loop.time() >= until:
                    self._queue_turn()
                    break
            self._held.resize(len(self._unread))
        except (MalformedRequest, HeadersTooLarge, PayloadTooLarge, Overloaded) as error:
            self._refuse(error)
        except h11.RemoteProtocolError as error:
            is_too_large = error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            message = f"Trailers, or the line of a chunk's size, must not be larger than {MAX_TRAILER_BYTES} bytes."
            self._refuse(HeadersTooLarge(message) if is_too_large else MalformedRequest(NOT_HTTP))
            error.__traceback__ = None  # h11's frame holds it: they would keep each other and this connection alive
        if self._is_half_closed and self._phase == "answer" and self._timer is None:
            self._set_timer(PROBE_SECONDS, self._probe)
        self._read_on_or_pause()

    def _advance(self) -> bool:
        """One step of reading; whether there may be another."""
        if self.transport.is_closing():
            return False
        if self._phase == "head":
            return self._read_head()
        return self._phase == "body" and self._read_body()

    def _read_on_or_pause(self) -> None:
        if self.transport.is_closing() or self._is_half_closed:
            return
        is_waiting = self._has_turn or self._phase == "answer" or self._is_blocked()
        should_pause = is_waiting and len(self._unread) > (MAX_AHEAD_BYTES if self._phase == "answer" else 0)
        if should_pause and not self._is_paused:
            self.transport.pause_reading()
        elif self._is_paused and not should_pause:
            self.transport.resume_reading()
        self._is_paused = should_pause

    # The head.

    def _read_head(self) -> bool:
        unread, limit = self._unread, self.wire.settings.max_header_bytes
        while not self._searched and unread.startswith(LINE_END):  # RFC 9112, 2.2
            del unread[:2]
            self._framing_bytes += 2
        if not starts_like_a_request(unread):
            raise MalformedRequest(NOT_HTTP)
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
                self._set_timer(self.wire.settings.header_timeout_seconds, self._head_timed_out)
            return False
        head = bytes(unread[: end + len(END)])
        del unread[: end + len(END)]
        self._searched = self._framing_bytes = 0
        self._clear_timer()
        self._held.release()
        self._begin(head)
        return True

    def _begin(self, head: bytes) -> None:
        """Start to answer the request of a head, or hand the connection over to a WebSocket."""
        check_text(head)
        parser = h11.Connection(h11.SERVER, MAX_TRAILER_BYTES)  # the head is complete
        parser.receive_data(head)
        request = parser.next_event()
        if not isinstance(request, h11.Request):
            raise MalformedRequest(NOT_HTTP)
        check_framing(request)
        path, query = path_and_query(request)
        is_websocket = wants_websocket(request)
        secure = self.transport.get_extra_info("sslcontext") is not None
        scope = scope_of(
            request,
            path,
            query,
            kind="websocket" if is_websocket else "http",
            scheme=("ws" if is_websocket else "http") + "s" * secure,
            client=self.client,
            server=address_of(self.transport.get_extra_info("sockname")),
            state=self.wire.app_state,
        )
        if is_websocket:
            self._upgrade(request, scope)
            return
        self._phase, self._dropped_bytes = "body", 0
        self._body_is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
        self.exchange = Exchange(self, parser, scope, self.wire.state)
        self.exchange.is_last = self._is_last
        task = self._loop.create_task(self.exchange.run(self.wire.app))
        self.wire.state.tasks.add(task)
        task.add_done_callback(self.wire.state.tasks.discard)

    def _upgrade(self, request: h11.Request, scope: Scope) -> None:
        """Let a WebSocket take the connection, with what was sent behind the handshake."""
        ahead = bytes(self._unread)
        self._unread.clear()
        self._forget()
        successor = WebSocketConnection(self.wire, request, scope)
        self.transport.set_protocol(successor)
        self._phase = "lingering"  # nothing more is done here
        if self._is_paused:
            self.transport.resume_reading()
            self._is_paused = False
        successor.connection_made(self.transport)
        if ahead:
            successor.data_received(ahead)

    def _head_timed_out(self) -> None:
        self._timer = None
        if self._unread or self._framing_bytes:
            seconds = self.wire.settings.header_timeout_seconds
            self._refuse(RequestTimeout(f"The headers must end within {seconds:g} s.", code="header_timeout"))
        else:
            self.transport.close()

    # The body.

    def _is_blocked(self) -> bool:
        return self._phase == "body" and self.exchange is not None and self.exchange.is_full

    def _read_body(self) -> bool:
        exchange = self.exchange
        assert exchange is not None
        if exchange.is_full:
            return False
        event = exchange.parser.next_event()
        if isinstance(event, h11.Data):
            self._framing_bytes -= len(event.data)
            if exchange.is_complete:
                self._drop(len(event.data), self.wire.settings.max_body_bytes)
            exchange.feed(event.data)
        elif isinstance(event, h11.EndOfMessage):  # whose headers are the trailers: dropped
            exchange.end_body()
            self._body_ended()
        elif event is h11.NEED_DATA:
            return self._feed_parser(exchange.parser)
        else:
            return False
        return True

    def _feed_parser(self, parser: h11.Connection) -> bool:
        if not self._unread:
            if self._is_half_closed:
                raise MalformedRequest("The body must not end before its declared end.")
            return False
        size = CHUNKED_SLICE_BYTES if self._body_is_chunked else PLAIN_SLICE_BYTES
        piece = bytes(self._unread[:size])
        del self._unread[: len(piece)]
        self._framing_bytes += len(piece)
        limit = self.wire.settings.max_body_bytes
        if self._body_is_chunked and self._framing_bytes > limit:
            raise PayloadTooLarge(f"Chunk sizes and trailers of a body must not be larger than {limit} bytes.")
        parser.receive_data(piece)
        return True

    def _drop(self, size: int, limit: int) -> None:
        """Count what is thrown away after an answer: not for ever."""
        self._dropped_bytes += size
        if self._dropped_bytes > limit:
            self.transport.close()

    def _body_ended(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        ahead, _ = exchange.parser.trailing_data
        self._unread[:0] = ahead
        self._framing_bytes = 0
        self.wire.waiting.pop(self, None)
        self._phase = "answer"
        if exchange.is_complete:
            self._next_request()

    # The end of an answer.

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is closing."""
        if not self.transport.is_closing():
            self.written_bytes += len(data)
            self.transport.write(data)

    def answered(self) -> None:
        """Go on to the next request, or close."""
        self.wire.state.total_requests += 1
        exchange = self.exchange
        assert exchange is not None
        if self.transport.is_closing():
            return
        if exchange.parser.our_state is not h11.DONE:  # both sides agreed that this was the last
            self._finish()
        elif self._phase == "answer":
            self._next_request()
            if not self._has_turn:
                self._queue_turn()
        else:
            # The rest of the body is read and thrown away, so that the connection can go on: but not for ever.
            self._set_timer(self.wire.settings.body_timeout_seconds, self.transport.close)
            self.body_taken()

    def _next_request(self) -> None:
        self._phase, self.exchange = "head", None
        self._searched = self._framing_bytes = 0
        self.wire.waiting[self] = None
        self._set_timer(self.wire.settings.keep_alive_seconds, self.transport.close)
        self._is_kept_alive = True

    def cut(self) -> None:
        """An answer that will never be complete ends with its connection, which the client can see."""
        self.transport.close()

    def _finish(self) -> None:
        """Close after an answer; while the client still sends, first let it see the answer.

        Closing a socket with unread bytes resets it, and a client in the middle of sending then never reads.
        """
        is_sending = (self._phase != "answer" or self._unread) and not self._is_half_closed
        self._phase, self._dropped_bytes = "lingering", 0
        self._unread.clear()
        self._held.release()
        if not is_sending or self.transport.is_closing():
            self.transport.close()
            return
        if self._is_paused:
            self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_timer(LINGER_SECONDS, self.transport.close)

    def _refuse(self, error: ServiceError) -> None:
        """Answer outside of the application and close; an answer under way is cut instead of being mixed with it."""
        self._clear_timer()
        exchange = self.exchange
        if exchange is not None:
            exchange.leave()
        if exchange is not None and exchange.is_started:  # the answer that is due, as far as it is written
            self.wire.count(error.code)
        else:
            self.write(refuse(self.wire, error, self.client))
        self._finish()

    # A client that has shut its sending side.

    def _probe(self) -> None:
        """Find out whether the client waits for its answer or has left: to TCP both look the same.

        An interim answer, which a client must be able to read (RFC 9110, 15.2), makes the kernel of one that has left
        reset the connection. The event loop does not hear of that while it neither reads nor writes.
        """
        exchange = self.exchange
        self._timer = None
        if exchange is None or self._phase != "answer" or self.transport.is_closing():
            return
        if exchange.parser.their_http_version == HTTP_1_1 and not exchange.is_started:
            self.write(exchange.parser.send(CONTINUE) or b"")
        self._set_timer(PROBE_SECONDS, self._look_whether_reset)

    def _look_whether_reset(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if is_reset(self.transport.get_extra_info("socket")):
            self.transport.abort()
        elif self._phase == "answer":
            self._set_timer(PROBE_SECONDS, self._look_whether_reset)

    # One timer: a connection waits for one thing at a time.

    def _set_timer(self, seconds: float, act: Callable[[], None]) -> None:
        self._clear_timer()
        self._timer = self._loop.call_later(seconds, act)

    def _clear_timer(self) -> None:
        self._is_kept_alive = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
