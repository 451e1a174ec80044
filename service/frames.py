"""Text frames that are passed between a connection and an application without waking a task.

ASGI wakes a task for each message, which is most of the cost of thousands of small frames per second. The HTTP server
of this package offers this interface as `scope["extensions"][FRAMES]`, and keeps the order of ASGI messages and frames.
Messages that may have to wait or be rejected use ASGI. With other servers, all messages use ASGI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

FRAMES: Final = "rfa.frames"
Take = Callable[[bytes], bool]


class Frames(Protocol):
    """Interface that a connection implements."""

    def listen(self, take: Take | None) -> None:
        """Pass frames that arrive while the application is waiting to `take`. If it returns False, the frames are
        passed through ASGI."""

    def send_now(self, frames: Sequence[bytes]) -> bool:
        """Send all text frames if this does not need to wait; otherwise, send none. Return whether they were sent."""
