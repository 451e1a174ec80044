"""One WebSocket connection, as the application sees it (ASGI) and as its budgets hold it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

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
from rfa.service.wire.connection import Holding, StalledReader, Wire
from rfa.service.wire.exchange import PHRASES
from rfa.service.wire.plain_frame import frame_size, lone_text, text_frame
from rfa.service.wire.refusal import refuse

logger = logging.getLogger("rfa.server")

# Of a burst of frames, to the parser at once: forty of the smallest take a millisecond. Who has sent no more since the
# last time, an observation and in time, waits for no turn.
BURST_BYTES: Final = 256
# Of one message: fragments cost more than their bytes, empty ones cost nothing but that.
MAX_FRAGMENTS: Final = 1_024
# A silent peer is asked for a sign of life after so long, and given as long to send it.
PING_SECONDS: Final = 20.0
# For the peer's half of the closing handshake.
CLOSE_SECONDS: Final = 5.0
VERSION: Final = "13"
# RFC 6455, 7.4.1.
ABNORMAL, INVALID_DATA, POLICY, INTERNAL, TRY_LATER = 1006, 1007, 1008, 1011, 1013
QUIET: Final = logging.getLogger("rfa.server.frames")
QUIET.setLevel(logging.CRITICAL)  # what clients do wrong is told to them and counted, it is nothing of ours


def wants_websocket(request: h11.Request) -> bool:
    """Whether a request is a WebSocket handshake: any other upgrade is left alone (RFC 9110, 7.8)."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in request.headers:
        values.setdefault(name, []).extend(part.strip().lower() for part in value.split(b","))
    has_body = b"transfer-encoding" in values or values.get(b"content-length", [b"0"]) != [b"0"]
    return (
        request.method == b"GET"
        and request.http_version == b"1.1"
        and not has_body
        and b"upgrade" in values.get(b"connection", ())
        and values.get(b"upgrade") == [b"websocket"]
    )


class WebSocketConnection(StalledReader, asyncio.Protocol):
    """A connection whose client asked for a WebSocket.

    Args:
        request: the handshake, which `wants_websocket` has found to be one.
        scope: of it.
    """

    def __init__(self, wire: Wire, request: h11.Request, scope: Scope) -> None:
        self.wire = wire
        self.writable = asyncio.Event()
        self.writable.set()
        # A message a little too large is refused in words by whoever reads it; one far too large is not even read.
        self._frames = ServerProtocol(state=State.OPEN, max_size=2 * wire.settings.max_message_bytes, logger=QUIET)
        self._request = request
        offered = [value for name, value in request.headers if name == b"sec-websocket-protocol"]
        self._scope: Scope = {
            **scope,
            "subprotocols": [part.strip().decode("latin-1") for value in offered for part in value.split(b",")],
            "extensions": {"websocket.http.response": {}, FRAMES: self},
        }
        del self._scope["method"]
        self._loop = asyncio.get_running_loop()
        self._handshake: Response | None = None
        self._refusal: Message | None = None
        self._refusal_body = bytearray()
        self._is_open = False
        self._is_ended = False
        self._unread = bytearray()
        self._has_turn = False
        self._is_paused = False
        self._inbox: deque[Message] = deque([{"type": "websocket.connect"}])
        self._news = asyncio.Event()
        self._message = bytearray()
        self._partial_bytes = 0
        self._surplus_bytes = 0  # that the parser was given beyond whole frames
        self._fragments = 0
        self._is_within = False  # a message of several frames
        self._is_text = False
        self._held = Holding(wire.memory)
        self._heard = self._loop.time()
        self._is_pinged = False
        self._listener: Take | None = None
        self._is_awaited = False  # the application waits for a message, and none was told
        self._closing: asyncio.TimerHandle | None = None

    # Life of the connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self.wire.state.connections.add(self)  # type: ignore[arg-type]  # uvicorn's set of uvicorn's own
        headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._request.headers])
        handshake = self._frames.accept(Request(self._request.target.decode("ascii"), headers))
        if handshake.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._refuse(_fault(self._frames.handshake_exc))
            return
        self._handshake = handshake
        task = self._loop.create_task(self._run())
        self.wire.state.tasks.add(task)
        task.add_done_callback(self.wire.state.tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        self.wire.state.connections.discard(self)  # type: ignore[arg-type]
        self._held.release()
        self._scope["extensions"].pop(FRAMES, None)  # a circle, which would wait for the collector
        if self._closing is not None:
            self._closing.cancel()
        self.writable.set()
        # The parser is a generator of the protocol that holds it: open, both would wait for the collector.
        self._frames.parser.close()
        # In turn: of 4,500 streams that end at once, the application's ends took 0.4 s.
        self.wire.queue_turn(partial(self._tell_end, ABNORMAL, ""))

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()
        self._read_on()

    def shutdown(self) -> None:
        """uvicorn's word that the server stops."""
        if self._is_open:
            self._close(1012)
        else:
            self.transport.close()

    def is_quiet(self) -> bool:
        return not self.writable.is_set() or self.transport.is_closing()

    def tick(self, now: float) -> None:
        """Cut a peer that takes nothing; ask a silent one for a sign of life, and end one that gives none."""
        super().tick(now)
        if not self._is_open or self._is_paused or self.transport.is_closing() or self._closing is not None:
            self._heard, self._is_pinged = self._loop.time(), False
            return
        silent = self._loop.time() - self._heard
        if silent > 2 * PING_SECONDS:
            self._fail(INTERNAL, "no answer to a ping")
        elif silent > PING_SECONDS and not self._is_pinged:
            self._is_pinged = True
            self._frames.send_ping(os.urandom(4))
            self._flush()

    # Bytes from the client.

    def data_received(self, data: bytes) -> None:
        self._heard, self._is_pinged = self._loop.time(), False
        if self._listener is not None and self._is_next() and self._is_taken(data, self._listener):
            return
        self._unread += data
        if self._has_memory():
            self._read_on()

    def _is_next(self) -> bool:
        """Whether what comes now begins a message that the application waits for."""
        is_waiting = self._is_awaited and not (self._unread or self._surplus_bytes or self._is_within)
        return is_waiting and self._is_open_both_ways()

    def _is_taken(self, data: bytes, take: Take) -> bool:
        text = lone_text(data)
        return text is not None and take(text)

    def _is_open_both_ways(self) -> bool:
        is_open = self._is_open and self._frames.state is State.OPEN
        return is_open and self.writable.is_set() and not self.transport.is_closing()

    def eof_received(self) -> bool:
        return False  # without a closing handshake the client is gone

    def _read_on(self) -> None:
        """Arrange for what has come to be read, as long as the application and the peer keep up."""
        if self.transport.is_closing():
            return
        if self._is_ready() and not self._has_turn:
            self._has_turn = True
            if len(self._unread) <= BURST_BYTES:
                self._loop.call_soon(self._take_turn)
            else:
                self.wire.queue_turn(self._take_turn)
        should_pause = bool(self._unread) and (self._is_open or len(self._unread) > BURST_BYTES)
        if should_pause and not self._is_paused:
            self.transport.pause_reading()
        elif self._is_paused and not should_pause:
            self.transport.resume_reading()
        self._is_paused = should_pause

    def _is_ready(self) -> bool:
        """Whether what has come can be handed on; in the closing handshake the application takes nothing any more."""
        is_taking = self.writable.is_set() and (not self._inbox or self._closing is not None)
        return bool(self._unread) and self._is_open and is_taking and not self.transport.is_closing()

    def _take_turn(self) -> None:
        """Hand frames on, a burst of them in pieces, so that one client does not hold up all the others."""
        self._has_turn = False
        if self.transport.is_closing():
            return
        while self._take_burst() and self._is_ready() and self.wire.has_time():
            pass
        self._read_on()

    def _take_burst(self) -> bool:
        """Hand on what is whole of a piece; whether the connection goes on."""
        piece = bytes(self._unread[:BURST_BYTES])
        del self._unread[: len(piece)]
        self._frames.receive_data(piece)
        events = self._frames.events_received()
        self._partial_bytes = 0 if events else self._partial_bytes + len(piece)
        self._surplus_bytes += len(piece)
        for event in events:
            assert isinstance(event, Frame)
            self._surplus_bytes -= frame_size(len(event.data))
            self._take(event)
            event.data = b""  # the parser keeps its last frame, as long as it lives: here, and in garbage afterwards
        self._flush()
        if self._frames.parser_exc is not None or self._frames.close_rcvd is not None:
            self._end_by_peer()
            return False
        return self._has_memory()

    def _has_memory(self) -> bool:
        """Whether what is held of unfinished messages may be held; else the connection has ended."""
        try:
            self._held.resize(len(self._unread) + len(self._message) + self._partial_bytes)
        except Overloaded as error:
            self._fail(TRY_LATER, error.code)
            return False
        return True

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._is_text, self._fragments = frame.opcode is Opcode.TEXT, 0
        elif frame.opcode is not Opcode.CONT:
            return  # pings are answered by the parser, pongs need nothing, a close is looked at afterwards
        self._fragments += 1
        self._is_within = not frame.fin
        if self._fragments > MAX_FRAGMENTS:
            self._fail(POLICY, "too many fragments")
            return
        if not frame.fin or self._message:
            self._message += frame.data
        if frame.fin:
            data = bytes(self._message) if self._message else bytes(frame.data)
            self._message = bytearray()
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        if self._is_ended or self._closing is not None:
            return
        if not self._is_text:
            self._tell({"type": "websocket.receive", "bytes": data})
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self._fail(INVALID_DATA, "invalid UTF-8")
            return
        self._tell({"type": "websocket.receive", "text": text})

    def _end_by_peer(self) -> None:
        """The peer closed, or broke the protocol; what there was to answer was written."""
        close_frame = self._frames.close_rcvd or self._frames.close_sent
        code = close_frame.code if close_frame is not None else ABNORMAL
        self._tell_end(code, close_frame.reason if close_frame is not None else "")
        self.transport.close()

    # To the application.

    async def _run(self) -> None:
        try:
            await self.wire.app(self._scope, self._receive, self._send)
        except Exception:  # the application has told its client and its log what there was to tell
            logger.debug("a WebSocket was cut", exc_info=True)
        finally:
            if self._closing is None:
                self.transport.close()

    async def _receive(self) -> Message:
        while not self._inbox:
            self._news.clear()
            self._is_awaited = True
            try:
                await self._news.wait()
            finally:
                self._is_awaited = False
        message = self._inbox.popleft()
        if not self._inbox:
            self._read_on()
        return message

    def _tell(self, message: Message) -> None:
        self._inbox.append(message)
        self._is_awaited = False
        self._news.set()

    def _tell_end(self, code: int, reason: str) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._tell({"type": "websocket.disconnect", "code": code, "reason": reason})

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
            self._answer(HTTPStatus.FORBIDDEN, [], b"")
        elif kind == "websocket.http.response.start":
            self._refusal = message
        elif kind == "websocket.http.response.body" and self._refusal is not None:
            self._refusal_body += message.get("body", b"")
            if not message.get("more_body", False):
                self._answer(self._refusal["status"], self._refusal.get("headers", ()), bytes(self._refusal_body))
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
        data = b"".join(map(text_frame, frames))
        self.written_bytes += len(data)
        self.transport.write(data)
        return True

    def _accept(self, message: Message) -> None:
        handshake = self._handshake
        assert handshake is not None
        for name, value in message.get("headers", ()):
            handshake.headers[name.decode("latin-1")] = value.decode("latin-1")
        if subprotocol := message.get("subprotocol"):
            handshake.headers["Sec-WebSocket-Protocol"] = subprotocol
        self.transport.write(handshake.serialize())
        self._is_open = True
        self._read_on()

    def _answer(self, status: int, headers: Any, body: bytes) -> None:
        """Refuse the handshake with an answer of HTTP."""
        names = {name.lower() for name, _ in headers}
        lines = [*self.wire.state.default_headers, *headers, (b"connection", b"close")]
        if b"content-length" not in names:
            lines.append((b"content-length", str(len(body)).encode()))
        head = b"HTTP/1.1 %d %s\r\n" % (status, PHRASES.get(status, b""))
        head += b"".join(b"%s: %s\r\n" % (name, value) for name, value in lines)
        self.transport.write(head + b"\r\n" + body)
        self._tell_end(ABNORMAL, "")
        self.transport.close()

    def _refuse(self, error: ServiceError) -> None:
        self.transport.write(refuse(self.wire, error, self._scope["client"]))
        self.transport.close()

    # The end.

    def _close(self, code: int, reason: str = "") -> None:
        """Begin the closing handshake."""
        if self._closing is not None or self.transport.is_closing():
            return
        self._closing = self._loop.call_later(CLOSE_SECONDS, self.transport.close)
        if self._frames.state is State.OPEN:
            self._frames.send_close(code, reason)
            self._flush()
        self._tell_end(code, reason)
        self._inbox = deque(message for message in self._inbox if message["type"] == "websocket.disconnect")
        self._read_on()

    def _fail(self, code: int, reason: str) -> None:
        """End for something that the peer did or did not do."""
        self.wire.count("websocket_failed")
        if self._frames.state is State.OPEN:
            self._frames.fail(code, reason)
            self._flush()
        self._tell_end(code, reason)
        self.transport.close()

    def _flush(self) -> None:
        data = b"".join(self._frames.data_to_send())
        if data and not self.transport.is_closing():
            self.written_bytes += len(data)
            self.transport.write(data)


def _fault(error: Exception | None) -> ServiceError:
    """What is wrong with a handshake, in the one error shape."""
    if isinstance(error, InvalidHeaderValue) and error.name == "Sec-WebSocket-Version":
        return UpgradeRequired(f"Sec-WebSocket-Version must be {VERSION}.")
    return MalformedRequest("The request is not a WebSocket handshake that this server reads.")
