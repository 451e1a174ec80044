"""Starts the server processes, keeps them alive, passes signals on, and ends when they have ended.

A process that dies is replaced, after a pause that doubles while none comes to serve. One that is wedged is killed and
replaced: its event loop sends no beat, or its engine has work and made no progress, for twice `stall_seconds`.

    SIGTERM, SIGINT   every process drains; a second one kills them
    SIGHUP            the processes load the bundles anew, all of them or none (`rfa.service.process.reloading`)

Nobody listens before every process has loaded the bundles and found them right. The supervisor itself loads no model
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rfa.service.child_environment import child_environment
from rfa.service.compilation import log_compilation
from rfa.service.process.address import Address, listen, refuse
from rfa.service.process.board import make_board
from rfa.service.process.channel import Channel, ChannelError, reason_of
from rfa.service.process.handover import write_settings
from rfa.service.process.health import Vitals, health_listener
from rfa.service.process.patience import CLOSE_SECONDS
from rfa.service.process.private import private_directory
from rfa.service.process.reloading import Lost, Refused, Reloader, Shelf, Vet
from rfa.service.process.snapshot import Snapshot
from rfa.service.settings import Settings

logger = logging.getLogger("rfa.supervisor")
# -P: the folder that the server happens to be started in must not provide modules.
PROGRAM = (sys.executable, "-P", "-m", "rfa.service.process.child")
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
START_SECONDS = 60.0


class StartError(ValueError):
    """The server cannot start: a process refused its settings or bundles, or died again and again."""


class Child:
    """A server process, as its supervisor sees it.

    Attributes:
        snapshot: the bundles that it serves, or loads in order to.
        prepared: those that it has loaded beside them.
        is_admitted: it was told to serve.
        is_outdated: what it was loading is no longer in force, so that it will never serve.
    """

    def __init__(self, index: int, process: asyncio.subprocess.Process, channel: Channel, snapshot: Snapshot) -> None:
        self.index = index
        self.process = process
        self.channel = channel
        self.snapshot = snapshot
        self.prepared: Snapshot | None = None
        self.is_loaded = False
        self.is_admitted = False
        self.is_outdated = False
        self.has_served = False
        self.failure: str | None = None
        self.is_refusal = False
        self.heard = False
        self.silent_ticks = 0
        self.stalled = 0.0
        self._answer: asyncio.Future[str | None] | None = None
        self._asked: Snapshot | None = None

    @classmethod
    async def start(
        cls,
        program: Sequence[str],
        index: int,
        snapshot: Snapshot,
        hello: Mapping[str, Any],
        descriptors: Sequence[int] = (),
        gpu: int | None = None,
    ) -> Child:
        """Start a process and tell it what it is to be.

        Args:
            descriptors: that it has as well, under the same numbers.
            gpu: the only one that it sees.

        Raises:
            ChannelError: there is too much to tell.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *program,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno(), *descriptors],
                stdin=asyncio.subprocess.DEVNULL,
                env=child_environment(os.environ, gpu),
            )
        child = cls(index, process, await Channel.open(ours), snapshot)
        try:
            await child.channel.send("hello", index=index, **hello)
        except ChannelError:
            child.signal(signal.SIGKILL)
            raise
        return child

    @property
    def name(self) -> str:
        """For the log."""
        return f"server process {self.index} (pid {self.process.pid})"

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self.process.returncode is not None

    async def prepare(self, snapshot: Snapshot) -> str | None:
        """Have it load these bundles beside what it serves; why it does not, if so.

        Raises:
            Lost: it ended.
        """
        self._asked, self._answer = snapshot, asyncio.get_running_loop().create_future()
        bundles = [str(path) for path in snapshot.bundles]
        await self.channel.send("prepare", generation=snapshot.generation, bundles=bundles)
        return await self._answer

    def answer(self, generation: int, version: str | None, reason: str | None) -> None:
        """Take what it says to have prepared; an answer to a round that was given up means nothing."""
        if self._asked is None or self._answer is None or self._answer.done() or generation != self._asked.generation:
            return
        if reason is None and version != self._asked.version:
            reason = f"it loaded version {version} instead"
        self._answer.set_result(reason)

    def bury(self) -> None:
        """It has ended: nobody waits for it any longer."""
        self.channel.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost(f"{self.name} ended"))

    async def tell(self, kind: str) -> None:
        """Send a message without fields."""
        await self.channel.send(kind)

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
        listener: bound to it.
        program: command that starts a process; the number of its end of the channel is put at the end.
        vet: tries bundles out before any process loads them.
    """

    def __init__(self, settings: Settings, listener: socket.socket, program: Sequence[str], vet: Vet) -> None:
        self._settings = settings
        self._listener = listener
        self._program = program
        self._vet = vet
        self._address = Address(settings.host, settings.port)
        self._board = make_board(settings.processes)
        self._children: dict[int, Child] = {}
        self._stopping = asyncio.Event()
        self._forced: signal.Signals | None = None
        self._is_killing = False
        self._models = ""
        self._opened = asyncio.Event()
        self._is_announced = False
        self._reloading: asyncio.Task[None] | None = None
        # Twice the stall time, counted in ticks: a supervisor that was itself stopped must not blame its processes.
        self._tick_seconds = min(1.0, settings.stall_seconds / 4)
        self._patience_ticks = 2 * settings.stall_seconds / self._tick_seconds

    async def run(self) -> int:
        """Serve until a signal.

        Returns:
            the exit code: 0 after an orderly end, 128 + signal after a forced one, 1 if a process ended badly.

        Raises:
            StartError
            OSError: there is no place for what the processes share.
        """
        with private_directory() as directory:
            shelf = Shelf(self._settings.bundles, directory, self._settings.max_bundle_bytes, self._vet)
            reloader = Reloader(shelf, self._board, self._admitted, self._retire_outdated)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop, number)
            loop.add_signal_handler(signal.SIGHUP, reloader.request)
            async with health_listener(self._settings, self._vitals, str(directory)):
                codes = await self._keep_all(directory, reloader) if await self._begin(reloader) else []
        if self._forced is not None:
            return 128 + self._forced
        if all(codes):
            logger.info("drained; every process has ended")
        return 0 if all(codes) else 1

    def _vitals(self) -> Vitals:
        """What probes ask for."""
        processes, stall = self._children.values(), self._settings.stall_seconds
        return Vitals.of(processes, tick=self._tick_seconds, stall=stall, is_stopping=self._stopping.is_set())

    async def _begin(self, reloader: Reloader) -> bool:
        """Take the first bundles, unless the server is told to stop first."""
        beginning = asyncio.create_task(reloader.begin())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((beginning, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not beginning.done():
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)
            return False
        try:
            await beginning
        except Refused as refusal:
            raise StartError(str(refusal)) from None
        return True

    async def _reload_once_open(self, reloader: Reloader) -> None:
        await self._opened.wait()
        await reloader.run()

    async def _keep_all(self, directory: Path, reloader: Reloader) -> list[bool]:
        """Run the processes of all places until the server stops: which of the last ones ended well?"""
        self._reloading = asyncio.create_task(self._reload_once_open(reloader))
        keepers = [asyncio.create_task(self._keep(i, directory, reloader)) for i in range(self._settings.processes)]
        try:
            return await asyncio.gather(*keepers)
        except (StartError, ChannelError):
            self._stopping.set()
            self._kill_all()
            await asyncio.gather(*keepers, return_exceptions=True)
            raise
        finally:
            self._reloading.cancel()

    # Keeping processes alive.

    async def _keep(self, index: int, directory: Path, reloader: Reloader) -> bool:
        """Run the process of one place, and another after it, until the server stops: did the last one end well?"""
        failures = restarts = 0
        while True:
            child = await self._start(index, restarts, directory, reloader.current)
            self._children[index] = child
            await self._attend(child, reloader)
            code = child.process.returncode
            if self._stopping.is_set():
                is_well = code == 0 or (code == -signal.SIGTERM and not child.has_served)
                if not is_well and not self._is_killing:
                    logger.error("%s while the server was stopping", _obituary(child))
                return is_well
            if child.is_outdated:
                continue
            failures = 0 if child.has_served else failures + 1
            self._give_up_if_hopeless(child, failures)
            pause = min(FIRST_PAUSE_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS)
            logger.error("%s; another one starts in %.1f s", _obituary(child), pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return True
            restarts += 1

    async def _start(self, index: int, restarts: int, directory: Path, snapshot: Snapshot) -> Child:
        settings = self._settings.model_copy(update={"bundles": snapshot.bundles})
        hello = {
            "restarts": restarts,
            "directory": str(directory),
            "listener": self._listener.fileno(),
            "board": self._board.descriptor,
            "settings": write_settings(settings),
        }
        descriptors = (self._listener.fileno(), self._board.descriptor)
        return await Child.start(self._program, index, snapshot, hello, descriptors, settings.gpu_of(index))

    async def _attend(self, child: Child, reloader: Reloader) -> None:
        """Listen to a process and watch it until it is gone."""
        listening = asyncio.create_task(self._listen(child, reloader))
        watching = asyncio.create_task(self._watch(child))
        ending = asyncio.create_task(self._end_when_stopping(child))
        try:
            await child.process.wait()
            await asyncio.wait([listening], timeout=1.0)  # to the end of what it said
        finally:
            del self._children[child.index]
            for task in (listening, watching, ending):
                task.cancel()
            await asyncio.gather(listening, watching, ending, return_exceptions=True)
            child.bury()

    def _give_up_if_hopeless(self, child: Child, failures: int) -> None:
        if self._opened.is_set() and any(other.has_served for other in self._children.values()):
            return
        reason = child.failure or f"a server process ended with {_cause(child)}"
        if child.is_refusal and not self._opened.is_set():
            raise StartError(reason)
        if failures >= ATTEMPTS:
            raise StartError(f"no server process stays up: {reason}")

    async def _listen(self, child: Child, reloader: Reloader) -> None:
        """Hear a process out; one that says what is no message is taken for broken."""
        try:
            while (message := await child.channel.receive()) is not None:
                await self._hear(child, message, reloader)
        except (ChannelError, KeyError, TypeError) as error:
            if not isinstance(error, ChannelError):
                error = ChannelError("a message lacks a field, or has another one in its place")
            logger.error("%s does not talk as it should and is killed: %s", child.name, error)
            child.signal(signal.SIGKILL)
        except OSError as error:  # the port cannot be listened on, which is the end of all of them
            child.failure, child.is_refusal = reason_of(error), True
            child.signal(signal.SIGKILL)

    async def _hear(self, child: Child, message: Mapping[str, Any], reloader: Reloader) -> None:
        child.heard = True
        match message["kind"]:
            case "beat":
                # Progress is counted here too, so that one number tells how long there has been no sign of life.
                if message["stalled"] < 2 * self._settings.stall_seconds:
                    child.silent_ticks = 0
                child.stalled = message["stalled"]
            case "compiling":
                log_compilation()
            case "loaded":
                child.is_loaded = True
                await self._admit(child, str(message["models"]), message["version"], reloader)
            case "serving":
                child.has_served = True
                self._announce(reloader)
            case "failed":
                child.failure, child.is_refusal = str(message["reason"]), bool(message["refused"])
            case "prepared":
                child.answer(message["generation"], message["version"], message["reason"])
            case other:
                raise ChannelError(f"there is no message {other[:20]!r}")

    async def _watch(self, child: Child) -> None:
        """Kill a process that shows no sign of life."""
        while True:
            await asyncio.sleep(self._tick_seconds)
            child.silent_ticks += 1
            patience = self._patience_ticks if child.heard else START_SECONDS / self._tick_seconds
            if child.silent_ticks > patience:
                logger.error("%s is wedged and is killed", child.name)
                child.signal(signal.SIGKILL)
                return

    # Opening and closing.

    async def _admit(self, child: Child, models: str, version: str, reloader: Reloader) -> None:
        """Let processes serve: all at once when the last has loaded, later ones when they have."""
        if child.snapshot is not reloader.current:
            self._retire(child)
            return
        if version != child.snapshot.version:
            raise ChannelError(f"it loaded version {version} of the bundles instead of {child.snapshot.version}")
        self._models = models or "no bundles"
        if not self._opened.is_set():
            if sum(other.is_loaded for other in self._children.values()) < self._settings.processes:
                return
            listen(self._listener)
            self._opened.set()
        for other in list(self._children.values()):
            if other.is_loaded and not other.is_admitted and not other.is_outdated:
                other.is_admitted = True
                await other.tell("serve")

    def _admitted(self) -> list[Child]:
        """Those that serve, or were told to."""
        return [child for _, child in sorted(self._children.items()) if child.is_admitted]

    def _retire_outdated(self) -> None:
        """Other bundles are in force: what is still loading those before has to begin anew."""
        for child in self._children.values():
            if not child.is_admitted:
                self._retire(child)

    def _retire(self, child: Child) -> None:
        logger.info("%s was loading bundles that are replaced; another one starts", child.name)
        child.is_outdated = True
        child.signal(signal.SIGKILL)

    def _announce(self, reloader: Reloader) -> None:
        serving = sum(child.has_served for child in self._children.values())
        if serving == self._settings.processes and not self._is_announced:
            self._is_announced = True
            count = f"{serving} process{'es' if serving > 1 else ''}"
            logger.info(
                "serving %s, version %s, on %s with %s; try / and /docs there",
                *(self._models, reloader.current.version, self._address.url, count),
            )

    def _stop(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            self._forced = signal.Signals(number)
            logger.warning("%s again: killing all processes", self._forced.name)
            self._kill_all()
        else:
            grace = self._settings.shutdown_grace_seconds
            name = signal.Signals(number).name
            logger.info("%s: draining; requests under way have %d s; a second signal kills", name, grace)
        self._stopping.set()
        refuse(self._listener)
        if self._reloading is not None:
            self._reloading.cancel()

    async def _end_when_stopping(self, child: Child) -> None:
        """Let a process drain; kill it when it takes longer than it was given."""
        await self._stopping.wait()
        child.signal(signal.SIGTERM)
        await asyncio.sleep(self._settings.shutdown_grace_seconds + CLOSE_SECONDS)
        logger.error("%s did not end in time and is killed", child.name)
        child.signal(signal.SIGKILL)

    def _kill_all(self) -> None:
        self._is_killing = True
        for child in self._children.values():
            child.signal(signal.SIGKILL)


def _cause(child: Child) -> str:
    code = child.process.returncode or 0
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _obituary(child: Child) -> str:
    reason = f" ({child.failure})" if child.failure else ""
    return f"{child.name} ended with {_cause(child)}{reason}"
