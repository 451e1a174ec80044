"""Well-behaved clients beside the fuzzed connections, which must get the expected answers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import orjson

from tests.soak.wire.answers import Answer, Malformed, read_answer
from tests.soak.wire.application import KEY, Truth
from tests.soak.wire.verdict import NONCE, Problem

THINK_SECONDS = 0.06
ANSWER_SECONDS = 30.0
READ_BYTES = 65_536


class Victim:
    """A client on a connection that it keeps alive."""

    def __init__(self, name: str, port: int, truth: Truth, seed: int, report: Callable[[Problem], None]) -> None:
        self._rng = random.Random(f"{seed}:{name}")
        self._name, self._port, self._truth, self._report = name, port, truth, report
        self._seed, self._count = seed, 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.tally: Counter[str] = Counter()

    async def live(self) -> None:
        """Send requests until cancelled."""
        try:
            while True:
                await self._ask()
                await asyncio.sleep(THINK_SECONDS * 2 * self._rng.random())
        finally:
            self._drop()

    async def _ask(self) -> None:
        series = self._rng.randrange(len(self._truth.observations))
        body = self._truth.body(series, 2)
        self._count += 1
        nonce = f"w{self._seed:x}-v-{int(self._name):x}-{self._count:x}"
        request = (
            f"POST /filter HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {KEY}\r\nX-Request-ID: {nonce}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        is_new = self._streams is None
        try:
            answer, rest = await self._exchange(request)
        except (OSError, TimeoutError, Malformed) as error:
            self._drop()
            self.tally["failed"] += 1
            self._blame("unanswered", f"{error!r}, the connection was {'new' if is_new else 'kept'}")
            return
        self.tally[str(answer.status)] += 1
        self._judge(answer, rest, nonce, series)
        if answer.closes:
            self._drop()

    async def _exchange(self, request: bytes) -> tuple[Answer, bytes]:
        async with asyncio.timeout(ANSWER_SECONDS):
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(request)
            data = b""
            while (answer := read_answer(data, 0, b"POST")) is None:
                piece = await reader.read(READ_BYTES)
                if not piece:
                    raise ConnectionResetError(f"closed after {len(data)} bytes")
                data += piece
            return answer, data[answer.end :]

    def _judge(self, answer: Answer, rest: bytes, nonce: str, series: int) -> None:
        if rest:
            self._blame("extra answer", f"{rest[:60]!r}")
            self._drop()
        if answer.request_id != nonce:
            is_ours = NONCE.fullmatch(answer.request_id.encode("latin-1")) is not None
            self._blame("wrong client" if is_ours else "wrong request id", f"{answer.request_id}, {answer.status}")
            self._drop()
        elif answer.status != 200:
            self._blame("server error" if answer.status >= 500 else "wrong status", f"{answer.status}")
        elif orjson.loads(answer.body)["steps"] != self._truth.steps[series]:
            self._blame("another's numbers", f"{answer.body[:80]!r}")

    def _blame(self, kind: str, detail: str) -> None:
        self._report(Problem(kind, f"victim {self._name}: {detail}"))  # type: ignore[arg-type]

    def _drop(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
