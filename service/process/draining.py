"""A uvicorn server that completes running requests before it shuts down.

On a stop signal uvicorn closes the listener and idle connections, cuts off WebSockets, waits for requests and notifies
the application last. Here, the application comes first. Readiness turns false, the listener closes, the engine ends
live streams and lets requests finish, and their handlers send the remaining output. Then uvicorn shuts down.

This module is written against uvicorn 0.54 and uses `Server.startup`, `shutdown`, `on_tick`, `capture_signals` and
`server_state`. `rfa.service.http` implements the connections. uvicorn manages the sets of connections and tasks, the
clock and the lifespan.
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
    """uvicorn server that completes running requests before it stops, disconnects clients that do not read, and does
    not handle signals.

    Args:
        app: the application. When the server stops, `app.state.draining` is set to true first.
        on_serving: function that is called when the listener accepts connections.
        share: share of this process in all connections, if there are several processes.
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
        """Return the number of open connections."""
        return len(self.server_state.connections)

    def stop(self) -> None:
        """Start to drain: accept no more work and complete running requests. Further calls have no effect."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, because the owner of this server handles the signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn itself does not listen; the acceptors do.
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
        """Complete running requests, then shut down.

        This takes at most `shutdown_grace_seconds`, or a few seconds more if jobs have to be interrupted.
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
        """Drain the engine, if the application has one. Return the monotonic time at which this must be complete."""
        drain = getattr(self._app.state.engine, "drain", None)
        seconds = self._settings.server.shutdown_grace_seconds
        if drain is not None:
            work = drain(seconds) if inspect.iscoroutinefunction(drain) else asyncio.to_thread(drain, seconds)
            try:
                await asyncio.wait_for(work, seconds + QUANTUM_SECONDS + FLUSH_SECONDS)
            except TimeoutError:
                logger.error("the engine did not finish its work in time")
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
    """Return a configuration of uvicorn without its connections, logs and proxy headers, which this package
    implements."""
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
