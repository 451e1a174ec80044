"""Handle stop signals during a long fit or training. A signal takes effect after the current step, so that the step can
be saved.
"""

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
    """Raised after a step when a stop signal has arrived. The result of the step is saved.

    It is not a subclass of Exception, so that handlers for failures do not catch it.
    """

    def __init__(self, received: int, step: int, steps: int) -> None:
        super().__init__(received, step, steps)
        self.received, self.step, self.steps = signal.Signals(received), step, steps

    def __str__(self) -> str:
        return (
            f"received {self.received.name}: stopped and saved at step {self.step} of {self.steps}; run the same "
            "command to continue"
        )

    @property
    def exit_code(self) -> int:
        """Exit code of the process: 128 plus the signal number, as in Unix shells."""
        return 128 + self.received


class StopSignals:
    """Context manager that records the first stop signal. Later signals have no effect.

    Signals are only recorded in the main thread. Signals that the process ignores, such as those under `nohup`, remain
    ignored.
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
        """Save the current step and raise an exception if a signal has arrived and steps remain.

        Args:
            step: Number of completed steps.
            steps: Total number of steps.
            save: Function that saves the current step.

        Raises:
            Stopped: If a signal has arrived and steps remain.
        """
        if self.received is not None and step < steps:
            save()
            raise Stopped(self.received, step, steps)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            tqdm.write("stopping after the current step", file=sys.stderr)
