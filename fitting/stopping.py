"""Signals that stop a long fit or training: they wait for the step under way, so that what is done can be saved."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from tqdm import tqdm

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal ended the training after the step that it came in, which is saved.

    No Exception: what goes on after a failure must not go on after this.
    """

    def __init__(self, received: int, step: int, steps: int) -> None:
        super().__init__(received, step, steps)
        self.received, self.step, self.steps = signal.Signals(received), step, steps

    def __str__(self) -> str:
        return (
            f"{self.received.name}: stopped and saved at step {self.step} of {self.steps}; "
            "the same command goes on from there"
        )

    @property
    def exit_code(self) -> int:
        """As shells have it."""
        return 128 + self.received


class StopSignals:
    """The first stop signal that came within `with`, where it does nothing else; later ones do nothing at all.

    Signals belong to the main thread: in others this sees none. One that is ignored (`nohup`) stays so.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
            self._earlier = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}
        for number in self._earlier:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def check(self, step: int, steps: int, save: Callable[[], None]) -> None:
        """Save and leave, if a signal has come and there are steps left.

        Raises:
            Stopped
        """
        if self.received is not None and step < steps:
            save()
            raise Stopped(self.received, step, steps)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            tqdm.write("stopping after this step", file=sys.stderr)
