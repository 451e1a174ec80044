"""Connections are spread evenly over the processes, and none is lost on the way from one to another."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from rfa.service.process import shared_status
from rfa.service.process.accepting import SEND_BUFFER_BYTES, Acceptor, ConnectionShare
from rfa.service.process.address import listen, refuse, reserve
from rfa.service.process.shared_status import CLOSED, SILENT_SECONDS, SharedStatus, create_shared_status
from tests.service.live import read_answer
from tests.service.processes import serving
from tests.waiting import PATIENCE, until, wait_until

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
    """What one process would have: its own end of the one listener."""

    def __init__(self, listener: socket.socket, board: SharedStatus, index: int) -> None:
        self.connections: set[Greeter] = set()
        self.listener = listener.dup()
        self.shares = ConnectionShare(board, index)
        name = str(index).encode()
        self.acceptor = Acceptor(
            self.listener, lambda: Greeter(name, self.connections), lambda: len(self.connections), self.shares
        )
        self.acceptor.open()

    def hang(self) -> None:
        """Do nothing more, as a process that is stopped."""
        asyncio.get_running_loop().remove_reader(self.listener)


class Served:
    """Processes behind one port, and their clients."""

    def __init__(self, count: int) -> None:
        self.listener, self.address = reserve("127.0.0.1", 0)
        listen(self.listener)
        self.board = create_shared_status(count)
        self.processes = [Process(self.listener, self.board, index) for index in range(count)]
        self.writers: list[asyncio.StreamWriter] = []

    async def greeting(self) -> bytes:
        """Connect: who answers?"""
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
            self.writers.append(writer)
            return await reader.readexactly(1)

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            await writer.wait_closed()
        for process in self.processes:
            process.acceptor.close()
            process.listener.close()
        self.listener.close()
        await until(lambda: not any(process.connections for process in self.processes))


@asynccontextmanager
async def served(count: int) -> AsyncIterator[Served]:
    made = Served(count)
    try:
        yield made
    finally:
        await made.close()


async def test_connections_are_shared_one_after_another_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_status, "SILENT_SECONDS", PATIENCE)  # the test may be delayed
    for crowd in (1, 10):
        async with served(3) as made:
            greetings: list[bytes] = []
            for _ in range(30 // crowd):
                greetings += await asyncio.gather(*(made.greeting() for _ in range(crowd)))
            taken = Counter(greetings)
            # A process may be ahead by two and a sixteenth before it leaves connections to the others.
            assert taken.total() == 30 and min(taken[name] for name in (b"0", b"1", b"2")) >= 7, taken


async def test_the_kernel_holds_no_megabytes_for_a_client_that_does_not_read() -> None:
    async with served(1) as made:
        assert await made.greeting() == b"0"
        (greeter,) = made.processes[0].connections
        held = greeter.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert held == 2 * SEND_BUFFER_BYTES  # Linux doubles it, for its own bookkeeping


@pytest.mark.parametrize("silent", [False, True], ids=["still beating", "silent"])
async def test_a_process_that_hangs_takes_no_connection_with_it(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    async with served(2) as made:
        _, hanging = made.processes
        hanging.hang()
        if silent:
            now = time.monotonic
            monkeypatch.setattr("rfa.service.process.shared_status.time.monotonic", lambda: now() + 2 * SILENT_SECONDS)
        else:
            beat = asyncio.get_running_loop().create_task(keep_beating(hanging))
        greetings = await asyncio.gather(*(made.greeting() for _ in range(20)))
        assert greetings == [b"0"] * 20
        if not silent:
            beat.cancel()


async def keep_beating(process: Process) -> None:
    while True:
        process.shares.publish(0)
        await asyncio.sleep(0.01)


async def test_a_closed_process_is_left_out() -> None:
    async with served(2) as made:
        made.processes[1].acceptor.close()
        assert made.board.fewest_connections(0) == CLOSED
        assert [await made.greeting() for _ in range(4)] == [b"0"] * 4


async def test_a_listener_that_is_shut_refuses_at_once_and_in_every_process() -> None:
    async with served(2) as made:
        made.processes[1].hang()
        refuse(made.listener)
        with pytest.raises(ConnectionRefusedError):
            await made.greeting()
        await until(lambda: made.board.fewest_connections(1) == CLOSED)  # closed in the other process too


async def test_a_process_without_file_descriptors_leaves_connections_to_others() -> None:
    async with served(2) as made:
        first = made.processes[0]
        first.acceptor._fail(OSError(errno.EMFILE, "Too many open files"))
        assert made.board.fewest_connections(1) == CLOSED
        assert [await made.greeting() for _ in range(6)] == [b"1"] * 6


async def test_a_server_gives_each_process_its_share(tmp_path: Path) -> None:
    def shares() -> list[int]:
        return [int(float(count)) for count in re.findall(r"rfa_open_connections\{[^}]*\} (\S+)", server.metrics())]

    with serving(tmp_path, processes=4) as server, ExitStack() as held:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        clients: list[socket.socket] = []

        def is_answered(client: socket.socket) -> bool:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return read_answer(client)[0] == 200

        def connect(count: int) -> None:
            for _ in range(count):
                clients.append(held.enter_context(socket.create_connection(address, PATIENCE)))
                assert is_answered(clients[-1])
            wait_until(lambda: sum(shares()) >= len(clients))

        connect(160)
        # A process that the machine let starve gets what follows until it has as many as the others.
        while len(clients) < 320 and 3 * min(shares()) < 2 * max(shares()):
            connect(40)
        found = shares()
        assert len(found) == 4 and 3 * min(found) >= 2 * max(found), found
        assert all(map(is_answered, clients))


def test_no_request_waits_for_a_stopped_process(tmp_path: Path) -> None:
    with serving(tmp_path, processes=2) as server:
        url = server.url
        stopped = server.children()[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            statuses = [httpx.get(f"{url}/health", timeout=PATIENCE).status_code for _ in range(40)]
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert "serving health checks on port" not in server.log  # without the setting
    assert statuses == [200] * 40
