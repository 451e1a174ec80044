"""Tools of an attack: a clock, raw connections that count and check, and a record of claims."""

from __future__ import annotations

import itertools
import resource
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.soak.answers import Answer
from tests.soak.attacks.wire import BYTES_A_SECOND, Over, Wire
from tests.soak.requests import handshake

ANSWER_SECONDS = 20.0
PAUSE_AFTER_LOSS = 0.01
MAX_EXAMPLES = 3


@dataclass
class Claim:
    """A condition that must hold: how often it did, how often not, with examples."""

    held: int = 0
    broken: int = 0
    examples: list[str] = field(default_factory=list)


class Stage:
    """One client's attack.

    Args:
        port: Port of the server on 127.0.0.1.
        seconds: Duration of the attack from `begin` on.
    """

    def __init__(self, port: int, seconds: float) -> None:
        self.port = port
        self.seconds = seconds
        self.claims: dict[str, Claim] = {}
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._line_is_free_at = 0.0
        self._begun = self._end = 0.0
        self._cpu = 0.0

    # The clock.

    def begin(self) -> None:
        """Wait for the order to begin, then start the clock."""
        print("ready", flush=True)
        sys.stdin.readline()
        self._begun = time.monotonic()
        self._end = self._begun + self.seconds
        self._cpu = _cpu_seconds()

    @property
    def is_on(self) -> bool:
        """Return whether the attack continues."""
        return time.monotonic() < self._end

    @property
    def left(self) -> float:
        """Return the seconds until the end."""
        return self._end - time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep so long, at most until the end."""
        time.sleep(max(0.0, min(seconds, self.left)))

    # Findings.

    def claim(self, text: str, is_met: bool, seen: object = "") -> None:
        """Record whether a condition holds."""
        with self._lock:
            claim = self.claims.setdefault(text, Claim())
            if is_met:
                claim.held += 1
            else:
                claim.broken += 1
                if len(claim.examples) < MAX_EXAMPLES:
                    claim.examples.append(str(seen)[:300])

    def count(self, name: str, amount: int = 1) -> None:
        """Count a finding."""
        with self._lock:
            self.counts[name] += amount

    def note(self, answer: Answer) -> None:
        """Count an answer. An answer without a request breaks a claim."""
        with self._lock:
            self.statuses[str(answer.status)] += 1
        if answer.status >= 400:
            self.claim("every refusal explains itself", answer.complaint is None, answer.complaint)

    def expect(self, text: str, answer: Answer | None, statuses: Collection[int], name: object = "") -> None:
        """Claim that an answer had one of these statuses."""
        status = None if answer is None else answer.status
        self.claim(text, status in statuses, f"{name}: {status}")

    def to_document(self) -> dict[str, Any]:
        """Return the results as JSON at the end."""
        seconds = max(time.monotonic() - self._begun, 1e-9)
        return {
            "seconds": round(seconds, 3),
            "cpu_share": round((_cpu_seconds() - self._cpu) / seconds, 3),
            "statuses": dict(self.statuses),
            "counts": dict(self.counts),
            "claims": {name: vars(claim) for name, claim in self.claims.items()},
        }

    # Connections.

    def connect(
        self, *, receive_buffer: int | None = None, source: str = "127.0.0.1", seconds: float = ANSWER_SECONDS
    ) -> Wire:
        """Open a connection.

        Args:
            source: An address of 127.0.0.0/8, which is another client for the server.
            seconds: Timeout of an answer.

        Raises:
            OSError
        """
        made = socket.socket()
        made.settimeout(seconds)
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if source != "127.0.0.1":
                made.setsockopt(socket.SOL_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
                made.bind((source, 0))
            made.connect(("127.0.0.1", self.port))
        except OSError:
            made.close()
            raise
        self.count("connections")
        return Wire(self, made, seconds)

    def upgrade(self, *, receive_buffer: int | None = None, source: str = "127.0.0.1") -> Wire:
        """Open a WebSocket on /filter/stream without a message.

        Raises:
            OSError: The server rejects it.
        """
        wire = self.connect(receive_buffer=receive_buffer, source=source)
        try:
            wire.send(handshake())
            answer = wire.answer()
            if answer is None or answer.status != 101:
                raise ConnectionRefusedError("no WebSocket")
        except BaseException:
            wire.close()
            raise
        return wire

    def open_many(
        self, count: int, begin: Callable[[Wire], None] = lambda wire: None, *, on_stream: bool = False
    ) -> list[Wire]:
        """Open so many connections, each with an opening, as far as the server accepts them before the end."""
        found: list[Wire] = []
        for _ in range(count):
            if not self.is_on:
                break
            try:
                wire = self.upgrade() if on_stream else self.connect()
                found.append(wire)
                begin(wire)
            except OSError:
                self.count("connections lost")
        return found

    def lanes(self, number: int, work: Callable[[Wire], None], *, on_stream: bool = False, **options: Any) -> None:
        """Run a task on so many connections at once, each time on a new one, until the end.

        Args:
            on_stream: Use WebSockets of /filter/stream.
        """
        begin = self.upgrade if on_stream else self.connect

        def lane() -> None:
            while self.is_on:
                try:
                    with begin(**options) as wire:
                        work(wire)
                except OSError:
                    self.count("connections lost")
                    self.sleep(PAUSE_AFTER_LOSS)
                except Over:
                    return

        self.together([lane] * number)

    def keep_asking(
        self,
        lanes: int,
        requests: Sequence[bytes],
        text: str,
        statuses: Collection[int],
        *,
        look: Callable[[Answer], None] = lambda answer: None,
        pause: float = 0.0,
        prepare: Callable[[Wire], None] = lambda wire: None,
        **options: Any,
    ) -> None:
        """Send requests in turn on so many connections at once, and read every answer.

        Args:
            text, statuses: The claim about each answer.
            look: Checks each answer. prepare: Prepares each connection.
            pause: Seconds after each answer.
        """
        turns = itertools.cycle(requests)

        def ask(wire: Wire) -> None:
            prepare(wire)
            is_kept = True
            while is_kept:
                request = next(turns)
                answer = self._ask(wire, request, text)
                if answer is None:
                    return
                self.expect(text, answer, statuses, request[:100])
                look(answer)
                is_kept = answer.headers.get("connection") != "close"
                self.sleep(pause)

        self.lanes(lanes, ask, **options)
        has_begun = bool(self.statuses) or self.counts["bytes received"] > 0  # a reply of 40 MB may not end in time
        self.claim("answers come at all", has_begun, "none came")

    def _ask(self, wire: Wire, request: bytes, text: str) -> Answer | None:
        """Return the answer to a request, or None, which breaks the claim unless the time is over."""
        with suppress(OSError):  # a rejection may precede the end of the request
            wire.send(request)
        try:
            answer = wire.answer()
        except TimeoutError:
            self.count("answers awaited at the end")
            return None
        except OSError as error:
            self.claim(text, False, f"{request[:100]!r}: {error}")
            return None
        if answer is None:
            self.claim(text, False, f"{request[:100]!r}: closed without an answer")
        return answer

    def together(self, works: list[Callable[[], None]]) -> None:
        """Run some functions at once, each in a thread. The first error is raised here."""
        with ThreadPoolExecutor(len(works)) as pool:
            for running in [pool.submit(work) for work in works]:
                with suppress(Over):
                    running.result()

    def pace(self, size: int) -> None:
        """Wait until the rate of the client's line allows more."""
        with self._lock:
            self.counts["bytes sent"] += size
            self._line_is_free_at = max(time.monotonic() - 0.01, self._line_is_free_at) + size / BYTES_A_SECOND
            wait = self._line_is_free_at - time.monotonic()
        if wait > 0.001:
            time.sleep(wait)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
