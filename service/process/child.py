"""Server process, which the supervisor starts as `python -m rfa.service.process FD`. FD is the file descriptor of its
channel to the supervisor.

The process loads the bundles, reports this to the supervisor, and accepts connections after the message `serve`. Its
event loop sends heartbeats with the seconds since the last progress of the engine. On SIGTERM, it completes running
requests and exits. It also exits if the supervisor exits, because it would otherwise accept connections of the next
server on the port.

A reload has two phases. After the message `prepare`, the process loads the new bundles while it serves the old ones.
Each request reads the generation in the shared status when it starts, and uses the bundles of this generation. The
message `commit` is sent after the generation has changed, so that a process without requests also frees the old
bundles.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import uvloop
from fastapi import FastAPI

from rfa.runtime.compiling import call_on_compile
from rfa.service.access.logs import configure_logging
from rfa.service.app import create_app
from rfa.service.child_environment import end_with_parent
from rfa.service.engine.engine import Engine
from rfa.service.engine.models import Models, load_models
from rfa.service.memory import request_memory
from rfa.service.openapi import openapi_of
from rfa.service.process.accepting import ConnectionShare
from rfa.service.process.background import run_in_background
from rfa.service.process.channel import Channel, error_reason
from rfa.service.process.draining import DrainingServer
from rfa.service.process.open_files import allow_open_files
from rfa.service.process.settings_json import read_settings
from rfa.service.process.shared_status import SharedStatus
from rfa.service.schemas.server_replies import ModelInfo
from rfa.service.settings import Settings

logger = logging.getLogger("rfa.server")
Load = Callable[[Settings], Models]
# Thread switch interval. With Python's default, the event loop would wait up to 5 ms for a worker thread.
SWITCH_SECONDS = 0.0005
LONGEST_BEAT_SECONDS = 1.0
# Thresholds of the garbage collector. A full collection visits all objects of all connections, and takes 0.1 to 0.4 s
# with 1,800 streams. If collections are 50 times rarer, a process retains 230 bytes of each request.
COLLECT_AFTER = (10_000, 3, 30)
# Maximum number of characters for all model names in the log line at start-up.
LONGEST_LABELS = 10_000


def main(load: Load = load_models) -> NoReturn:
    """Run a server process until SIGTERM.

    Args:
        load: Function that loads the models.
    """
    end_with_parent()  # on other systems than Linux, the process exits when the channel is closed
    # A terminal sends these signals to all processes of its group. Only the supervisor handles them.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_run(socket.socket(fileno=int(sys.argv[1])), load))
    sys.exit(code)


async def _run(end: socket.socket, load: Load) -> int:
    channel = await Channel.open(end)
    hello = await channel.receive()
    return 1 if hello is None else await ServerProcess(channel, hello, load).run()


class ServerProcess:
    """Runs a server process, from the first message of the supervisor to the exit of the process.

    Args:
        hello: First message of the supervisor, which contains the settings.
        load: Function that loads the models.
    """

    def __init__(self, channel: Channel, hello: dict[str, Any], load: Load) -> None:
        self._channel = channel
        self._hello = hello
        self._load = load
        self._settings = read_settings(hello["settings"])
        configure_logging(self._settings)
        allow_open_files(self._settings.limits.max_connections)
        self._status = SharedStatus(hello["board"], self._settings.models.processes)
        self._app: FastAPI | None = None
        self._generation: int | None = None  # generation that is being prepared, or is prepared
        self._loading = asyncio.Lock()

    async def run(self) -> int:
        """Load the bundles, wait for the message `serve`, and serve requests. Return the exit code."""
        beating = asyncio.create_task(self._beat())
        try:
            app = await self._prepare()
            if app is None or await self._channel.receive() is None:
                return 1
            await self._serve(app)
            return 0
        finally:
            beating.cancel()

    async def _prepare(self) -> FastAPI | None:
        """Load the bundles, and return the application. If this fails, report the reason to the supervisor, and return
        None."""
        try:
            loaded: list[Models] = []
            app = create_app(self._settings, load=lambda given: loaded.pop() if loaded else self._load(given))
            models = await asyncio.to_thread(self._load_first, asyncio.get_running_loop())
            loaded.append(models)
            # Called here to report its error to the supervisor. The application calls it again at its start.
            request_memory(self._settings, kept_bytes=models.reserved_bytes(self._settings))
        except Exception as error:
            is_refusal = isinstance(error, (ValueError, OSError))  # their messages are for the operator
            if not is_refusal:
                logger.exception("the bundles could not be loaded")
            await self._channel.send("failed", reason=error_reason(error), refused=is_refusal)
            return None
        labels = ", ".join(map(_label, models.facts))
        await self._channel.send("loaded", models=labels[:LONGEST_LABELS], version=models.version)
        return app

    def _load_first(self, loop: asyncio.AbstractEventLoop) -> Models:
        """Load and return the models. Kernels that are missing are compiled, which is reported to the supervisor."""

        def notify() -> None:
            asyncio.run_coroutine_threadsafe(self._channel.send("compiling"), loop)

        with call_on_compile(notify):
            return self._load(self._settings)

    async def _serve(self, app: FastAPI) -> None:
        _tune_garbage_collector()
        self._app = app
        index, directory = self._hello["index"], self._hello["directory"]
        app.state.metrics.engine = index
        app.state.metrics.process_restarts.inc(self._hello["restarts"])
        app.state.metrics.watch_reloads(self._status.reloads)
        try:
            await app.state.exposition.join(Path(directory), index, self._settings.models.processes)
        except OSError as error:  # such as a path too long for a socket
            logger.warning(
                "the socket for metrics cannot be created (%s), so /metrics reports only this process", error.strerror
            )
        serving = asyncio.Event()
        server = DrainingServer(app, self._settings, serving.set, ConnectionShare(self._status, index))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        with socket.socket(fileno=self._hello["listener"]) as listener:
            companions = [
                asyncio.create_task(self._announce(app, serving)),
                asyncio.create_task(self._handle_commands(app, serving)),
            ]
            try:
                await server.serve(sockets=[listener])
            finally:
                app.state.exposition.leave()
                for task in companions:
                    task.cancel()

    async def _announce(self, app: FastAPI, serving: asyncio.Event) -> None:
        await serving.wait()
        await self._channel.send("serving")
        await asyncio.to_thread(openapi_of, app)  # takes 0.3 s, so it is built before the first request for it

    async def _beat(self) -> None:
        while True:
            engine = self._app.state.engine if self._app is not None else None
            await self._channel.send("beat", stalled=engine.stalled_for() if engine is not None else 0.0)
            await asyncio.sleep(min(LONGEST_BEAT_SECONDS, self._settings.server.stall_seconds / 4))

    async def _handle_commands(self, app: FastAPI, serving: asyncio.Event) -> None:
        await serving.wait()
        preparing: set[asyncio.Task[None]] = set()
        while (message := await self._channel.receive()) is not None:
            engine = app.state.engine
            match message["kind"]:
                case "prepare" if engine is not None:
                    self._generation = message["generation"]
                    task = asyncio.create_task(self._prepare_next(engine, message["generation"], message["bundles"]))
                    preparing.add(task)
                    task.add_done_callback(preparing.discard)
                case "commit" if engine is not None:
                    engine.switch_when_due()
                case "abort" if engine is not None:
                    self._generation = None
                    engine.abandon()
        logger.error("the supervisor has exited, so this server process exits too")
        logging.shutdown()
        os._exit(1)

    async def _prepare_next(self, engine: Engine, generation: int, bundles: list[str]) -> None:
        """Load the bundles of the next generation while the current ones are served, and report the result to the
        supervisor."""
        settings = self._settings.replace(bundles=tuple(map(Path, bundles)))
        version, reason = None, None
        async with self._loading:  # loading cannot be cancelled, so an aborted reload may still be loading
            if self._generation != generation:
                return
            try:
                served = await run_in_background(lambda: engine.build(self._load(settings)))
            except Exception as error:
                logger.debug("the bundles were not reloaded", exc_info=True)
                reason = error_reason(error)
        if self._generation != generation:
            return
        if reason is None:
            version = served.models.version
            engine.stage(served, lambda: self._status.generation == generation)
        await self._channel.send("prepared", generation=generation, version=version, reason=reason)


def _label(facts: ModelInfo) -> str:
    """Return the name and the kind of a model for the log. For language models, the runtime is included."""
    return f"{facts.name} ({facts.kind}, {facts.runtime})" if facts.kind == "lm" else f"{facts.name} ({facts.kind})"


def _tune_garbage_collector() -> None:
    """Exclude the loaded objects from garbage collection, and enable it with high thresholds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()
