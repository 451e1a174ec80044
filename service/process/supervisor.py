"""Starts the server processes, keeps them alive, passes signals on, and ends when they have ended.

A process that dies is replaced, after a pause that doubles while none comes to serve. One that is wedged is killed and
replaced: its event loop sends no beat, or its engine has work and made no progress, for twice `stall_seconds`.

    SIGTERM, SIGINT   every process drains; a second one kills them
    SIGHUP            the processes load their bundles anew, one after another

Nothing listens before every process has loaded its bundles and found them right. The supervisor itself loads no model
and opens no bundle, so that it stays small and nothing in it can hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from service.process.address import Address
from service.process.channel import Channel
from service.process.handover import write_settings
from service.process.health import Vitals, health_listener
from service.process.patience import CLOSE_SECONDS
from service.settings import Settings

logger = logging.getLogger("rfa.supervisor")
ROOT = Path(__file__).resolve().parents[2]
# -P: the folder that the server happens to be started in must not provide modules.
PROGRAM = (sys.executable, "-P", "-m", "service.process.child")
# One thread per process for what numpy and the tokenizers call: more would fight over the cores of the others.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
START_SECONDS = 60.0


class StartError(ValueError):
    """The server cannot start: a process refused its settings or bundles, or died again and again."""


class Child:
    """A server process, as its supervisor sees it."""

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.process = process
        self.channel = channel
        self.is_loaded = False
        self.has_served = False
        self.failure: str | None = None
        self.is_refusal = False
        self.heard = False
        self.silent_ticks = 0
        self.stalled = 0.0
        self.reloaded: asyncio.Future[str | None] | None = None

    @classmethod
    async def start(cls, program: Sequence[str], hello: Mapping[str, Any]) -> Child:
        """Start a process and tell it what it is to be."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *program,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env=_environment(),
            )
        channel = await Channel.open(ours)
        await channel.send("hello", **hello)
        return cls(process, channel)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that is gone has no need of it."""
        if self.process.returncode is not None:
            return
        # The process's own `send_signal` looks first whether it has ended, and takes the exit code of one that has just
        # done so away from the event loop, which then makes it 255.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)


class Supervisor:
    """The processes of one server.

    Args:
        settings: with the real port.
        program: command that starts a process; the number of its end of the channel is put at the end.
    """

    def __init__(self, settings: Settings, program: Sequence[str] = PROGRAM) -> None:
        self._settings = settings
        self._program = program
        self._address = Address(settings.host, settings.port)
        self._children: dict[int, Child] = {}
        self._stopping = asyncio.Event()
        self._forced: signal.Signals | None = None
        self._is_killing = False
        self._models = ""
        self._is_open = False
        self._is_announced = False
        self._is_reloading = False
        self._tasks: set[asyncio.Task[None]] = set()
        # Twice the stall time, counted in ticks: a supervisor that was itself stopped must not blame its processes.
        self._tick_seconds = min(1.0, settings.stall_seconds / 4)
        self._patience_ticks = 2 * settings.stall_seconds / self._tick_seconds

    async def run(self) -> int:
        """Serve until a signal.

        Returns:
            the exit code: 0 after an orderly end, 128 + signal after a forced one, 1 if a process ended badly.

        Raises:
            StartError
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._start_reload)
        with _private_directory() as directory:
            async with health_listener(self._settings, self._vitals, directory):
                keepers = [asyncio.create_task(self._keep(i, directory)) for i in range(self._settings.processes)]
                try:
                    codes = await asyncio.gather(*keepers)
                except StartError:
                    self._stopping.set()
                    self._kill_all()
                    await asyncio.gather(*keepers, return_exceptions=True)
                    raise
        if self._forced is not None:
            return 128 + self._forced
        return 0 if all(codes) else 1

    def _vitals(self) -> Vitals:
        """What probes ask for."""
        processes, stall = self._children.values(), self._settings.stall_seconds
        return Vitals.of(processes, tick=self._tick_seconds, stall=stall, is_stopping=self._stopping.is_set())

    # Keeping processes alive.

    async def _keep(self, index: int, directory: str | None) -> bool:
        """Run the process of one place, and another after it, until the server stops: did the last one end well?"""
        failures = restarts = 0
        while True:
            hello = {"index": index, "restarts": restarts, "directory": directory}
            child = await Child.start(self._program, {**hello, "settings": write_settings(self._settings)})
            self._children[index] = child
            await self._attend(index, child)
            code = child.process.returncode
            if self._stopping.is_set():
                is_well = code == 0 or (code == -signal.SIGTERM and not child.has_served)
                if not is_well and not self._is_killing:
                    logger.error("%s while the server was stopping", _obituary(index, child))
                return is_well
            failures = 0 if child.has_served else failures + 1
            self._give_up_if_hopeless(child, failures)
            pause = min(FIRST_PAUSE_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS)
            logger.error("%s; another one starts in %.1f s", _obituary(index, child), pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return True
            restarts += 1

    async def _attend(self, index: int, child: Child) -> None:
        """Listen to a process and watch it until it is gone."""
        listening = asyncio.create_task(self._listen(child))
        watching = asyncio.create_task(self._watch(index, child))
        ending = asyncio.create_task(self._end_when_stopping(index, child))
        try:
            await child.process.wait()
            await asyncio.wait([listening], timeout=1.0)  # to the end of what it said
        finally:
            del self._children[index]
            for task in (listening, watching, ending):
                task.cancel()
            await asyncio.gather(listening, watching, ending, return_exceptions=True)
            child.channel.close()
            if child.reloaded is not None and not child.reloaded.done():
                child.reloaded.set_result("the process ended")

    def _give_up_if_hopeless(self, child: Child, failures: int) -> None:
        if self._is_open and any(other.has_served for other in self._children.values()):
            return
        reason = child.failure or f"a server process ended with {_cause(child)}"
        if child.is_refusal and not self._is_open:
            raise StartError(reason)
        if failures >= ATTEMPTS:
            raise StartError(f"no server process stays up: {reason}")

    async def _listen(self, child: Child) -> None:
        while (message := await child.channel.receive()) is not None:
            child.heard = True
            match message["kind"]:
                case "beat":
                    child.stalled = message["stalled"]
                    # Progress is counted here too, so that one number tells how long there has been no sign of life.
                    if message["stalled"] < 2 * self._settings.stall_seconds:
                        child.silent_ticks = 0
                case "loaded":
                    child.is_loaded = True
                    await self._open(child, message["models"])
                case "serving":
                    child.has_served = True
                    self._announce()
                case "failed":
                    child.failure, child.is_refusal = message["reason"], message["refused"]
                case "reloaded" if child.reloaded is not None:
                    child.reloaded.set_result(message["reason"])

    async def _watch(self, index: int, child: Child) -> None:
        """Kill a process that shows no sign of life."""
        while True:
            await asyncio.sleep(self._tick_seconds)
            child.silent_ticks += 1
            patience = self._patience_ticks if child.heard else START_SECONDS / self._tick_seconds
            if child.silent_ticks > patience:
                logger.error("server process %d (pid %d) is wedged and is killed", index, child.process.pid)
                child.signal(signal.SIGKILL)
                return

    # Opening and closing.

    async def _open(self, child: Child, models: list[str]) -> None:
        """Let processes listen: all at once when the last has loaded, later ones when they have."""
        if self._is_open:
            await child.channel.send("serve")
        elif len(self._children) == self._settings.processes and all(
            other.is_loaded for other in self._children.values()
        ):
            self._is_open = True
            self._models = ", ".join(models) or "no bundles"
            for other in list(self._children.values()):
                await other.channel.send("serve")

    def _announce(self) -> None:
        serving = sum(child.has_served for child in self._children.values())
        if serving == self._settings.processes and not self._is_announced:
            self._is_announced = True
            count = f"{serving} process{'es' if serving > 1 else ''}"
            logger.info("serving %s on %s with %s; try / and /docs there", self._models, self._address.url, count)

    def _stop(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            self._forced = signal.Signals(number)
            self._kill_all()
        self._stopping.set()

    async def _end_when_stopping(self, index: int, child: Child) -> None:
        """Let a process drain; kill it when it takes longer than it was given."""
        await self._stopping.wait()
        child.signal(signal.SIGTERM)
        await asyncio.sleep(self._settings.shutdown_grace_seconds + CLOSE_SECONDS)
        logger.error("server process %d (pid %d) did not end in time and is killed", index, child.process.pid)
        child.signal(signal.SIGKILL)

    def _kill_all(self) -> None:
        self._is_killing = True
        for child in self._children.values():
            child.signal(signal.SIGKILL)

    # Loading bundles anew.

    def _start_reload(self) -> None:
        if self._is_reloading:
            logger.info("the bundles are being loaded anew already")
            return
        self._is_reloading = True
        task = asyncio.create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        """One process after another, so that most of them are never busy with it; the first refusal ends the round."""
        try:
            for index, child in sorted(self._children.items()):
                if not child.has_served:
                    continue
                child.reloaded = asyncio.get_running_loop().create_future()
                await child.channel.send("reload")
                reason = await child.reloaded
                if reason is not None:
                    logger.error("server process %d keeps its bundles: %s", index, reason)
                    return
                logger.info("server process %d serves its bundles as they are now", index)
        finally:
            self._is_reloading = False


@contextlib.contextmanager
def _private_directory() -> Iterator[str | None]:
    """A directory for the sockets between processes; None where there is no place for one."""
    try:
        directory = tempfile.TemporaryDirectory(prefix="rfa-", ignore_cleanup_errors=True)
    except OSError as error:
        logger.warning("no directory for temporary files (%s): /metrics tells of one process at a time", error.strerror)
        yield None
        return
    with directory as path:
        yield path


def _environment() -> dict[str, str]:
    modules = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, modules))}


def _cause(child: Child) -> str:
    code = child.process.returncode or 0
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _obituary(index: int, child: Child) -> str:
    reason = f" ({child.failure})" if child.failure else ""
    return f"server process {index} (pid {child.process.pid}) ended with {_cause(child)}{reason}"
