"""Runs that are stopped and go on: signals wait for the step under way, and checkpoints are whole or not there.

A run directory holds `request.json`, what was asked for, and `progress.json`, how far it has come. The same request
goes on from there, and so does one for more steps; any other is refused.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm

REQUEST_FILE = "request.json"
PROGRESS_FILE = "progress.json"
# What is said of a run that has nothing left to do.
LEFT = "{} is finished: left as it is (--steps with a larger number goes on)"
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
            known = {number: signal.getsignal(number) for number in STOP_SIGNALS}
            self._earlier = {number: handler for number, handler in known.items() if handler != signal.SIG_IGN}
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


@contextmanager
def written_whole(directory: Path) -> Iterator[Path]:
    """A folder whose files take the place of those in `directory` once all are written."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".checkpoint-") as folder:
        yield Path(folder)
        for path in sorted(Path(folder).iterdir()):
            path.replace(directory / path.name)


def differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Names of the settings in which two requests differ."""
    return sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))


def check_request(out: Path, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a run goes beyond the steps that an earlier one in its directory asked for.

    Raises:
        ValueError: it differs in anything else, or has fewer.
    """
    names = differing(wanted, found)
    if not names:
        return False
    if names == ["steps"] and wanted["steps"] > found["steps"]:
        return True
    raise ValueError(f"{out} holds a run of another config (it differs in {', '.join(names)}); choose another --out")
