"""POST /generate and POST /filter: requests at the times of a schedule, or a fixed number at a time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import orjson

from rfa.benchmarks.load.check import Mistake, SeriesTruth, StepChecker, TextChecker, TextTruth
from rfa.benchmarks.load.scenario import BatchLoad
from rfa.benchmarks.load.series import ORIGIN_SPACING, STEP
from rfa.benchmarks.load.tally import Tally

SILENCE_SECONDS = 120.0
PAUSE_SECONDS = 0.5
HEADERS = {"Content-Type": "application/json"}
TOO_MANY = 429


def open_session(url: str, headers: dict[str, str]) -> aiohttp.ClientSession:
    """Open a session without a limit of connections: the schedule sets the number of concurrent requests."""
    return aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS),
        headers={**HEADERS, **headers},
    )


class Requests:
    """Sends requests of one kind and counts their outcomes. A subclass implements one kind.

    Counts `KIND.sent`, `.answered`, `.right`, `.good` and `.rejected`.
    """

    kind: str

    def __init__(self, session: aiohttp.ClientSession, tally: Tally, goodput: dict[str, float]) -> None:
        self._session = session
        self._tally = tally
        self._goodput = {name.removesuffix("_ms"): limit / 1000 for name, limit in goodput.items()}
        self._tasks: set[asyncio.Task[bool]] = set()

    def send(self, due: float) -> None:
        """Send a request that was due at `due`, without waiting for its answer."""
        task = asyncio.ensure_future(self._attempt(due))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def keep_sending(self, first: float) -> None:
        """Run a closed loop from `first` on: a request is due when the previous one ended; failures add a pause."""
        await asyncio.sleep(max(0.0, first - time.monotonic()))
        while (due := time.monotonic()) < self._tally.window.end:
            if not await self._attempt(due):
                await asyncio.sleep(PAUSE_SECONDS)

    async def finish(self, seconds: float) -> None:
        """Wait for pending requests. Requests without an answer by the timeout are errors."""
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=seconds)
            for task in pending:
                self._tally.error(f"{self.kind} not answered")
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _attempt(self, due: float) -> bool:
        """Return whether the request was answered."""
        self._tally.count(f"{self.kind}.sent", due)
        try:
            return await self._exchange(due)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._tally.error(f"{self.kind} {type(error).__name__}")
            return False

    async def _exchange(self, due: float) -> bool:
        raise NotImplementedError

    def _late(self, due: float) -> None:
        self._tally.latency("lateness", due, time.monotonic() - due)

    async def _refused(self, response: aiohttp.ClientResponse, due: float) -> None:
        """Count a status other than 200: a rejection under load, or an error."""
        body = await response.read()
        if response.status == TOO_MANY:
            self._tally.latency("rejection", due, time.monotonic() - due)
            self._tally.count(f"{self.kind}.rejected", due)
            if "Retry-After" not in response.headers:
                self._tally.mistake("retry", "a 429 without Retry-After")
            return
        error = orjson.loads(body).get("error") or {}
        self._tally.error(f"{self.kind} status {response.status} {error.get('code', '')}".rstrip())

    def _conclude(self, due: float, mistakes: Sequence[Mistake], is_good: bool) -> None:
        self._tally.latency(self.kind, due, time.monotonic() - due)
        self._tally.count(f"{self.kind}.answered", due)
        for mistake in mistakes:
            self._tally.mistake(mistake.kind, mistake.example)
        if not mistakes:
            self._tally.count(f"{self.kind}.right", due)
            if is_good:
                self._tally.count(f"{self.kind}.good", due)

    def _within(self, metric: str, seconds: float) -> bool:
        return metric not in self._goodput or seconds <= self._goodput[metric]


class TextRequests(Requests):
    """Streamed generations, the cases in turn."""

    kind = "text"

    def __init__(
        self, session: aiohttp.ClientSession, tally: Tally, goodput: dict[str, float], truths: Sequence[TextTruth]
    ) -> None:
        super().__init__(session, tally, goodput)
        self._cases = itertools.cycle(enumerate(truths))

    async def _exchange(self, due: float) -> bool:
        number, truth = next(self._cases)
        self._late(due)
        async with self._session.post("/generate", data=truth.body) as response:
            if response.status != 200:
                await self._refused(response, due)
                return False
            return await self._read(response, due, TextChecker(truth, f"text {number}"))

    async def _read(self, response: aiohttp.ClientResponse, due: float, checker: TextChecker) -> bool:
        mistakes: list[Mistake] = []
        previous, is_good, ended = due, True, 0
        async for event, now in _events(response):
            if "error" in event:
                self._tally.error(f"text stream error {event['error'].get('code')}")
                return False
            if ended:
                mistakes.append(Mistake("terminal", "a text went on after its terminal event"))
            metric = "ttft" if checker.position == 0 else "itl"
            self._tally.latency(metric, due, now - previous)
            self._tally.count("token.received", now)
            is_good &= self._within(metric, now - previous)
            previous = now
            if (mistake := checker.check(event)) is not None:
                mistakes.append(mistake)
            if event.get("details") is not None:
                ended += 1
                mistakes += checker.check_end(event)
        if not ended:
            mistakes.append(Mistake("terminal", "a text stopped without its terminal event"))
        self._conclude(due, mistakes, is_good)
        return True


class BatchRequests(Requests):
    """Posts whole series, one series after another; requests arrive independently of the replies."""

    kind = "batch"

    def __init__(
        self,
        session: aiohttp.ClientSession,
        tally: Tally,
        goodput: dict[str, float],
        truths: Sequence[SeriesTruth],
        load: BatchLoad,
        levels: Sequence[float],
    ) -> None:
        super().__init__(session, tally, goodput)
        self._truths = truths
        self._load = load
        self._levels = list(levels)
        self._numbers = itertools.count()

    async def _exchange(self, due: float) -> bool:
        number = next(self._numbers)
        truth, origin = self._truths[number % len(self._truths)], ORIGIN_SPACING * number
        self._late(due)
        async with self._session.post("/filter", data=self._body(truth, origin)) as response:
            if response.status != 200:
                await self._refused(response, due)
                return False
            reply = orjson.loads(await response.read())
        seconds = time.monotonic() - due
        checker = StepChecker(truth, origin, name=f"request {number}")
        mistakes = [mistake for step in reply["steps"] if (mistake := checker.check(step)) is not None]
        mistakes += checker.check_end(reply, self._load.length)
        self._conclude(due, mistakes, self._within("batch", seconds))
        return True

    def _body(self, truth: SeriesTruth, origin: float) -> bytes:
        length = self._load.length
        return orjson.dumps(
            {
                "model": self._load.model,
                "times": [origin + STEP * k for k in range(length)],
                "observations": truth.observations[:length],
                "levels": self._levels,
                "samples": self._load.samples,
                "seed": truth.seed,
            }
        )


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[dict[str, Any], float]]:
    """Yield server-sent events with the time at which their last byte was read."""
    held = b""
    async for chunk in response.content.iter_any():
        now = time.monotonic()
        *complete, held = (held + chunk).split(b"\n\n")
        for block in complete:
            if block.startswith(b"data:"):
                yield orjson.loads(block[5:]), now
    if held.strip():
        raise ValueError("the stream ended inside an event")
