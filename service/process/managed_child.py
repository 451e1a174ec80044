"""Objects with which the supervisor starts server processes and communicates with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rfa.service.child_environment import child_environment
from rfa.service.process.channel import Channel, ChannelError
from rfa.service.process.reloading import ProcessLost
from rfa.service.process.snapshot import Snapshot


@dataclass(frozen=True)
class StartedProcess:
    """A process that has imported its modules and is waiting for its settings."""

    process: asyncio.subprocess.Process
    channel: Channel

    @classmethod
    async def start(
        cls, program: Sequence[str], descriptors: Sequence[int] = (), gpu: int | None = None
    ) -> StartedProcess:
        """Start a process, and return an object that represents it.

        Args:
            program: Command of the process. The file descriptor of its channel is appended.
            descriptors: File descriptors that the process inherits, with the same numbers.
            gpu: Index of the only GPU that is visible to the process. None if it sees all GPUs.
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
        return cls(process, await Channel.open(ours))

    async def kill(self) -> None:
        """Kill the process."""
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class Child:
    """A server process that has received its settings, from the point of view of the supervisor.

    Attributes:
        snapshot: Bundles that the process serves or is loading.
        prepared: Bundles that the process has loaded for the current reload.
        is_loaded: Whether the process has loaded its bundles.
        has_serve_command: Whether the supervisor has sent the message `serve`.
        has_served: Whether the process has started to serve requests.
        is_outdated: Whether its bundles were replaced while it was loading them. Such a process is restarted.
        failure: Reason why loading failed.
        is_refusal: Whether loading failed because of invalid settings or bundles, so that a restart would not help.
        heard: Whether the process has sent a message.
        silent_ticks: Number of checks of the supervisor since the last heartbeat.
        stalled: Seconds since the engine of the process last made progress.
    """

    def __init__(self, index: int, process: asyncio.subprocess.Process, channel: Channel, snapshot: Snapshot) -> None:
        self.index = index
        self.process = process
        self.channel = channel
        self.snapshot = snapshot
        self.prepared: Snapshot | None = None
        self.is_loaded = False
        self.has_serve_command = False
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
    async def start(cls, started: StartedProcess, index: int, snapshot: Snapshot, hello: Mapping[str, Any]) -> Child:
        """Send the settings to a process that has started, and return an object that represents the process.

        Args:
            index: Index of the process.
            snapshot: Bundles that the process loads.
            hello: Other fields of the message.

        Raises:
            ChannelError: If the settings are too long for a message.
        """
        child = cls(index, started.process, started.channel, snapshot)
        try:
            await child.channel.send("hello", index=index, **hello)
        except ChannelError:
            child.signal(signal.SIGKILL)
            raise
        return child

    @property
    def name(self) -> str:
        """Name of the process in the log."""
        return f"server process {self.index} (pid {self.process.pid})"

    @property
    def has_ended(self) -> bool:
        """Whether the process has exited."""
        return self.process.returncode is not None

    async def prepare(self, snapshot: Snapshot) -> str | None:
        """Make the process load other bundles while it serves the current ones. Return None if this succeeds, and
        otherwise the reason.

        Raises:
            ProcessLost: If the process exits before it replies.
        """
        self._asked, self._answer = snapshot, asyncio.get_running_loop().create_future()
        bundles = [str(path) for path in snapshot.bundles]
        await self.channel.send("prepare", generation=snapshot.generation, bundles=bundles)
        return await self._answer

    def answer(self, generation: int, version: str | None, reason: str | None) -> None:
        """Handle the reply of the process to `prepare`. Replies for a reload that was aborted are ignored."""
        if self._asked is None or self._answer is None or self._answer.done() or generation != self._asked.generation:
            return
        if reason is None and version != self._asked.version:
            reason = f"the process loaded version {version} of the bundles instead of {self._asked.version}"
        self._answer.set_result(reason)

    def close(self) -> None:
        """Close the channel of a process that has exited. A pending call of `prepare` raises ProcessLost."""
        self.channel.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ProcessLost(f"{self.name} exited"))

    async def send(self, kind: str) -> None:
        """Send a message without fields."""
        await self.channel.send(kind)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has exited."""
        if self.process.returncode is not None:
            return
        # `Process.send_signal` polls the process first. If the process has exited, the event loop then reports the exit
        # code 255.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    @property
    def exit_cause(self) -> str:
        """Name of the signal that ended the process, or its exit code."""
        code = self.process.returncode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def describe_exit(self) -> str:
        """Describe the exit of the process for the log."""
        reason = f" ({self.failure})" if self.failure else ""
        return f"{self.name} exited with {self.exit_cause}{reason}"
