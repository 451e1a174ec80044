"""How a supervisor and its server processes talk: JSON lines over a socket pair that nobody else can reach.

    supervisor → process   hello (settings, address, ...)   serve   reload
    process → supervisor   loaded   serving   beat   reloaded   failed

The end of the channel is a message too: to a process it says that its supervisor is gone.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

LONGEST_MESSAGE = 1_000_000


class Channel:
    """One end of the conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        """Talk over one end of a UNIX socket pair, which the channel owns from now on."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=LONGEST_MESSAGE))

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a message; one to a side that is gone is dropped, since the end of the channel tells of it."""
        try:
            self._writer.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")
            await self._writer.drain()
        except ConnectionError:
            pass

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other side is gone."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        """End the conversation."""
        self._writer.close()
