"""Supervisor, which starts and restarts the server processes, handles signals, and exits after the last process.

A process that exits is replaced after a pause. If it exits before it has served requests, the next pause is twice as
long. A process that hangs is killed and replaced. It hangs if its event loop sends no heartbeat for twice
`stall_seconds`, or if its engine has work and makes no progress for this time.

    SIGTERM, SIGINT   all processes drain; a second signal kills them
    SIGHUP            all processes reload the bundles, or none of them (`rfa.service.process.reloading`)

The server listens on the port when all processes have loaded and checked the bundles. The supervisor does not load
models or open bundles, so it needs little memory and does not hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rfa.service.compilation import log_compilation
from rfa.service.precompile import ensure_compiled, is_compiled
from rfa.service.process.address import Address, listen, refuse
from rfa.service.process.channel import ChannelError, error_reason
from rfa.service.process.health import HealthStatus, health_listener
from rfa.service.process.managed_child import Child, StartedProcess
from rfa.service.process.private_directory import private_directory
from rfa.service.process.reloading import BundlesRefused, BundleStore, CheckBundles, Reloader
from rfa.service.process.settings_json import write_settings
from rfa.service.process.shared_status import create_shared_status
from rfa.service.process.shutdown_limits import CLOSE_SECONDS
from rfa.service.process.snapshot import Snapshot
from rfa.service.settings import Settings

logger = logging.getLogger("rfa.supervisor")
# -P keeps modules in the working directory from being imported.
PROGRAM = (sys.executable, "-P", "-m", "rfa.service.process")
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
START_SECONDS = 60.0


class StartError(ValueError):
    """Raised if the server cannot start, because its settings or bundles are rejected, or its processes exit
    repeatedly."""


class Supervisor:
    """Starts, monitors and restarts the processes of one server.

    Args:
        settings: Settings of the server. The port is the actual one, and not 0.
        listener: Socket that is bound to the port.
        program: Command that starts a process. The file descriptor of its channel is appended.
        check: Function that checks bundles in a subprocess, before a server process loads them.
    """

    def __init__(
        self, settings: Settings, listener: socket.socket, program: Sequence[str], check: CheckBundles
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._program = program
        self._check = check
        self._address = Address(settings.server.host, settings.server.port)
        self._status = create_shared_status(settings.models.processes)
        self._children: dict[int, Child] = {}
        self._started: dict[int, StartedProcess] = {}  # processes that have not received their settings
        self._stopping = asyncio.Event()
        self._forced: signal.Signals | None = None
        self._is_killing = False
        self._models = ""
        self._opened = asyncio.Event()
        self._is_announced = False
        self._reloading: asyncio.Task[None] | None = None
        # Silence is counted in ticks of the supervisor. With times, all processes would appear to hang after the
        # supervisor was suspended.
        self._tick_seconds = min(1.0, settings.server.stall_seconds / 4)
        self._patience_ticks = 2 * settings.server.stall_seconds / self._tick_seconds

    async def run(self) -> int:
        """Run the server until it receives a stop signal.

        Returns:
            Exit code: 0 after draining, 128 plus the signal number if the processes were killed, and 1 if a process
            failed while draining.

        Raises:
            StartError: If the server cannot start.
            OSError: If no temporary directory or shared memory is available.
        """
        with private_directory() as directory:
            store = BundleStore(
                self._settings.models.bundles, directory, self._settings.models.max_bundle_bytes, self._check
            )
            reloader = Reloader(store, self._status, self._serving_children, self._retire_outdated)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop, number)
            loop.add_signal_handler(signal.SIGHUP, reloader.request)
            async with health_listener(self._settings, self._health_status, str(directory)):
                try:
                    codes = await self._keep_all(directory, reloader) if await self._begin(reloader) else []
                finally:
                    await asyncio.gather(*(started.kill() for started in self._started.values()))
        if self._forced is not None:
            return 128 + self._forced
        if all(codes):
            logger.info("shutdown complete: every process has exited")
        return 0 if all(codes) else 1

    def _health_status(self) -> HealthStatus:
        """Return the health of the server for probes."""
        processes, stall = self._children.values(), self._settings.server.stall_seconds
        return HealthStatus.from_processes(
            processes, tick=self._tick_seconds, stall=stall, is_stopping=self._stopping.is_set()
        )

    async def _begin(self, reloader: Reloader) -> bool:
        """Copy and check the first bundles, or return False if a stop signal arrives before this is complete."""
        beginning = asyncio.create_task(self._load_first(reloader))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((beginning, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not beginning.done():
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)
            return False
        try:
            await beginning
        except BundlesRefused as refusal:
            raise StartError(str(refusal)) from None
        return True

    async def _load_first(self, reloader: Reloader) -> None:
        if self._program != PROGRAM or is_compiled(self._settings):
            # The processes import their modules while the bundles are checked.
            for index in range(self._settings.models.processes):
                self._started[index] = await self._start_process(index)
        await reloader.begin()
        if self._program == PROGRAM:
            settings = self._settings.replace(bundles=reloader.current.bundles)
            await ensure_compiled(settings)

    async def _reload_once_open(self, reloader: Reloader) -> None:
        await self._opened.wait()
        await reloader.run()

    async def _keep_all(self, directory: Path, reloader: Reloader) -> list[bool]:
        """Run all processes until the server stops. For each index, return whether the last process with this index
        exited without a failure."""
        self._reloading = asyncio.create_task(self._reload_once_open(reloader))
        keepers = [
            asyncio.create_task(self._keep(i, directory, reloader)) for i in range(self._settings.models.processes)
        ]
        try:
            return await asyncio.gather(*keepers)
        except (StartError, ChannelError):
            self._stopping.set()
            self._kill_all()
            await asyncio.gather(*keepers, return_exceptions=True)
            raise
        finally:
            self._reloading.cancel()

    # Restarting processes.

    async def _keep(self, index: int, directory: Path, reloader: Reloader) -> bool:
        """Run the process of the given index, and restart it when it exits, until the server stops. Return whether the
        last process exited without a failure."""
        failures = restarts = 0
        while True:
            child = await self._start(index, restarts, directory, reloader.current)
            self._children[index] = child
            await self._attend(child, reloader)
            code = child.process.returncode
            if self._stopping.is_set():
                is_well = code == 0 or (code == -signal.SIGTERM and not child.has_served)
                if not is_well and not self._is_killing:
                    logger.error("%s while the server was stopping", child.describe_exit())
                return is_well
            if child.is_outdated:
                continue
            failures = 0 if child.has_served else failures + 1
            self._raise_if_hopeless(child, failures)
            pause = min(FIRST_PAUSE_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS)
            logger.error("%s; restarting in %.1f s", child.describe_exit(), pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return True
            restarts += 1

    async def _start(self, index: int, restarts: int, directory: Path, snapshot: Snapshot) -> Child:
        settings = self._settings.replace(bundles=snapshot.bundles)
        hello = {
            "restarts": restarts,
            "directory": str(directory),
            "listener": self._listener.fileno(),
            "board": self._status.descriptor,
            "settings": write_settings(settings),
        }
        started = self._started.pop(index, None) or await self._start_process(index)
        return await Child.start(started, index, snapshot, hello)

    async def _start_process(self, index: int) -> StartedProcess:
        descriptors = (self._listener.fileno(), self._status.descriptor)
        return await StartedProcess.start(self._program, descriptors, self._settings.models.gpu_of(index))

    async def _attend(self, child: Child, reloader: Reloader) -> None:
        """Read the messages of a process and monitor its heartbeat until it exits."""
        listening = asyncio.create_task(self._listen(child, reloader))
        watching = asyncio.create_task(self._watch(child))
        ending = asyncio.create_task(self._end_when_stopping(child))
        try:
            await child.process.wait()
            await asyncio.wait([listening], timeout=1.0)  # read its last messages
        finally:
            del self._children[child.index]
            for task in (listening, watching, ending):
                task.cancel()
            await asyncio.gather(listening, watching, ending, return_exceptions=True)
            child.close()

    def _raise_if_hopeless(self, child: Child, failures: int) -> None:
        if self._opened.is_set() and any(other.has_served for other in self._children.values()):
            return
        reason = child.failure or f"a server process exited with {child.exit_cause}"
        if child.is_refusal and not self._opened.is_set():
            raise StartError(reason)
        if failures >= ATTEMPTS:
            raise StartError(f"server processes exited repeatedly: {reason}")

    async def _listen(self, child: Child, reloader: Reloader) -> None:
        """Handle the messages of a process. A process that sends an invalid message is killed."""
        try:
            while (message := await child.channel.receive()) is not None:
                await self._on_message(child, message, reloader)
        except (ChannelError, KeyError, TypeError) as error:
            if not isinstance(error, ChannelError):
                error = ChannelError("a field is missing or has the wrong type")
            logger.error("%s sent an invalid message (%s), so it is killed", child.name, error)
            child.signal(signal.SIGKILL)
        except OSError as error:  # listening on the port failed, so no process can serve
            child.failure, child.is_refusal = error_reason(error), True
            child.signal(signal.SIGKILL)

    async def _on_message(self, child: Child, message: Mapping[str, Any], reloader: Reloader) -> None:
        child.heard = True
        match message["kind"]:
            case "beat":
                # With a stalled engine, the heartbeat is ignored, so that the process is killed.
                if message["stalled"] < 2 * self._settings.server.stall_seconds:
                    child.silent_ticks = 0
                child.stalled = message["stalled"]
            case "compiling":
                log_compilation()
            case "loaded":
                child.is_loaded = True
                await self._start_serving(child, str(message["models"]), message["version"], reloader)
            case "serving":
                child.has_served = True
                self._announce(reloader)
            case "failed":
                child.failure, child.is_refusal = str(message["reason"]), bool(message["refused"])
            case "prepared":
                child.answer(message["generation"], message["version"], message["reason"])
            case other:
                raise ChannelError(f"the server process sent an unknown message: {other[:20]!r}")

    async def _watch(self, child: Child) -> None:
        """Kill a process that sends no heartbeats."""
        while True:
            await asyncio.sleep(self._tick_seconds)
            child.silent_ticks += 1
            patience = self._patience_ticks if child.heard else START_SECONDS / self._tick_seconds
            if child.silent_ticks > patience:
                logger.error("%s does not respond, so it is killed", child.name)
                child.signal(signal.SIGKILL)
                return

    # Start and stop.

    async def _start_serving(self, child: Child, models: str, version: str, reloader: Reloader) -> None:
        """Handle the message that a process has loaded its bundles. When all processes have sent this message, start
        listening and send `serve` to all of them. Later, send `serve` to each restarted process."""
        if child.snapshot is not reloader.current:
            self._retire(child)
            return
        if version != child.snapshot.version:
            raise ChannelError(
                f"the process loaded version {version} of the bundles instead of {child.snapshot.version}"
            )
        self._models = models or "no bundles"
        if not self._opened.is_set():
            if sum(other.is_loaded for other in self._children.values()) < self._settings.models.processes:
                return
            listen(self._listener)
            self._opened.set()
        for other in list(self._children.values()):
            if other.is_loaded and not other.has_serve_command and not other.is_outdated:
                other.has_serve_command = True
                await other.send("serve")

    def _serving_children(self) -> list[Child]:
        """Return the processes to which `serve` was sent, in the order of their indices."""
        return [child for _, child in sorted(self._children.items()) if child.has_serve_command]

    def _retire_outdated(self) -> None:
        """Restart the processes that are still loading the previous bundles after a reload."""
        for child in self._children.values():
            if not child.has_serve_command:
                self._retire(child)

    def _retire(self, child: Child) -> None:
        logger.info("%s was loading bundles that a reload has replaced, so it is restarted", child.name)
        child.is_outdated = True
        child.signal(signal.SIGKILL)

    def _announce(self, reloader: Reloader) -> None:
        serving = sum(child.has_served for child in self._children.values())
        if serving == self._settings.models.processes and not self._is_announced:
            self._is_announced = True
            count = f"{serving} process{'es' if serving > 1 else ''}"
            logger.info(
                "serving %s, version %s, on %s with %s; / is the web page and /docs describes the API",
                *(self._models, reloader.current.version, self._address.url, count),
            )

    def _stop(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            self._forced = signal.Signals(number)
            logger.warning("received a second stop signal, %s: killing all processes", self._forced.name)
            self._kill_all()
        else:
            grace = self._settings.server.shutdown_grace_seconds
            name = signal.Signals(number).name
            logger.info(
                "received %s: completing running requests for up to %d s; send a second signal to kill the server",
                name,
                grace,
            )
        self._stopping.set()
        refuse(self._listener)
        if self._reloading is not None:
            self._reloading.cancel()

    async def _end_when_stopping(self, child: Child) -> None:
        """When the server stops, make the process drain. Kill the process if it does not exit in time."""
        await self._stopping.wait()
        child.signal(signal.SIGTERM)
        await asyncio.sleep(self._settings.server.shutdown_grace_seconds + CLOSE_SECONDS)
        logger.error("%s did not exit in time, so it is killed", child.name)
        child.signal(signal.SIGKILL)

    def _kill_all(self) -> None:
        self._is_killing = True
        for child in self._children.values():
            child.signal(signal.SIGKILL)
