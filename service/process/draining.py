"""A uvicorn server that completes running requests before it shuts down.

When uvicorn stops, it closes the listening socket and idle connections, disconnects WebSockets, waits for requests, and
notifies the application last. This server notifies the application first. /ready fails, the listening socket is closed,
the engine ends live streams and completes requests, and their handlers send the remaining output. Then uvicorn shuts
down.

This module is written for uvicorn 0.54, and uses `Server.startup`, `shutdown`, `on_tick`, `capture_signals` and
`server_state`. `rfa.service.http` implements the connections. uvicorn manages the sets of connections and tasks, calls
`on_tick`, and runs the lifespan of the application.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from rfa.service.http.connection import Connection, ConnectionManager
from rfa.service.http.http1 import HTTPConnection
from rfa.service.process.accepting import Acceptor, ConnectionShare
from rfa.service.process.shutdown_limits import FLUSH_SECONDS, QUANTUM_SECONDS
from rfa.service.settings import Settings

logger = logging.getLogger("rfa.server")
TICKS_PER_SECOND = 10


class DrainingServer(uvicorn.Server):
    """uvicorn server that completes running requests before it stops. It disconnects clients that do not read, and does
    not handle signals.

    Args:
        app: Application. When the server stops, `app.state.draining` is set to True first.
        on_serving: Function that is called when the server starts to accept connections.
        share: Object that balances connections between processes. None if there is only one process.
    """

    def __init__(
        self,
        app: FastAPI,
        settings: Settings,
        on_serving: Callable[[], None] = lambda: None,
        share: ConnectionShare | None = None,
    ) -> None:
        super().__init__(server_config(app, settings))
        self._share = share
        self._acceptors: list[Acceptor] = []
        self._app = app
        self._settings = settings
        self._on_serving = on_serving
        app.state.metrics.watch("open_connections", "Number of open client connections.", self.open_connections)

    def open_connections(self) -> int:
        """Return the number of open connections of this process."""
        return len(self.server_state.connections)

    def stop(self) -> None:
        """Start to drain: accept no new connections, and complete running requests. Further calls have no effect."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, because the caller of `serve` handles the signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # The acceptors listen instead of uvicorn.
        await super().startup([])
        manager = ConnectionManager(
            app=self.config.loaded_app,
            limits=self._settings.limits,
            metrics=self._app.state.metrics,
            memory=self._app.state.memory,
            state=self.server_state,
            app_state=self.lifespan.state,
        )
        self._acceptors = [
            Acceptor(listener, lambda: HTTPConnection(manager), self.open_connections, self._share)
            for listener in sockets or []
        ]
        self.servers = list[Any](self._acceptors)
        for acceptor in self._acceptors:
            acceptor.open()
        self._on_serving()

    async def on_tick(self, counter: int) -> bool:
        for acceptor in self._acceptors:
            acceptor.publish()
        if counter % TICKS_PER_SECOND == 0:
            self._tick_connections()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Complete running requests, and then shut down.

        This takes at most `shutdown_grace_seconds`, and a few seconds more if jobs must be interrupted.
        """
        deadline = time.monotonic() + self._settings.server.shutdown_grace_seconds
        self._app.state.draining = True
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            if isinstance(connection, HTTPConnection):
                connection.close_after_response()
        drained = await self._drain_engine()
        await self._handlers_ended(max(deadline, drained + FLUSH_SECONDS))
        self.config.timeout_graceful_shutdown = 1
        await super().shutdown(sockets)

    async def _drain_engine(self) -> float:
        """Drain the engine, if the application has one. Return the monotonic time at which this was complete."""
        drain = getattr(self._app.state.engine, "drain", None)
        seconds = self._settings.server.shutdown_grace_seconds
        if drain is not None:
            work = drain(seconds) if inspect.iscoroutinefunction(drain) else asyncio.to_thread(drain, seconds)
            try:
                await asyncio.wait_for(work, seconds + QUANTUM_SECONDS + FLUSH_SECONDS)
            except TimeoutError:
                logger.error("the engine did not complete its jobs in time, so the server stops without them")
        return time.monotonic()

    async def _handlers_ended(self, deadline: float) -> None:
        while (tasks := set(self.server_state.tasks)) and (seconds := deadline - time.monotonic()) > 0:
            await asyncio.wait(tasks, timeout=seconds)

    def _tick_connections(self) -> None:
        now = time.monotonic()
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.tick(now)


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return the configuration of uvicorn. Connections, logs and proxy headers are disabled, because this package
    implements them."""
    options: dict[str, Any] = {
        "loop": "uvloop",
        "http": HTTPConnection,
        "ws": "none",
        "proxy_headers": False,
        "lifespan": "on",
        "log_config": None,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
    }
    return uvicorn.Config(app, **options)
