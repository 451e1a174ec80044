"""Interface for passing text frames between a WebSocket and an application without waking a task.

ASGI wakes a task for each message. With thousands of small frames per second, this is most of the cost. The HTTP server
of this package provides this interface as `scope["extensions"][FRAMES]`. The order of ASGI messages and frames is
kept. A message that must wait or is rejected is passed through ASGI. With other servers, all messages are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

FRAMES: Final = "rfa.frames"
Take = Callable[[bytes], bool]


class Frames(Protocol):
    """Interface with which a WebSocket connection passes text frames without waking a task. See the module
    docstring."""

    def listen(self, take: Take | None) -> None:
        """Register a function that is called with each text frame that arrives while the application is waiting. If it
        returns False, the frame is passed through ASGI. None removes the function."""

    def send_now(self, frames: Sequence[bytes]) -> bool:
        """Send all text frames if this is possible without waiting. Otherwise, send none. Return whether they were
        sent."""
