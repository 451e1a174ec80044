"""Sends the bytes of one connection, and returns the received ones."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from tests.soak.wire.cases import Case, Part

# Longer than every timeout of the tested server: a connection silent for so long counts as left open.
SILENCE_SECONDS = 25.0
PAUSE_SECONDS = 0.002
ANSWER_SECONDS = 2.0
READ_BYTES = 65_536
LINGER_ZERO = struct.pack("ii", 1, 0)
Outcome = Literal["closed", "reset", "open", "left"]


@dataclass(frozen=True)
class Seen:
    """What a client saw: bytes, and how the connection ended. "left": the client left."""

    received: bytes
    outcome: Outcome


async def play(case: Case, port: int, patience: float = SILENCE_SECONDS) -> Seen:
    """Run one connection from its opening to its end.

    Args:
        patience: Seconds without a byte after which the client gives up.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = bytearray()
    reading = asyncio.create_task(_read(reader, received, patience))
    try:
        with suppress(ConnectionError):
            for part in case.parts:
                await _send(case, part, writer, received)
        if case.end in ("reset", "leave"):
            await asyncio.sleep(0 if case.end == "reset" else PAUSE_SECONDS)
            return Seen(bytes(received), "left")
        if case.end == "half-close" and not writer.transport.is_closing():
            with suppress(OSError):  # the server has closed, and the event loop does not know yet
                writer.write_eof()
        outcome = await reading
        return Seen(bytes(received), outcome)
    finally:
        reading.cancel()
        connection = writer.get_extra_info("socket")
        with suppress(OSError):
            if connection is not None:  # a socket in TIME_WAIT would block its port for a minute
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        writer.transport.abort()


async def _read(
    reader: asyncio.StreamReader, received: bytearray, patience: float
) -> Literal["closed", "reset", "open"]:
    try:
        while True:
            async with asyncio.timeout(patience):
                data = await reader.read(READ_BYTES)
            if not data:
                return "closed"
            received += data
    except TimeoutError:
        return "open"
    except ConnectionError:
        return "reset"


async def _send(case: Case, part: Part, writer: asyncio.StreamWriter, received: bytearray) -> None:
    """Send one part. The frames of a stream, and a body that needs leave, follow the server's answer."""
    rng = random.Random(case.index)
    for number, piece in enumerate(part.pieces):
        if number and (part.codes or part.expects):
            had = len(received)
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    while len(received) == had:
                        await asyncio.sleep(PAUSE_SECONDS)
        elif number:
            await asyncio.sleep(PAUSE_SECONDS)
        cuts = sorted(rng.randrange(len(piece) + 1) for _ in range(case.cuts))
        for begin, end in itertools.pairwise([0, *cuts, len(piece)]):
            if writer.transport.is_closing():
                raise ConnectionResetError
            writer.write(piece[begin:end])
            await asyncio.sleep(PAUSE_SECONDS if case.cuts else 0)
        await writer.drain()
