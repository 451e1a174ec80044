"""A server process: `python -m rfa.service.process.child FD`, started by the supervisor that holds the other end of FD.

It loads the bundles, says so, takes connections once told to, and from then on sends beats from its event loop with the
age of the engine's last progress. SIGTERM drains it. It does not outlive its supervisor: a process that nobody watches
would go on taking connections of whoever listens on the port next.

Bundles are loaded anew in two steps. Told to prepare, it loads others beside those that serve. They are in force from
the moment at which the board says so, which every request looks at when it begins; the message to commit only sees to
it that a process without requests gives the old ones back.
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

from rfa.runtime.compiling import telling_of_compilation
from rfa.service.access.logs import configure_logging
from rfa.service.app import create_app
from rfa.service.child_environment import end_with_parent
from rfa.service.engine.engine import Engine
from rfa.service.engine.models import Models, load_models
from rfa.service.memory import room_for_requests
from rfa.service.openapi import openapi_of
from rfa.service.process.accepting import Shares
from rfa.service.process.aside import aside
from rfa.service.process.board import Board
from rfa.service.process.channel import Channel, reason_of
from rfa.service.process.draining import DrainingServer
from rfa.service.process.handover import read_settings
from rfa.service.process.open_files import allow_open_files
from rfa.service.schemas.replies import ModelInfo
from rfa.service.settings import Settings

logger = logging.getLogger("rfa.server")
Load = Callable[[Settings], Models]
# A worker thread hands the interpreter over after so long, so that the event loop never waits Python's usual 5 ms.
SWITCH_SECONDS = 0.0005
LONGEST_BEAT_SECONDS = 1.0
# The collector's full rounds walk through every object of every connection: with 1,800 streams they took 0.1 to 0.4 s,
# several times a second while more were opened. Its smallest rounds came with every batch, since 64 answers under way
# are 2,000 objects, and took a sixth of a busy process; those between took 90 ms at 120,000 objects, and have a third
# of them now. Too seldom is no better: with a fiftieth of the full rounds a process kept 230 bytes of every request.
COLLECT_AFTER = (10_000, 3, 30)
# Of all models together, in the line that tells what is served.
LONGEST_LABELS = 10_000


def main(load: Load = load_models) -> NoReturn:
    """Serve until told to stop.

    Args:
        load: opens the models; tests pass one that makes small hand-made models.
    """
    end_with_parent()  # elsewhere the end of the channel does it, as long as the event loop runs
    # A terminal sends these to every process of its group; what is to be done about them, the supervisor says.
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
    """What this process does, from the supervisor's first message to the exit code."""

    def __init__(self, channel: Channel, hello: dict[str, Any], load: Load) -> None:
        self._channel = channel
        self._hello = hello
        self._load = load
        self._settings = read_settings(hello["settings"])
        configure_logging(self._settings)
        allow_open_files(self._settings.max_connections)
        self._board = Board(hello["board"], self._settings.processes)
        self._app: FastAPI | None = None
        self._generation: int | None = None  # that is to be prepared, or is
        self._loading = asyncio.Lock()

    async def run(self) -> int:
        """Load, wait for the word, serve; the exit code."""
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
        """The application, its bundles loaded; None after the supervisor was told why there is none."""
        try:
            loaded: list[Models] = []
            app = create_app(self._settings, load=lambda given: loaded.pop() if loaded else self._load(given))
            models = await asyncio.to_thread(self._load_first, asyncio.get_running_loop())
            loaded.append(models)
            await asyncio.to_thread(openapi_of, app)  # takes 0.1 s: asked for later, live streams would wait for it
            # A refusal is heard of from here; not from the start of the application.
            room_for_requests(self._settings, kept_bytes=models.kept_bytes)
        except Exception as error:
            is_refusal = isinstance(error, (ValueError, OSError))  # written for the operator, with the reason
            if not is_refusal:
                logger.exception("loading failed")
            await self._channel.send("failed", reason=reason_of(error), refused=is_refusal)
            return None
        labels = ", ".join(map(_label, models.facts))
        await self._channel.send("loaded", models=labels[:LONGEST_LABELS], version=models.version)
        return app

    def _load_first(self, loop: asyncio.AbstractEventLoop) -> Models:
        """Load, and have it said where that takes long: nothing that comes later compiles."""

        def tell() -> None:
            asyncio.run_coroutine_threadsafe(self._channel.send("compiling"), loop)

        with telling_of_compilation(tell):
            return self._load(self._settings)

    async def _serve(self, app: FastAPI) -> None:
        _spare_the_collector()
        self._app = app
        index, directory = self._hello["index"], self._hello["directory"]
        app.state.metrics.engine = index
        app.state.metrics.process_restarts.inc(self._hello["restarts"])
        app.state.metrics.watch_reloads(self._board.reloads)
        try:
            await app.state.exposition.join(Path(directory), index, self._settings.processes)
        except OSError as error:  # such as a path too long for a socket
            logger.warning("no socket for the metrics of all processes (%s): /metrics tells of one", error.strerror)
        serving = asyncio.Event()
        server = DrainingServer(app, self._settings, serving.set, Shares(self._board, index))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        with socket.socket(fileno=self._hello["listener"]) as listener:
            companions = [asyncio.create_task(self._announce(serving)), asyncio.create_task(self._obey(app, serving))]
            try:
                await server.serve(sockets=[listener])
            finally:
                app.state.exposition.leave()
                for task in companions:
                    task.cancel()

    async def _announce(self, serving: asyncio.Event) -> None:
        await serving.wait()
        await self._channel.send("serving")

    async def _beat(self) -> None:
        while True:
            engine = self._app.state.engine if self._app is not None else None
            await self._channel.send("beat", stalled=engine.stalled_for() if engine is not None else 0.0)
            await asyncio.sleep(min(LONGEST_BEAT_SECONDS, self._settings.stall_seconds / 4))

    async def _obey(self, app: FastAPI, serving: asyncio.Event) -> None:
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
                    engine.settle()
                case "abort" if engine is not None:
                    self._generation = None
                    engine.abandon()
        logger.error("the supervisor is gone; this process ends")
        logging.shutdown()
        os._exit(1)

    async def _prepare_next(self, engine: Engine, generation: int, bundles: list[str]) -> None:
        """Load other bundles beside those that serve, and tell how that went."""
        settings = self._settings.model_copy(update={"bundles": tuple(map(Path, bundles))})
        version, reason = None, None
        async with self._loading:  # a load cannot be broken off; one that was given up may be under way still
            if self._generation != generation:
                return
            try:
                served = await aside(lambda: engine.build(self._load(settings)))
            except Exception as error:
                logger.debug("the bundles were not loaded anew", exc_info=True)
                reason = reason_of(error)
        if self._generation != generation:
            return
        if reason is None:
            version = served.models.version
            engine.stage(served, lambda: self._board.generation == generation)
        await self._channel.send("prepared", generation=generation, version=version, reason=reason)


def _label(facts: ModelInfo) -> str:
    """A model in the line that tells what is served; of texts also what computes them."""
    return f"{facts.name} ({facts.kind}, {facts.runtime})" if facts.kind == "lm" else f"{facts.name} ({facts.kind})"


def _spare_the_collector() -> None:
    """Leave what was loaded out of every round of the garbage collector, and have full rounds seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


if __name__ == "__main__":
    main()
