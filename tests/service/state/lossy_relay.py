"""A TCP relay to Redis that loses exactly one answer."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType


class LossyRelay:
    """Delivers the first request that contains `command`, and breaks the connection instead of giving the answer.

    The server has answered by then, so the command was executed. Everything else passes.
    """

    def __init__(self, server_port: int, command: bytes) -> None:
        self._server_port = server_port
        self._command = command
        self._connections: set[asyncio.Task[None]] = set()
        self.lost = False

    async def __aenter__(self) -> LossyRelay:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own, as start_server reports the cancellation of its own ones as failures.
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._connections.add(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        losing = False

        async def requests() -> None:
            nonlocal losing
            while data := await reader.read(65_536):
                if self._command in data and not self.lost:
                    self.lost = losing = True
                to_server.write(data)

        async def answers() -> None:
            while (data := await from_server.read(65_536)) and not losing:
                writer.write(data)

        ways = [asyncio.ensure_future(way()) for way in (requests, answers)]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for side in (writer, to_server):
                side.close()
                with contextlib.suppress(ConnectionError):
                    await side.wait_closed()
