"""Tools of an attack: a clock, raw connections that count and check, and a record of claims."""

from __future__ import annotations

import itertools
import resource
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.soak.attacks.answers import Answer, AnswerReader
from tests.soak.requests import CLOSE, handshake

# The rate of a line of one gigabit. Higher rates of the loopback device are no external attack.
BYTES_A_SECOND = 120_000_000
ANSWER_SECONDS = 20.0
# Time for pending requests at the end.
LAST_ANSWER_SECONDS = 8.0
PIECE_BYTES = 65_536
PAUSE_AFTER_LOSS = 0.01
# Time for which a server may read and discard after a rejection.
LINGER_SECONDS = 4.0
MAX_EXAMPLES = 3


class Over(Exception):
    """The time of the attack is over."""


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


class Wire:
    """A raw connection of an attacker."""

    def __init__(self, stage: Stage, connection: socket.socket, seconds: float) -> None:
        self.socket = connection
        self.pause = 0.0
        self.piece = PIECE_BYTES
        self._stage = stage
        self._seconds = seconds
        self._reader = AnswerReader(self._receive)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def reset(self) -> None:
        """Reset it."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send all of it as fast as the server reads.

        Raises:
            OSError: The server closed.
            Over: The time ended first.
        """
        view = memoryview(data)
        while view:
            self._stage.pace(min(len(view), PIECE_BYTES))
            view = view[self._send_some(view[:PIECE_BYTES]) :]

    def _send_some(self, view: memoryview) -> int:
        while True:
            if not self._stage.is_on:
                raise Over
            self.socket.settimeout(min(1.0, max(0.05, self._stage.left)))
            try:
                return self.socket.send(view)
            except TimeoutError:
                continue

    def answer(self) -> Answer | None:
        """Return the next final answer, checked, or None if the server closed instead.

        Raises:
            OSError: The answer ended early or took too long.
        """
        while True:
            self.socket.settimeout(min(self._seconds, max(0.0, self._stage.left) + LAST_ANSWER_SECONDS))
            answer = self._reader.take()
            if answer is None or not answer.is_interim:
                break
            self._stage.count("interim answers")
        if answer is not None:
            self._stage.note(answer)
        return answer

    def ask(self, request: bytes) -> Answer | None:
        """Send a request and read its answer; see `send` and `answer`."""
        self.send(request)
        return self.answer()

    def answers(self, quiet_seconds: float) -> list[Answer]:
        """Return all answers until the server closes or is silent for so long."""
        found = []
        self.socket.settimeout(quiet_seconds)
        with suppress(OSError):
            while (answer := self._reader.take()) is not None:
                self._stage.note(answer)
                found.append(answer)
        return found

    def skim(self) -> None:
        """Read and discard what arrives.

        Raises:
            OSError: Nothing more arrives.
        """
        if not self._receive():
            raise ConnectionError("closed")

    def frame(self) -> tuple[int, bytes]:
        """Return opcode and payload of the next WebSocket frame.

        Raises:
            OSError
        """
        self.socket.settimeout(self._seconds)
        first, second = self._reader.exactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._reader.exactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._reader.exactly(8))
        return first & 0x0F, self._reader.exactly(size)

    def close_code(self) -> int | None:
        """Return the code with which the server closes a WebSocket, or None without a code.

        Raises:
            OSError: It does neither in time.
        """
        with suppress(ConnectionError):
            while True:
                opcode, payload = self.frame()
                if opcode == CLOSE:
                    return int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
        return None

    def _receive(self) -> bytes:
        if self._stage.left < -LAST_ANSWER_SECONDS:
            raise TimeoutError("the attack is long over")
        if self.pause:
            self._stage.sleep(self.pause)
        data = self.socket.recv(self.piece)
        self._stage.count("bytes received", len(data))
        return data


def push(stage: Stage, wire: Wire, opening: bytes, piece: bytes, most: int, claim: str) -> bool:
    """Send an opening and then a piece repeatedly. The server must end it after so many bytes and a delay.

    During the delay a server that has answered reads and discards, so that its answer arrives. If it accepts more,
    continue until the time is over to measure the cost.

    Returns:
        Whether the server ended it in time.
    """
    sent, end = 0, time.monotonic() + LINGER_SECONDS
    try:
        wire.send(opening)
        while sent <= most or time.monotonic() < end:
            wire.send(piece)
            sent += len(piece)
    except OSError:
        stage.claim(claim, True)
        return True
    stage.claim(claim, False, f"{sent} bytes were taken")
    with suppress(OSError):
        while True:
            wire.send(piece)
    return False


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
