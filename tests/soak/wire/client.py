"""Runs cases against an address and returns the received bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field

from tests.soak.wire.case import Case, Step
from tests.soak.wire.verdict import Outcome, Seen
from tests.waiting import PATIENCE

# Longer than every timeout of the tested server: a connection silent for so long counts as left open.
SILENCE_SECONDS = 25.0
LEAVE_SECONDS = 0.02
LINGER_ZERO = struct.pack("ii", 1, 0)


@dataclass
class _Peer(asyncio.Protocol):
    received: bytearray = field(default_factory=bytearray)
    outcome: Outcome = "open"
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.changed.set()

    def eof_received(self) -> bool:
        self.outcome = "closed"
        self.ended.set()
        self.changed.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.outcome == "open":
            self.outcome = "closed" if exc is None else "reset"
        self.ended.set()
        self.changed.set()


async def play(case: Case, port: int, patience: float = SILENCE_SECONDS) -> Seen:
    """Run one connection from its opening to its end.

    Args:
        patience: Seconds without a byte from the server after which the client gives up.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            transport, peer = await loop.create_connection(_Peer, "127.0.0.1", port)
    except (OSError, TimeoutError):
        return Seen(b"", "refused")
    try:
        for step in case.steps:
            if peer.ended.is_set():
                break
            if not await _act(step, transport, peer):
                return Seen(bytes(peer.received), "left")
        if any(step.op == "deaf" for step in case.steps):
            await asyncio.sleep(LEAVE_SECONDS)
            return Seen(bytes(peer.received), "left")
        await _end(peer, patience)
        return Seen(bytes(peer.received), peer.outcome)
    finally:
        _reset(transport)


async def _act(step: Step, transport: asyncio.Transport, peer: _Peer) -> bool:
    """Run one step. Return False if it was the last."""
    if step.op == "send":
        transport.write(step.data)
    elif step.op == "pause":
        await asyncio.sleep(step.seconds)
    elif step.op == "await":
        had = len(peer.received)
        with suppress(TimeoutError):
            async with asyncio.timeout(step.seconds):
                while len(peer.received) == had and not peer.ended.is_set():
                    peer.changed.clear()
                    await peer.changed.wait()
    elif step.op == "half-close":
        if not transport.is_closing():
            with suppress(OSError):  # the server has closed, and the event loop does not know yet
                transport.write_eof()
    elif step.op == "deaf":
        transport.pause_reading()
    else:
        await asyncio.sleep(LEAVE_SECONDS if step.op == "leave" else 0)
        return False
    return True


async def _end(peer: _Peer, patience: float) -> None:
    """Wait for the end while bytes arrive, because a long pipeline may take a while."""
    with suppress(TimeoutError):
        while not peer.ended.is_set():
            peer.changed.clear()
            async with asyncio.timeout(patience):
                await peer.changed.wait()


def _reset(transport: asyncio.Transport) -> None:
    """Reset the connection, because a socket in TIME_WAIT would block its port for a minute."""
    connection = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    transport.abort()
