"""WS /filter/stream: one connection per stream. Every observation is sent when due and timed until its reply.

Frames are handled in the callback of the socket, without a task per stream, so that a thousand streams cost little.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from rfa.benchmarks.load.check import Mistake, SeriesTruth, StepChecker
from rfa.benchmarks.load.scenario import LiveLoad
from rfa.benchmarks.load.series import ORIGIN_SPACING, STEP
from rfa.benchmarks.load.tally import Tally

HANDSHAKE_SECONDS = 30.0
CONNECTING_AT_ONCE = 50


class LiveStream(WSListener):  # type: ignore[misc]
    """One stream with its connection, pending observations and checker."""

    def __init__(self, number: int, truth: SeriesTruth, load: LiveLoad, tally: Tally, good_ms: float | None) -> None:
        self.number = number
        self.sent = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._truth = truth
        self._load = load
        self._tally = tally
        self._good_seconds = None if good_ms is None else good_ms / 1000
        self._origin = ORIGIN_SPACING * number
        self._checker = StepChecker(truth, self._origin, load.horizon, f"stream {number}")
        self._due: deque[float] = deque()
        self._parts: list[bytes] = []
        self._transport: WSTransport | None = None
        self._ended = False

    # Called by the schedule.

    def observe(self, due: float) -> None:
        """Send the next observation. After a failure the observation is counted but not sent."""
        if self._ended or self._transport is None:
            self._tally.count("observation.unsent", due)
            return
        if self.sent == len(self._truth):
            raise IndexError(f"stream {self.number} has no observation left: its truth is too short for this run")
        frame = {"t": self._origin + STEP * self.sent, "y": self._truth.observations[self.sent]}
        self._transport.send(WSMsgType.TEXT, orjson.dumps(frame))
        self._tally.latency("lateness", due, time.monotonic() - due)
        self._tally.count("observation.sent", due)
        self._due.append(due)
        self.sent += 1

    async def close(self, seconds: float) -> None:
        """End the stream as a client does, and wait for its last reply."""
        if not self._ended and self._transport is not None:
            self._transport.send(WSMsgType.TEXT, b'{"close": true}')
        try:
            async with asyncio.timeout(seconds):
                await self.finished
        except TimeoutError:
            self._tally.error("stream did not end")
        finally:
            for due in self._due:
                self._tally.count("observation.unanswered", due)
            if self._transport is not None:
                self._transport.disconnect(graceful=False)

    def abandon(self, failure: str) -> None:
        """Record that the stream could not be opened."""
        self._end(failure)

    # Called by the connection.

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Send the first message of the stream."""
        self._transport = transport
        question: dict[str, Any] = {
            "levels": list(self._load.levels),
            "horizon": list(self._load.horizon),
            "samples": self._load.samples,
            "seed": self._truth.seed,
        }
        if self._load.model is not None:
            question["model"] = self._load.model
        transport.send(WSMsgType.TEXT, orjson.dumps(question))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Handle a frame of a reply, or the close."""
        now = time.monotonic()
        if frame.msg_type is WSMsgType.CLOSE:
            self._end(f"close {int(frame.get_close_code().value)}")
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        elif frame.msg_type in (WSMsgType.TEXT, WSMsgType.CONTINUATION):
            self._parts.append(frame.get_payload_as_bytes())
            if frame.fin:
                payload = b"".join(self._parts)
                self._parts.clear()
                self._take(orjson.loads(payload), now)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """Handle the loss of the connection, with or without a close."""
        self._end("connection lost")

    # Handlers of replies.

    def _take(self, document: dict[str, Any], now: float) -> None:
        if not self.ready.done():
            if document.get("ready") is True:
                self.ready.set_result(None)
            else:
                self._fail(document)
        elif "error" in document:
            self._fail(document)
        elif "done" in document:
            self._finish(document)
        else:
            self._step(document, now)

    def _step(self, step: dict[str, Any], now: float) -> None:
        mistake = self._checker.check(step)
        for _ in range(mistake.skipped if mistake else 0):
            if self._due:
                self._tally.count("observation.unanswered", self._due.popleft())
        if mistake:
            self._tell(mistake)
        if not self._due:
            self._tell(Mistake("count", f"stream {self.number} got a reply that it asked nothing for"))
            return
        due = self._due.popleft()
        seconds = now - due
        self._tally.latency("observation", due, seconds)
        self._tally.count("observation.answered", due)
        if mistake is None:
            self._tally.count("observation.right", due)
            if self._good_seconds is None or seconds <= self._good_seconds:
                self._tally.count("observation.good", due)

    def _finish(self, document: dict[str, Any]) -> None:
        for mistake in self._checker.check_end(document, self.sent):
            self._tell(mistake)
        if document.get("reason") != "close":
            self._tally.error(f"stream ended: {document.get('reason')}")
        self._end(None)

    def _fail(self, document: dict[str, Any]) -> None:
        error = document.get("error") or {}
        self._end(f"stream error {error.get('code', 'without a code')}")

    def _end(self, failure: str | None) -> None:
        if self._ended:
            return
        self._ended = True
        if failure is not None:
            self._tally.error(failure)
        for waiting in (self.ready, self.finished):
            if not waiting.done():
                waiting.set_result(None)

    def _tell(self, mistake: Mistake) -> None:
        self._tally.mistake(mistake.kind, mistake.example)


async def open_streams(url: str, headers: Mapping[str, str], streams: Sequence[LiveStream]) -> None:
    """Connect every stream and wait until the server is ready for its first observation."""
    address = "ws" + url.removeprefix("http") + "/filter/stream"
    gate = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def open_one(stream: LiveStream) -> None:
        async with gate:
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await ws_connect(
                        lambda: stream, address, extra_headers=headers, websocket_handshake_timeout=HANDSHAKE_SECONDS
                    )
                    await stream.ready
            except Exception as error:
                stream.abandon(f"connect: {type(error).__name__}")

    await asyncio.gather(*(open_one(stream) for stream in streams))
