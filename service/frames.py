"""The short way between a connection and an application: text frames without a task in between.

ASGI wakes a task for each message; of thousands of small frames a second that is most of the cost. A server of this
project offers the short way in `scope["extensions"][FRAMES]`, beside ASGI and in order with it: whatever may have to
wait, or to be refused, goes by ASGI. Other servers do not offer it, and all goes by ASGI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

FRAMES: Final = "rfa.frames"
Take = Callable[[bytes], bool]


class Frames(Protocol):
    """What a connection offers."""

    def listen(self, take: Take | None) -> None:
        """Offer frames that come while the application waits for one to `take`; those that it declines go by ASGI."""

    def send_now(self, frames: Sequence[bytes]) -> bool:
        """Send text frames if the client takes them without waiting; whether they were sent, all of them or none."""
