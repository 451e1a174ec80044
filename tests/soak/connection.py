"""HTTP/1.1 over one kept connection, with as little work as can be: the client's own share of the cores stays small."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from tests.waiting import PATIENCE

HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Answer:
    """A whole answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def request_bytes(method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
    """A request with a JSON body.

    Args:
        headers: further lines, each with its line break.
    """
    kind = "Content-Type: application/json\r\n" if body else ""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(body)}\r\n{headers}\r\n".encode()
        + body
    )


class Connection:
    """A connection that is opened when it is needed, and again when the server has closed it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop()

    async def ask(self, request: bytes, *, has_body: bool = True) -> Answer:
        """Send a request and read its answer.

        Args:
            has_body: whether the answer may have one; that to HEAD has none.

        Raises:
            OSError, EOFError, TimeoutError, ValueError: no whole answer came.
        """
        async with asyncio.timeout(PATIENCE):
            reader, writer = await self._streams()
            writer.write(request)
            answer = await _read(reader, has_body=has_body)
        if answer.headers.get("connection") == "close":
            self.drop()
        return answer

    async def leave(self, request: bytes, seconds: float) -> None:
        """Send a request and close the connection without waiting for the answer."""
        _, writer = await self._streams()
        writer.write(request)
        await asyncio.sleep(seconds)
        self.drop()

    def drop(self) -> None:
        """Close the connection; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
            self._reader = self._writer = None

    async def _streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=2**24)
        return self._reader, self._writer


async def _read(reader: asyncio.StreamReader, *, has_body: bool) -> Answer:
    first, *lines = (await reader.readuntil(HEAD_END)).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = b""
    if has_body and headers.get("transfer-encoding") == "chunked":
        body = await _read_chunks(reader)
    elif has_body:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(int(first.split()[1]), headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int(await reader.readline(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(pieces)
