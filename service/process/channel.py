"""How a supervisor and its server processes talk: JSON lines over a socket pair that nobody else can reach.

    supervisor → process   hello (settings, place, ...)   serve   prepare   commit   abort
    process → supervisor   loaded   serving   beat   prepared   failed

The end of the channel is a message too: to a process it says that its supervisor is gone.

A message has a size that the other side reads for certain: what is too long is refused where it is sent, by its author.
What arrives and is no message raises `ChannelError`, which the reader lays to the other side.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

LONGEST_MESSAGE = 1_000_000
# Of a reason: written for a line of the log.
LONGEST_REASON = 1_000


class ChannelError(ValueError):
    """What is no message: too long, not JSON, or not of a known form."""


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
        """Send a message; one to a side that is gone is dropped, since the end of the channel tells of it.

        Raises:
            ChannelError: it is longer than the other side would read; nothing was sent.
        """
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        if len(line) > LONGEST_MESSAGE:
            raise ChannelError(f"a message {kind!r} of {len(line)} bytes; at most {LONGEST_MESSAGE} are read")
        try:
            self._writer.write(line)
            await self._writer.drain()
        except ConnectionError:
            pass

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when the other side is gone.

        Raises:
            ChannelError: what came is none.
        """
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        except ValueError:  # longer than the limit
            raise ChannelError("a message is too long") from None
        if not line.endswith(b"\n"):
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ChannelError("a message is not JSON") from None
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise ChannelError("a message has no kind")
        return message

    def close(self) -> None:
        """End the conversation."""
        self._writer.close()


def reason_of(error: BaseException) -> str:
    """Why, in one line that a message and a log can hold."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= LONGEST_REASON else words[: LONGEST_REASON - 1] + "…"
