"""Live streams that lose their connection and resume from their last state, with every number checked.

A step is acknowledged when its answer arrives. A new connection must resume at a matching step: with a token exactly
after the acknowledged steps, with a named session after at least these and at most the sent ones.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from rfa.benchmarks.load.check import LIKELIHOOD_TOLERANCE, SeriesTruth, StepChecker
from rfa.benchmarks.load.series import ORIGIN_SPACING, STEP
from tests.soak.faults.findings import Findings
from tests.waiting import PATIENCE

# token and session get the state with every step; last is a token with the terminal frame only.
Keeping = Literal["token", "session", "last"]
# "refused": the server accepted no new stream, which has no state yet.
Outcome = Literal["finished", "drained", "lost", "refused", "stopped"]
RETRY_SECONDS = 0.05
NORMAL, RESTART = 1000, 1012
LOSSES = (ConnectionClosed, InvalidHandshake, InvalidMessage, OSError, EOFError)


@dataclass(frozen=True)
class StreamPlan:
    """Options of a client.

    Attributes:
        window: Maximum number of observations without an answer.
        pause: Seconds between two answers and the next observation.
    """

    model: str
    keeping: Keeping
    samples: int = 1
    levels: tuple[float, ...] = (0.9,)
    window: int = 3
    pause: float = 0.02


class StreamClient:
    """A client that sends a series from beginning to end, over as many connections as necessary, and repeats.

    Args:
        number: Number of the client, which makes its times and session names unique.
        url: Returns the current address of the server.
        truth: Expected answers of a filter for the series.
    """

    def __init__(
        self, number: int, url: Callable[[], str], truth: SeriesTruth, plan: StreamPlan, findings: Findings
    ) -> None:
        self.name = f"{plan.keeping}-{number}"
        self.is_live = asyncio.Event()
        self._url = url
        self._truth = truth
        self._plan = plan
        self._findings = findings
        self._origin = ORIGIN_SPACING * number
        self._lives = 0
        self._begin_life()

    @property
    def acknowledged(self) -> int:
        """Return the number of answered steps of the series."""
        return self._checker.position

    async def survive(self, stop: asyncio.Event) -> None:
        """Continue, connection after connection, until stopped."""
        while not stop.is_set():
            if await self.converse(stop) != "finished":
                await asyncio.sleep(RETRY_SECONDS)

    async def converse(self, stop: asyncio.Event) -> Outcome:
        """Use one connection, and return how it ended."""
        self.is_live.clear()
        was_open = False
        try:
            async with connect(
                f"ws{self._url().removeprefix('http')}/filter/stream",
                compression=None,
                proxy=None,
                open_timeout=PATIENCE,
                close_timeout=1,
                ping_interval=None,
            ) as socket:
                was_open = True
                return await self._stream(socket, stop)
        except TimeoutError:
            if was_open:
                self._findings.mistake("silence", f"{self.name} waited {PATIENCE:g} s for an answer")
        except LOSSES:
            self._findings.counts["connections lost" if was_open else "connections refused"] += 1
        return "lost" if was_open else "refused"

    def _begin_life(self) -> None:
        self._lives += 1
        self._checker = StepChecker(self._truth, self._origin, name=self.name)
        self._reference: str | None = None
        self._sent = 0

    # One connection.

    async def _stream(self, socket: ClientConnection, stop: asyncio.Event) -> Outcome:
        resumes = self._reference is not None or (self._plan.keeping == "session" and self._sent > 0)
        await socket.send(orjson.dumps(self._question(resumes)).decode())
        ready = await _read(socket)
        if not self._is_ready(ready):
            return "refused" if "error" in ready else "lost"
        self._findings.counts["resumed" if resumes else "begun"] += 1
        begin = self._sent = self.acknowledged
        while self.acknowledged < len(self._truth):
            if stop.is_set():
                return "stopped"
            await self._fill_window(socket)
            frame = await _read(socket)
            if "done" in frame or "error" in frame:
                return await self._end(socket, frame, begin)
            self._take(frame)
            self.is_live.set()
            await asyncio.sleep(self._plan.pause)
        with suppress(ConnectionClosed):
            await socket.send('{"close": true}')
        return await self._end(socket, await _read(socket), begin)

    def _question(self, resumes: bool) -> dict[str, Any]:
        plan = self._plan
        question: dict[str, Any] = {"model": plan.model, "levels": plan.levels, "samples": plan.samples}
        session = f"session:{self.name}-{self._lives}"
        if resumes:
            question["state"] = session if plan.keeping == "session" else self._reference
        else:
            question["seed"] = self._truth.seed
        if plan.keeping == "session":
            return question if resumes else {**question, "return_state": session}
        return {**question, "return_state": True, "state_every": 1 if plan.keeping == "token" else None}

    def _is_ready(self, frame: dict[str, Any]) -> bool:
        """Return whether the stream may continue. The server's state must match the acknowledged steps."""
        if "error" in frame:
            # A session without an answered step may not exist.
            if frame["error"].get("code") == "session_not_found" and self.acknowledged == 0:
                self._begin_life()
            else:
                self._note_error(frame["error"])
            return False
        index = frame.get("index")
        most = self._sent if self._plan.keeping == "session" else self.acknowledged
        if not isinstance(index, int) or not self.acknowledged <= index <= most:
            self._findings.mistake(
                "resumption", f"{self.name} resumed at {index!r} with {self.acknowledged} to {most} steps stored"
            )
            self._begin_life()
            return False
        self._findings.counts["stored without an answer"] += index - self.acknowledged
        self._checker.position = index
        return True

    async def _fill_window(self, socket: ClientConnection) -> None:
        while self._sent < min(self.acknowledged + self._plan.window, len(self._truth)):
            frame = {"t": self._origin + STEP * self._sent, "y": self._truth.observations[self._sent]}
            self._sent += 1
            # Frames before the close, such as the terminal frame, are still unread.
            with suppress(ConnectionClosed):
                await socket.send(orjson.dumps(frame).decode())

    def _take(self, step: dict[str, Any]) -> None:
        mistake = self._checker.check(step)
        if mistake is not None:
            self._findings.mistake(mistake.kind, mistake.example)
        self._findings.counts["steps"] += 1
        if self._plan.keeping != "last":
            self._reference = step.get("state")
            if self._reference is None:
                self._findings.mistake("state", f"{self.name} got a step without a state")

    # The end of a connection.

    async def _end(self, socket: ClientConnection, frame: dict[str, Any], begin: int) -> Outcome:
        """Check a terminal frame. Only the close may follow it."""
        if "error" in frame:
            self._note_error(frame["error"])
            return "lost"
        if "done" not in frame:
            self._findings.mistake("order", f"{self.name} got a step that it asked nothing for")
            return "lost"
        code = await self._close_code(socket)
        self._findings.counts["terminal frames"] += 1
        self._check_summary(frame, begin)
        self._reference = frame.get("state")
        if self._reference is None:
            self._findings.mistake("state", f"{self.name} ended without a state")
        is_drain = frame.get("reason") == "drain"
        if code != (RESTART if is_drain else NORMAL):
            self._findings.mistake("close code", f"{self.name} ended ({frame.get('reason')}) with {code}")
        if not is_drain:
            self._begin_life()
            return "finished"
        self._sent = self.acknowledged  # unanswered observations are not in the state
        return "drained"

    async def _close_code(self, socket: ClientConnection) -> int | None:
        while True:
            try:
                extra = await asyncio.wait_for(socket.recv(), PATIENCE)
            except ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd else None
            self._findings.mistake("terminal", f"{self.name} got {len(extra)} bytes after the terminal frame")

    def _check_summary(self, frame: dict[str, Any], begin: int) -> None:
        if frame.get("steps") != self.acknowledged - begin:
            self._findings.mistake(
                "count", f"{self.name} counts {frame.get('steps')!r} steps of {self.acknowledged - begin}"
            )
        truth = self._likelihood(self.acknowledged) - self._likelihood(begin)
        value = frame.get("log_likelihood")
        # A difference of two sums loses digits to their size.
        slack = LIKELIHOOD_TOLERANCE * max(1.0, abs(self._likelihood(self.acknowledged)))
        if not isinstance(value, int | float) or not math.isclose(value, truth, abs_tol=slack):
            self._findings.mistake("likelihood", f"{self.name} has log-likelihood {value!r}, not {truth}")

    def _likelihood(self, count: int) -> float:
        return float(self._truth.log_likelihood[count - 1]) if count else 0.0

    def _note_error(self, error: dict[str, Any]) -> None:
        if not self._findings.is_transient(self.name, error):
            self._begin_life()


async def _read(socket: ClientConnection) -> dict[str, Any]:
    # A slow answer counts as a mistake rather than a lost connection.
    async with asyncio.timeout(PATIENCE):
        document: dict[str, Any] = orjson.loads(await socket.recv())
    return document
