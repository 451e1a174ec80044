"""Servers of tests: an application with a client in its event loop, or on a socket in a thread of the process."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.from_thread
import fastapi._compat.v2
import httpx
import uvloop
from fastapi import FastAPI, WebSocket
from pydantic import TypeAdapter
from starlette.websockets import WebSocketDisconnect
from websockets.sync.client import connect

from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.service.app import create_app
from rfa.service.engine.models import Models, load_models
from rfa.service.process.draining import DrainingServer
from rfa.service.settings import Settings
from tests.service.models import fake_models
from tests.waiting import PATIENCE

ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def shared_adapter(annotation: Any, *, config: Any = None) -> TypeAdapter[Any]:
    """Every application needs the same hundred adapters, which take 0.2 s."""
    key = annotation.__origin__, repr(annotation.__metadata__), repr(config)
    if key not in ADAPTERS:
        ADAPTERS[key] = TypeAdapter(annotation, config=config)
    return ADAPTERS[key]


vars(fastapi._compat.v2)["TypeAdapter"] = shared_adapter


@functools.cache
def bundled(*names: str) -> Models:
    """Default bundles, loaded once for all tests of a process."""
    return load_models(Settings(bundles=tuple(BUNDLE_ROOT / name for name in names), processes=1))


@asynccontextmanager
async def connected(models: Models | None = None, **settings: Any) -> AsyncIterator[Any]:
    """A client of an application with hand-made models, or with these; `client.app` is the application."""
    app = create_app(
        Settings(**{"bundles": (), "processes": 1, "workers": 2, **settings}), load=lambda _: models or fake_models()
    )
    async with app.router.lifespan_context(app):
        # An unhandled exception must show as a 500 here, as it would to a client.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
            client.app = app  # type: ignore[attr-defined]
            yield client


def serving(*names: str, **settings: Any) -> AbstractAsyncContextManager[Any]:
    """A client of an application with default bundles."""
    return connected(bundled(*names), **settings)


@contextmanager
def blocking(client: AbstractAsyncContextManager[Any]) -> Iterator[Callable[..., httpx.Response]]:
    """`post(path, json=…)` of a client, for tests that are not coroutines."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(client) as opened,
    ):
        yield lambda path, **given: portal.call(partial(opened.post, path, **given))


async def answer(client: httpx.AsyncClient, document: Any, path: str = "/filter") -> Any:
    """The document of an answer, which must be 200."""
    response = await client.post(path, json=document)
    assert response.status_code == 200, response.text
    return response.json()


async def refusal(client: httpx.AsyncClient, document: Any, path: str = "/filter") -> tuple[int, Any]:
    """Status and error of an answer, which must be a refusal."""
    response = await client.post(path, json=document)
    assert 400 <= response.status_code < 500, response.text
    return response.status_code, response.json()["error"]


def replies_of(url: str, *frames: Any) -> list[Any]:
    """The replies of a live stream, one to each frame, sent one after the other."""
    with connect(f"{url.replace('http', 'ws', 1)}/filter/stream", open_timeout=PATIENCE) as stream:
        replies = []
        for frame in frames:
            stream.send(json.dumps(frame))
            replies.append(json.loads(stream.recv()))
        return replies


@dataclass
class Live:
    """A running server."""

    app: FastAPI
    server: DrainingServer
    port: int
    stop: Callable[[], None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def limit(self, **limits: Any) -> None:
        """Change limits of the connections; one must be open.

        For a timeout that is short because it is waited for: one that began with the connection might end before the
        first bytes are read, on a machine that is slow enough.
        """
        manager = next(iter(self.server.server_state.connections)).manager
        manager.limits = manager.limits.model_copy(update=limits)

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        """A raw connection; a small receive buffer lets the server notice soon that nobody reads."""
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(PATIENCE)
        try:
            connection.connect(("127.0.0.1", self.port))
        except OSError:
            connection.close()
            raise
        return connection


@contextmanager
def running(
    models: Models | None = None, prepare: Callable[[FastAPI], None] = lambda app: None, **settings: Any
) -> Iterator[Live]:
    """A server of hand-made models, or of `bundles`, drained at the end."""
    # Raw requests call the server anything.
    own = {"bundles": (), "processes": 1, "workers": 2, "shutdown_grace_seconds": 5, "allowed_hosts": "*"}
    given = Settings.model_validate({**own, **settings})
    load = {} if given.models.bundles else {"load": lambda _: models or fake_models()}
    app = create_app(given, **load)
    prepare(app)
    serving = threading.Event()
    server = DrainingServer(app, given, serving.set)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(server.serve(sockets=[listener]))

        thread = threading.Thread(target=serve, daemon=True)

        def stop() -> None:
            server.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()

        port = listener.getsockname()[1]
        thread.start()
        assert serving.wait(PATIENCE)
        try:
            yield Live(app, server, port, stop)
        finally:
            stop()


def read_to_end(connection: socket.socket) -> bytes:
    """Everything until the server closes its side."""
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One answer with a declared length, byte by byte, so that nothing of the next one is taken."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        assert piece, f"the server closed after {head!r}"
        head += piece
    status, headers = parse_head(head)
    body = b""
    while len(body) < int(headers["content-length"]):
        piece = connection.recv(int(headers["content-length"]) - len(body))
        assert piece
        body += piece
    return status, headers, body


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers, names in lower case."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


def check_refusal(answer: bytes, status: int, code: str) -> None:
    """A whole answer in the one error shape, after which the connection is closed."""
    head, _, body = answer.partition(b"\r\n\r\n")
    got, headers = parse_head(head)
    assert got == status, answer[:200]
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/json"
    assert int(headers["content-length"]) == len(body)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code


def read_exactly(client: socket.socket, count: int) -> bytes:
    """So many bytes, however they come."""
    data = bytearray()
    while len(data) < count:
        piece = client.recv(count - len(data))
        assert piece, f"closed after {bytes(data)!r}"
        data += piece
    return bytes(data)


def handshake(*lines: bytes, path: bytes = b"/echo") -> bytes:
    """The request that asks for a WebSocket."""
    head = [
        b"GET " + path + b" HTTP/1.1",
        b"Host: x",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *lines,
    ]
    return b"\r\n".join(head) + b"\r\n\r\n"


def frame(opcode: int, payload: bytes = b"", *, is_final: bool = True, mask: bytes = bytes(4)) -> bytes:
    """A frame of a client, masked with zeros, or one of a server, with no mask."""
    size, flag = len(payload), 0x80 if mask else 0
    length = struct.pack("!B", flag | size) if size < 126 else struct.pack("!BH", flag | 126, size)
    return bytes([(0x80 if is_final else 0) | opcode]) + length + mask + payload


def opened(server: Live, receive_buffer: int | None = None, path: bytes = b"/echo") -> socket.socket:
    """A WebSocket, after its handshake."""
    client = server.connect(receive_buffer)
    client.sendall(handshake(path=path))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return client


def echoing(app: FastAPI) -> None:
    """WebSockets that say what they hear, at /echo, and that speak without end, at /flood."""

    async def talk(connection: WebSocket) -> None:
        is_echo = connection.url.path == "/echo"
        await connection.accept()
        with suppress(WebSocketDisconnect):
            while True:
                await connection.send_text(await connection.receive_text() if is_echo else "x" * 100_000)

    for path in ("/echo", "/flood"):
        app.add_api_websocket_route(path, talk)
