"""Channel for messages between the supervisor and a server process. A message is a line of JSON, sent over a private
pair of sockets.

    supervisor → process   hello (settings, index, ...)   serve   prepare   commit   abort
    process → supervisor   compiling   loaded   serving   beat   prepared   failed

If the channel of a process is closed, the supervisor has exited.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

LONGEST_MESSAGE = 1_000_000
# Maximum number of characters of the reason for a failure, which is written to one log line.
LONGEST_REASON = 1_000


class ChannelError(ValueError):
    """Raised if a message is too long, is not valid JSON, or has unexpected fields."""


class Channel:
    """One end of the channel between the supervisor and a process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        """Open a channel on one socket of a pair of UNIX sockets. `close` closes the socket."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=LONGEST_MESSAGE))

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a message. If the other process has exited, the message is discarded, and `receive` returns None.

        Args:
            kind: Kind of the message.
            fields: Other fields of the message, which must be JSON types.

        Raises:
            ChannelError: If the message is too long. Nothing is sent.
        """
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        if len(line) > LONGEST_MESSAGE:
            raise ChannelError(
                f"the size of message {kind!r} is {len(line)} bytes, which exceeds the limit of {LONGEST_MESSAGE}"
            )
        try:
            self._writer.write(line)
            await self._writer.drain()
        except ConnectionError:
            pass

    async def receive(self) -> dict[str, Any] | None:
        """Wait for the next message, and return it. Return None if the other process has exited.

        Raises:
            ChannelError: If the message is invalid.
        """
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        except ValueError:  # longer than the limit
            raise ChannelError("the message is too long") from None
        if not line.endswith(b"\n"):
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ChannelError("the message is not valid JSON") from None
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise ChannelError("the message has no field 'kind'")
        return message

    def close(self) -> None:
        """Close this end of the channel."""
        self._writer.close()


def error_reason(error: BaseException) -> str:
    """Return the message of an exception as one line of at most LONGEST_REASON characters."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= LONGEST_REASON else words[: LONGEST_REASON - 1] + "…"
