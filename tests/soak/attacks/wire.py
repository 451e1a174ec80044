"""Raw connections of an attacker."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.soak.answers import Answer, AnswerReader
from tests.soak.requests import CLOSE

if TYPE_CHECKING:
    from tests.soak.attacks.stage import Stage

# The rate of a line of one gigabit. Higher rates of the loopback device are no external attack.
BYTES_A_SECOND = 120_000_000
# Time for pending requests at the end.
LAST_ANSWER_SECONDS = 8.0
PIECE_BYTES = 65_536
# Time for which a server may read and discard after a rejection.
LINGER_SECONDS = 4.0


class Over(Exception):
    """The time of the attack is over."""


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
