"""WebSocket connection. It converts frames to ASGI messages, with limits and flow control."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import h11
from starlette.types import Message, Scope
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHeaderValue
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from rfa.service.disconnect import Disconnected
from rfa.service.errors import MalformedRequest, Overloaded, ServiceError, UpgradeRequired
from rfa.service.frames import FRAMES, Take
from rfa.service.http.connection import Connection, ConnectionManager
from rfa.service.http.error_response import error_response
from rfa.service.http.plain_frame import frame_size, lone_text, text_frame
from rfa.service.http.request_response import PHRASES
from rfa.service.inbox import Inbox

logger = logging.getLogger("rfa.server")

# Maximum number of bytes that are passed to the parser at a time. This many bytes of the smallest frames take about a
# millisecond. Received data that is not larger does not wait in the queue of the connections.
BURST_BYTES: Final = 256
# Maximum number of fragments per message. An empty fragment adds no bytes but takes time.
MAX_FRAGMENTS: Final = 1_024
# After this time without data, a client is sent a ping. After twice this time, it is disconnected.
PING_SECONDS: Final = 20.0
# Maximum time to wait for the close frame of the client.
CLOSE_SECONDS: Final = 5.0
# Close codes (RFC 6455, 7.4.1).
ABNORMAL, INVALID_DATA, POLICY, INTERNAL, TRY_LATER, RESTART = 1006, 1007, 1008, 1011, 1013, 1012
QUIET: Final = logging.getLogger("rfa.server.frames")
QUIET.setLevel(logging.CRITICAL)  # protocol errors of clients are not logged, but reported to the client and counted


class WebSocketConnection(Connection):
    """Connection on which a client has requested a WebSocket.

    Args:
        request: Handshake, for which `wants_websocket` returned True.
        scope: ASGI scope of the handshake.
    """

    def __init__(self, manager: ConnectionManager, request: h11.Request, scope: Scope) -> None:
        super().__init__(manager)
        # If a message is slightly too large, the application replies with an error. Messages larger than this limit are
        # not read, and the connection is closed.
        self._frames = ServerProtocol(state=State.OPEN, max_size=2 * manager.limits.max_message_bytes, logger=QUIET)
        self._request = request
        offered = [value for name, value in request.headers if name == b"sec-websocket-protocol"]
        self._scope: Scope = {
            **scope,
            "subprotocols": [part.strip().decode("latin-1") for value in offered for part in value.split(b",")],
            "extensions": {"websocket.http.response": {}, FRAMES: self},
        }
        del self._scope["method"]
        self._handshake: Response | None = None
        self._response: Message | None = None  # sent instead of accepting the handshake
        self._response_body = bytearray()
        self._is_open = False
        self._is_ended = False
        self._inbox: Inbox[Message] = Inbox([{"type": "websocket.connect"}])
        self._message = bytearray()
        self._partial_bytes = 0
        self._surplus_bytes = 0  # bytes passed to the parser beyond complete frames
        self._fragments = 0
        self._is_within_message = False
        self._is_text = False
        self._received_at = self._loop.time()
        self._is_pinged = False
        self._listener: Take | None = None
        self._closing: asyncio.TimerHandle | None = None

    # Opening and closing.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._request.headers])
        handshake = self._frames.accept(Request(self._request.target.decode("ascii"), headers))
        if handshake.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            error = _handshake_error(self._frames.handshake_exc)
            self.write(error_response(self.manager, error, self._scope["client"]))
            self.transport.close()
            return
        self._handshake = handshake
        self.manager.start_task(self._run())

    def connection_lost(self, exc: Exception | None) -> None:
        self.manager.remove(self)
        self._lease.release()
        # Break two reference cycles. Otherwise, the objects would stay in memory until the next garbage collection.
        self._scope["extensions"].pop(FRAMES, None)
        self._frames.parser.close()
        if self._closing is not None:
            self._closing.cancel()
        self.writable.set()
        # Do not wake the application immediately. When 4,500 streams ended at the same time, its tasks took 0.4 s.
        self.manager.run_later(partial(self._deliver_end, ABNORMAL, ""))

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_reading()

    def shutdown(self) -> None:
        """Close the connection. uvicorn calls this when the server stops."""
        if self._is_open:
            self._close(RESTART)
        else:
            self.transport.close()

    def is_quiet(self) -> bool:
        return not self.writable.is_set() or self.transport.is_closing()

    def tick(self, now: float) -> None:
        """Disconnect a client that reads nothing. Send a ping to a client that sends nothing, and disconnect the client
        if it does not reply to the ping."""
        super().tick(now)
        if not self._is_open or self._is_paused or self.transport.is_closing() or self._closing is not None:
            self._received_at, self._is_pinged = self._loop.time(), False
            return
        silent = self._loop.time() - self._received_at
        if silent > 2 * PING_SECONDS:
            self._fail(INTERNAL, "the client did not reply to a ping")
        elif silent > PING_SECONDS and not self._is_pinged:
            self._is_pinged = True
            self._frames.send_ping(os.urandom(4))
            self._flush()

    # Bytes from the client.

    def data_received(self, data: bytes) -> None:
        self._received_at, self._is_pinged = self._loop.time(), False
        take = self._listener
        if take is not None and self._can_pass_directly() and (text := lone_text(data)) is not None and take(text):
            return
        self._unread += data
        if self._has_memory():
            self._update_reading()

    def _can_pass_directly(self) -> bool:
        """Return whether the next bytes are the start of a message and the application is waiting for it."""
        is_waiting = self._inbox.is_awaited and not (self._unread or self._surplus_bytes or self._is_within_message)
        return is_waiting and self._is_open_both_ways()

    def _is_open_both_ways(self) -> bool:
        is_writable = self.writable.is_set() and not self.transport.is_closing()
        return is_writable and self._is_open and self._frames.state is State.OPEN

    def eof_received(self) -> bool:
        return False  # closes the transport

    def _update_reading(self) -> None:
        """Schedule parsing if there is something to parse. Pause reading while received bytes wait to be parsed."""
        if self.transport.is_closing():
            return
        if self._is_ready() and not self._is_queued:
            self._is_queued = True
            if len(self._unread) <= BURST_BYTES:
                self._loop.call_soon(self._process)
            else:
                self.manager.run_later(self._process)
        self._pause_reading(bool(self._unread) and (self._is_open or len(self._unread) > BURST_BYTES))

    def _is_ready(self) -> bool:
        """Return whether there are received bytes that can be parsed. During the closing handshake, parsing does not
        wait for the application."""
        has_space = self.writable.is_set() and (not self._inbox or self._closing is not None)
        return bool(self._unread) and self._is_open and has_space and not self.transport.is_closing()

    def _process(self) -> None:
        """Parse received bytes in parts, so that one client does not delay the others."""
        self._is_queued = False
        if self.transport.is_closing():
            return
        while self._parse_burst() and self._is_ready() and self.manager.has_time():
            pass
        self._update_reading()

    def _parse_burst(self) -> bool:
        """Parse one part of the received bytes. Return whether the connection stays open."""
        piece = bytes(self._unread[:BURST_BYTES])
        del self._unread[: len(piece)]
        self._frames.receive_data(piece)
        events = self._frames.events_received()
        self._partial_bytes = 0 if events else self._partial_bytes + len(piece)
        self._surplus_bytes += len(piece)
        for event in events:
            assert isinstance(event, Frame)
            self._surplus_bytes -= frame_size(len(event.data))
            self._on_frame(event)
            event.data = b""  # the parser keeps a reference to its last frame
        self._flush()
        if self._frames.parser_exc is not None or self._frames.close_rcvd is not None:
            self._end_by_client()
            return False
        return self._has_memory()

    def _has_memory(self) -> bool:
        """Return whether there is memory for incomplete messages. Otherwise, close the connection, and return False."""
        try:
            self._lease.resize(len(self._unread) + len(self._message) + self._partial_bytes)
        except Overloaded as error:
            self._fail(TRY_LATER, error.code)
            return False
        return True

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._is_text, self._fragments = frame.opcode is Opcode.TEXT, 0
        elif frame.opcode is not Opcode.CONT:
            return  # the parser replies to pings; `_parse_burst` handles close frames
        self._fragments += 1
        self._is_within_message = not frame.fin
        if self._fragments > MAX_FRAGMENTS:
            self._fail(POLICY, "a message has too many fragments")
            return
        if not frame.fin or self._message:
            self._message += frame.data
        if frame.fin:
            data = bytes(self._message) if self._message else bytes(frame.data)
            self._message = bytearray()
            self._deliver_message(data)

    def _deliver_message(self, data: bytes) -> None:
        if self._is_ended or self._closing is not None:
            return
        try:
            content = {"text": data.decode()} if self._is_text else {"bytes": data}
        except UnicodeDecodeError:
            self._fail(INVALID_DATA, "a text message is not valid UTF-8")
            return
        self._append({"type": "websocket.receive", **content})

    def _end_by_client(self) -> None:
        """Close the connection after a close frame of the client or a protocol error."""
        close_frame = self._frames.close_rcvd or self._frames.close_sent
        code = close_frame.code if close_frame is not None else ABNORMAL
        self._deliver_end(code, close_frame.reason if close_frame is not None else "")
        self.transport.close()

    # To the application.

    async def _run(self) -> None:
        try:
            await self.manager.app(self._scope, self._receive, self._send)
        except Exception:  # the application has already reported it
            logger.debug("a WebSocket was closed after an error", exc_info=True)
        finally:
            if self._closing is None:
                self.transport.close()

    async def _receive(self) -> Message:
        if not self._inbox:
            await self._inbox.wait()
        message = self._inbox.popleft()
        if not self._inbox:
            self._update_reading()
        return message

    def _append(self, message: Message) -> None:
        self._inbox.put([message])

    def _deliver_end(self, code: int, reason: str) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._append({"type": "websocket.disconnect", "code": code, "reason": reason})

    # From the application.

    async def _send(self, message: Message) -> None:
        if not self.writable.is_set():
            await self.writable.wait()
        kind = message["type"]
        if self.transport.is_closing() or (self._is_ended and kind != "websocket.close"):
            raise Disconnected
        if self._is_open:
            self._send_frame(kind, message)
        elif kind == "websocket.accept":
            self._accept(message)
        elif kind == "websocket.close":
            self._send_response(HTTPStatus.FORBIDDEN, [], b"")
        elif kind == "websocket.http.response.start":
            self._response = message
        elif kind == "websocket.http.response.body" and self._response is not None:
            self._response_body += message.get("body", b"")
            if not message.get("more_body", False):
                headers = self._response.get("headers", ())
                self._send_response(self._response["status"], headers, bytes(self._response_body))
        else:
            raise RuntimeError(f"{kind} is not expected before the handshake is complete")

    def _send_frame(self, kind: str, message: Message) -> None:
        if kind == "websocket.close":
            self._close(message.get("code", 1000), message.get("reason") or "")
        elif kind == "websocket.send" and self._closing is None:
            if (data := message.get("bytes")) is not None:
                self._frames.send_binary(data)
            else:
                self._frames.send_text(message["text"].encode())
            self._flush()
        else:
            raise RuntimeError(f"{kind} is not expected on an open WebSocket")

    def listen(self, take: Take | None) -> None:
        self._listener = take

    def send_now(self, frames: Sequence[bytes]) -> bool:
        if self._is_ended or not self._is_open_both_ways():
            return False
        self.write(b"".join(map(text_frame, frames)))
        return True

    def _accept(self, message: Message) -> None:
        handshake = self._handshake
        assert handshake is not None
        for name, value in message.get("headers", ()):
            handshake.headers[name.decode("latin-1")] = value.decode("latin-1")
        if subprotocol := message.get("subprotocol"):
            handshake.headers["Sec-WebSocket-Protocol"] = subprotocol
        self.write(handshake.serialize())
        self._is_open = True
        self._update_reading()

    def _send_response(self, status: int, headers: Any, body: bytes) -> None:
        """Reply to the handshake with an HTTP response instead of a WebSocket."""
        names = {name.lower() for name, _ in headers}
        lines = [*self.manager.state.default_headers, *headers, (b"connection", b"close")]
        if b"content-length" not in names:
            lines.append((b"content-length", str(len(body)).encode()))
        head = b"HTTP/1.1 %d %s\r\n" % (status, PHRASES.get(status, b""))
        head += b"".join(b"%s: %s\r\n" % (name, value) for name, value in lines)
        self.write(head + b"\r\n" + body)
        self._deliver_end(ABNORMAL, "")
        self.transport.close()

    # The closing handshake.

    def _close(self, code: int, reason: str = "") -> None:
        """Start the closing handshake."""
        if self._closing is not None or self.transport.is_closing():
            return
        self._closing = self._loop.call_later(CLOSE_SECONDS, self.transport.close)
        if self._frames.state is State.OPEN:
            self._frames.send_close(code, reason)
            self._flush()
        self._deliver_end(code, reason)
        ends = [message for message in self._inbox if message["type"] == "websocket.disconnect"]
        self._inbox.clear()
        self._inbox.extend(ends)
        self._update_reading()

    def _fail(self, code: int, reason: str) -> None:
        """Close the connection because of an error or timeout of the client."""
        self.manager.count("websocket_failed")
        if self._frames.state is State.OPEN:
            self._frames.fail(code, reason)
            self._flush()
        self._deliver_end(code, reason)
        self.transport.close()

    def _flush(self) -> None:
        self.write(b"".join(self._frames.data_to_send()))


def _handshake_error(error: Exception | None) -> ServiceError:
    if isinstance(error, InvalidHeaderValue) and error.name == "Sec-WebSocket-Version":
        return UpgradeRequired("Sec-WebSocket-Version must be 13.")
    return MalformedRequest("The request is not a supported WebSocket handshake.")
