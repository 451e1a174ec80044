"""Send and receive JSON documents over a WebSocket. This uses ASGI directly, because thousands of frames are sent per
second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.types import Receive, Send

from rfa.service.body import PIECE_BYTES, decode_json
from rfa.service.cooperative import CooperativeWork
from rfa.service.deadline import Deadline
from rfa.service.disconnect import ClientGone
from rfa.service.encoding import pieces
from rfa.service.errors import (
    EngineFailure,
    InternalError,
    InvalidRequest,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    ServiceError,
)
from rfa.service.json_cost import FRAME_LIMITS, SMALL_FRAME_BYTES, JsonCost

# Browsers require that the server accepts one of the subprotocols that they offer.
SUBPROTOCOL = "rfa.v1"
# Close codes (RFC 6455, 7.4.1, and the IANA registry).
NORMAL = 1000
POLICY = 1008
SERVER_FAULT = 1011
SERVICE_RESTART = 1012
TRY_LATER = 1013


def close_code(error: ServiceError) -> int:
    """Return the close code of a WebSocket that ends with an error."""
    if isinstance(error, (EngineFailure, InternalError)):
        return SERVER_FAULT
    return TRY_LATER if isinstance(error, (Overloaded, NotReady)) else POLICY


class JsonSocket:
    """WebSocket connection that sends and receives JSON documents.

    Args:
        receive: Function `receive` of ASGI.
        send: Function `send` of ASGI.
        max_bytes: Maximum size of a message in bytes.
        send_timeout: Seconds after which a client that does not read is disconnected.
        cooperative: Scheduler in which long documents are encoded and checked in parts.
    """

    def __init__(
        self, receive: Receive, send: Send, *, max_bytes: int, send_timeout: float, cooperative: CooperativeWork
    ) -> None:
        self._cooperative = cooperative
        self._receive = receive
        self._send = send
        self._max_bytes = max_bytes
        self.small_bytes = min(SMALL_FRAME_BYTES, max_bytes // 4)  # characters, each of which has up to four bytes
        self._deadline = Deadline(send_timeout)

    async def accept(self, offered: Sequence[str] = ()) -> None:
        """Accept the handshake.

        Args:
            offered: Subprotocols that the client offers.

        Raises:
            ClientGone: If the client has disconnected.
        """
        if (await self._receive())["type"] != "websocket.connect":
            raise ClientGone
        chosen = {"subprotocol": SUBPROTOCOL} if SUBPROTOCOL in offered else {}
        await self._deliver([{"type": "websocket.accept", **chosen}])

    async def read(self) -> Any:
        """Wait for the next document, and return it.

        Raises:
            InvalidRequest: If the frame is not text or valid JSON, or contains too many values.
            PayloadTooLarge: If the frame is larger than `max_bytes`.
            ClientGone: If the client has disconnected.
        """
        message = await self._receive()
        if message["type"] != "websocket.receive":
            raise ClientGone
        text = message.get("text")
        if text is None:
            raise InvalidRequest("A frame must contain text, not binary data.", code="not_text")
        if len(text) > self.small_bytes:
            await self._check(text.encode())
        return decode_json(text, "A frame")

    async def _check(self, frame: bytes) -> None:
        if len(frame) > self._max_bytes:
            raise PayloadTooLarge(f"A frame must not be larger than {self._max_bytes} bytes.")
        cost = JsonCost(FRAME_LIMITS, "A frame")
        for start in range(0, len(frame), PIECE_BYTES):
            await self._cooperative.run(partial(cost.feed, frame[start : start + PIECE_BYTES]), is_long=True)

    async def write(self, documents: Sequence[Any]) -> None:
        """Send each document in a frame.

        Raises:
            ClientGone: If the client has disconnected, or does not read.
        """
        await self._deliver([await _frame(document, self._cooperative) for document in documents])

    async def end(self, document: Any, code: int) -> None:
        """Send a last document, and close the connection.

        Args:
            code: Close code.

        Raises:
            ClientGone: If the client has disconnected, or does not read.
        """
        await self._deliver([await _frame(document, self._cooperative), {"type": "websocket.close", "code": code}])

    def close(self) -> None:
        """Cancel the timer of the send timeout."""
        self._deadline.close()

    async def _deliver(self, messages: Sequence[dict[str, Any]]) -> None:
        try:
            with self._deadline:
                for message in messages:
                    await self._send(message)
        except (TimeoutError, OSError):
            raise ClientGone from None


async def _frame(document: Any, cooperative: CooperativeWork) -> dict[str, Any]:
    """Encode a document as an ASGI message. Other work runs between the parts of a long document."""
    encoded = pieces(document)
    parts = [next(encoded)]
    for piece in encoded:
        parts.append(piece)
        await cooperative.pause()
    return {"type": "websocket.send", "text": b"".join(parts).decode()}
