"""Text frames between a connection and an application without a task in between.

ASGI wakes a task for each message, which is most of the cost of thousands of small frames per second. This HTTP server
offers this interface in `scope["extensions"][FRAMES]`, in order with ASGI. Messages that may have to wait or be
rejected use ASGI. With other servers all messages use ASGI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

FRAMES: Final = "rfa.frames"
Take = Callable[[bytes], bool]


class Frames(Protocol):
    """Implemented by a connection."""

    def listen(self, take: Take | None) -> None:
        """Pass frames that arrive while the application waits to `take`. Rejected ones go through ASGI."""

    def send_now(self, frames: Sequence[bytes]) -> bool:
        """Send all text frames if that needs no waiting, else none. Return whether they were sent."""
