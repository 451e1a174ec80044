"""Connections are spread evenly over the processes, and none is lost on the way from one to another."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from service.process.accepting import CLOSED, SEND_BUFFER_BYTES, Acceptor, Shares
from tests.service.live import LONG_SECONDS, wait_until
from tests.service.processes import serving

pytestmark = pytest.mark.anyio


class Greeter(asyncio.Protocol):
    """Says which process it belongs to."""

    def __init__(self, name: bytes, open_connections: set[Greeter]) -> None:
        self._name = name
        self._open = open_connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        self._open.add(self)
        transport.write(self._name)

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self)


class Process:
    """What one process would have."""

    def __init__(self, directory: Path, index: int, processes: int) -> None:
        self.connections: set[Greeter] = set()
        self.shares = Shares(directory, index, processes)
        self.listener = socket.create_server(("127.0.0.1", 0))
        name = str(index).encode()
        self.acceptor = Acceptor(
            self.listener, lambda: Greeter(name, self.connections), lambda: len(self.connections), self.shares
        )
        self.acceptor.open()
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> asyncio.StreamReader:
        """A client of this process's listener."""
        reader, writer = await asyncio.open_connection(*self.listener.getsockname())
        self.writers.append(writer)
        return reader

    async def greeting(self) -> bytes:
        """Connect here: who answers?"""
        async with asyncio.timeout(LONG_SECONDS):
            return await (await self.connect()).readexactly(1)


@asynccontextmanager
async def processes(directory: Path, count: int) -> AsyncIterator[list[Process]]:
    made = [Process(directory, index, count) for index in range(count)]
    try:
        yield made
    finally:
        for process in made:
            process.acceptor.close()
            process.listener.close()
            for writer in process.writers:
                writer.close()
                await writer.wait_closed()
        await until(lambda: not any(process.connections for process in made))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_process_that_is_ahead_hands_connections_on(tmp_path: Path) -> None:
    async with processes(tmp_path, 3) as made:
        taken = Counter([await made[0].greeting() for _ in range(30)])
        # A connection that is just being made may be counted twice, or not yet.
        assert taken.total() == 30 and min(taken[name] for name in (b"0", b"1", b"2")) >= 8, taken


async def test_the_kernel_holds_no_megabytes_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    async with processes(tmp_path, 1) as (process,):
        assert await process.greeting() == b"0"
        (greeter,) = process.connections
        held = greeter.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert held == 2 * SEND_BUFFER_BYTES  # Linux doubles it, for its own bookkeeping


async def test_a_process_that_is_gone_gets_nothing(tmp_path: Path) -> None:
    async with processes(tmp_path, 2) as made:
        made[1].shares.tell(0)
        made[1].acceptor.close()
        made[1].shares._counts[1] = 0  # as a killed process leaves it: few connections, and nobody behind the door
        greetings = [await made[0].greeting() for _ in range(5)]
        assert set(greetings) == {b"0"}


async def test_a_process_that_does_not_keep_up_gets_no_more(tmp_path: Path) -> None:
    async with processes(tmp_path, 2) as made:
        loop = made[1].acceptor._loop
        loop.remove_reader(made[1].shares.door)  # it hangs
        for _ in range(3000):
            await made[0].connect()
            made[1].shares.tell(0)
            if len(made[0].connections) >= 20:
                break
        assert len(made[0].connections) >= 20
        handed = len(made[0].writers) - len(made[0].connections)
        made[1].acceptor.close()  # what was handed on is served, not lost
        await until(lambda: len(made[1].connections) == handed)


async def test_a_closed_process_is_left_out(tmp_path: Path) -> None:
    async with processes(tmp_path, 2) as made:
        made[1].acceptor.close()
        assert made[0].shares._counts[1] == CLOSED
        greetings = [await made[0].greeting() for _ in range(4)]
        assert set(greetings) == {b"0"}


@pytest.mark.timeout(120)
async def test_a_server_gives_each_process_its_share(tmp_path: Path) -> None:
    def shares(server_url: str) -> list[int]:
        text = httpx.get(f"{server_url}/metrics", timeout=LONG_SECONDS).text
        return [int(float(count)) for count in re.findall(r"rfa_open_connections\{[^}]*\} (\S+)", text)]

    with serving(tmp_path, processes=4) as server:
        url = server.url
        clients = []
        for _ in range(40):
            client = httpx.Client(base_url=url, timeout=LONG_SECONDS)
            assert client.get("/health").status_code == 200
            clients.append(client)
        wait_until(lambda: sum(shares(url)) >= 40)
        found = shares(url)
        assert len(found) == 4 and max(found) - min(found) <= 4, found
        assert all(client.get("/health").status_code == 200 for client in clients)
        for client in clients:
            client.close()
