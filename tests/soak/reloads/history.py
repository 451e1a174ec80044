"""The oracle: which versions a request could get, given when it began and ended and what others had got by then.

A version is in force from some moment between the signal and the word that it is; nobody outside sees the moment. But
once a reply of it is complete, no request that begins afterwards may be answered with the version before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# How long after a process was replaced a client may notice that its connection ended.
AFTERMATH_SECONDS = 2.0


@dataclass
class Reign:
    """A version in its turn.

    Attributes:
        since: nobody could get it before.
        until: nobody who begins later may get it; infinite while no later version has been seen.
    """

    version: str
    since: float
    until: float = math.inf


class History:
    """Versions in the order in which they came into force, and the times at which processes were harmed.

    Args:
        version: that is served at the start.
    """

    def __init__(self, version: str) -> None:
        self._reigns = [Reign(version, -math.inf)]
        self._coming: Reign | None = None
        self._mishaps: list[list[float]] = []

    @property
    def version(self) -> str:
        """In force for certain, outside of a round."""
        return self._reigns[-1].version

    # What the driver does.

    def begin(self, version: str | None, now: float) -> None:
        """A round that may bring this version; None may bring nothing."""
        self._coming = None if version is None else Reign(version, now)

    def commit(self, now: float) -> None:
        """The server says that the version of this round is in force."""
        assert self._coming is not None, "nothing good was offered"
        self._reigns[-1].until = min(self._reigns[-1].until, now)
        self._reigns.append(self._coming)
        self._coming = None

    def keep(self) -> bool:
        """The server says that the version before goes on: was nobody answered with the other one?"""
        was_kept = self._reigns[-1].until == math.inf
        self._coming = None
        return was_kept

    def harm(self, now: float) -> None:
        """A process is killed or stopped from now on."""
        self._mishaps.append([now, math.inf])

    def heal(self, now: float) -> None:
        """Every process serves again."""
        self._mishaps[-1][1] = now + AFTERMATH_SECONDS

    # What clients see.

    def may_lose(self, now: float) -> bool:
        """Whether a connection may end now without a word."""
        return any(begin <= now <= end for begin, end in self._mishaps)

    def see(self, version: str, began: float, ended: float) -> bool:
        """Take note of a reply: is its version one that it could get?"""
        reigns = [*self._reigns, *([self._coming] if self._coming else [])]
        possible = [
            number
            for number, reign in enumerate(reigns)
            if reign.version == version and reign.since <= ended and began <= reign.until
        ]
        if possible and possible[0] > 0:
            # Whichever it was, it was not one before the first of these.
            before = reigns[possible[0] - 1]
            before.until = min(before.until, ended)
        return bool(possible)
