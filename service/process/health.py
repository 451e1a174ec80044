"""Serve /health, /ready and /metrics on a separate port, independently of the load of the server.

The supervisor serves this port. Therefore, it replies even if all processes have reached their connection limits or if
an event loop hangs. The supervisor determines the health of the processes from their heartbeats.

    GET /health    replies with 200 while at least one process sends heartbeats
    GET /ready     replies with 200 while at least one process serves requests and its engine makes progress, until the
                   server receives a stop signal
    GET /metrics   returns the metrics of all processes, and requires an API key if the server has keys

Each connection is for one request without a body, which must be complete within `SECONDS`. If there are more than
`MOST_CONNECTIONS` connections, the oldest one is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

import h11
import orjson

from rfa.service.access.guard import presented_keys
from rfa.service.access.keys import load_keys
from rfa.service.access.origin import OriginPolicy
from rfa.service.errors import (
    STATUS,
    MalformedRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
    ServiceError,
    Unauthorized,
)
from rfa.service.exposition import ask, merge
from rfa.service.metrics import CONTENT_TYPE
from rfa.service.settings import Settings

if TYPE_CHECKING:
    from rfa.service.process.managed_child import Child

logger = logging.getLogger("rfa.supervisor")
MOST_CONNECTIONS: Final = 64
LARGEST_HEAD_BYTES: Final = 8_192
SECONDS: Final = 5.0
JSON: Final = "application/json"
ALWAYS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Connection": "close"}


@dataclass(frozen=True)
class HealthStatus:
    """Health of the server. `is_alive` is the result of /health, and `is_ready` that of /ready."""

    is_alive: bool
    is_ready: bool

    @classmethod
    def from_processes(
        cls, processes: Iterable[Child], *, tick: float, stall: float, is_stopping: bool
    ) -> HealthStatus:
        """Return the health of the server, which is determined from the heartbeats of its processes.

        Args:
            tick: Seconds between two checks of the heartbeats. `silent_ticks` of a process is the number of checks
                since its last heartbeat.
            stall: Seconds without progress after which a process is not ready. After twice this time, it is not alive.
            is_stopping: Whether the server has received a stop signal.
        """
        silent = {process: process.silent_ticks * tick for process in processes if process.heard}
        return cls(
            any(seconds <= 2 * stall for seconds in silent.values()),
            not is_stopping
            and any(each.has_served and max(seconds, each.stalled) <= stall for each, seconds in silent.items()),
        )


@contextlib.asynccontextmanager
async def health_listener(
    settings: Settings, health_status: Callable[[], HealthStatus], directory: str | None
) -> AsyncIterator[None]:
    """Context manager that serves health probes on `health_port`, if it is set.

    Args:
        health_status: Function that returns the current health.
        directory: Directory that contains the metrics sockets of the processes. If None, /metrics has no metrics.

    Raises:
        OSError: If the port is in use.
    """
    if settings.server.health_port is None:
        yield
        return
    probes = Probes(settings, health_status, directory)
    host = settings.server.host or None  # "" means all interfaces
    server = await asyncio.start_server(probes.serve, host, settings.server.health_port, limit=LARGEST_HEAD_BYTES)
    logger.info("serving health checks on port %d", server.sockets[0].getsockname()[1])
    try:
        yield
    finally:
        server.close()
        probes.close()


class Probes:
    """Serves health probes, with a limit on the number of connections. See `health_listener`."""

    def __init__(self, settings: Settings, health_status: Callable[[], HealthStatus], directory: str | None) -> None:
        self._health_status = health_status
        self._sockets = (
            [Path(directory) / str(index) for index in range(settings.models.processes)] if directory else []
        )
        self._keys = load_keys(settings)
        self._policy = OriginPolicy(settings, has_keys=len(self._keys) > 0)
        self._open: dict[asyncio.Task[None], None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection. This is a callback for `asyncio.start_server`."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = None
        if len(self._open) > MOST_CONNECTIONS:
            next(iter(self._open)).cancel()
        try:
            async with asyncio.timeout(SECONDS):
                await self._exchange(h11.Connection(h11.SERVER, LARGEST_HEAD_BYTES), reader, writer)
        except (TimeoutError, OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            del self._open[task]
            writer.close()

    def close(self) -> None:
        """Close all connections."""
        for task in list(self._open):
            task.cancel()

    async def _exchange(self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_head = False
        try:
            while (event := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await reader.read(LARGEST_HEAD_BYTES))
            if not isinstance(event, h11.Request):
                return
            is_head = event.method == b"HEAD"
            content, kind = await self._answer(event)
            status, headers = HTTPStatus.OK, {}
        except (h11.RemoteProtocolError, ServiceError) as error:
            if not isinstance(error, ServiceError):
                error = MalformedRequest("The request is not valid HTTP/1.1.")
            content, kind = orjson.dumps(error.payload()), JSON
            status, headers = HTTPStatus(STATUS[type(error)]), error.headers()
        fields = {"Content-Type": kind, **headers, "Content-Length": str(len(content)), **ALWAYS}
        response = h11.Response(status_code=status, headers=list(fields.items()), reason=status.phrase)
        writer.write((http.send(response) or b"") + (b"" if is_head else http.send(h11.Data(content)) or b""))
        await writer.drain()

    async def _answer(self, request: h11.Request) -> tuple[bytes, str]:
        """Return the body and the media type of the reply to a request."""
        headers = list(request.headers)
        self._policy.check_host(headers)
        path = request.target.partition(b"?")[0]
        if path not in (b"/health", b"/ready", b"/metrics"):
            raise NotFound("This port serves only /health, /ready and /metrics.")
        if request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("This path supports only GET and HEAD.", allow="GET, HEAD")
        if path == b"/metrics":
            return await self._metrics(presented_keys(headers)), CONTENT_TYPE
        status = self._health_status()
        if path == b"/health" and not status.is_alive:
            raise NotReady("No server process is sending heartbeats.")
        if path == b"/ready" and not status.is_ready:
            raise NotReady("No server process is ready, or the server is shutting down.")
        return orjson.dumps({"status": "alive" if path == b"/health" else "ready"}), JSON

    async def _metrics(self, keys: list[bytes]) -> bytes:
        if len(self._keys) and (len(keys) != 1 or self._keys.tenant_of(keys[0]) is None):
            raise Unauthorized(
                "/metrics requires an API key. Send the header Authorization: Bearer KEY or X-API-Key: KEY."
            )
        texts = await asyncio.gather(*map(ask, self._sockets))
        answered = [text for text in texts if text is not None]
        if not answered:
            raise NotReady("No server process returned its metrics.")
        return merge(answered).encode()
