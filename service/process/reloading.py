"""Bundles loaded anew by all processes of a server or by none.

    take       copy the bundles as they are now, and try the copy out in a process of its own
    prepare    one process after another loads the copy beside what it serves, and holds it to its golden outputs
    commit     one store on the board: every process looks there when a request begins, so that no request that begins
               after it anywhere is answered with the old bundles; what is under way ends with them
    abort      after any refusal, death or delay before that: every process forgets what it prepared

One after another, so that most processes are never busy with it. A process that comes to serve in the middle of a round
has loaded the old bundles and is prepared like the others; one that is still loading those when they go out of force
never serves. So whoever serves, serves what is in force.

A request to reload in the middle of a round is another round after it, which finds the bundles as they are then; more
such requests are one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rfa.runtime.bundle.documents import BundleError
from rfa.service.process.aside import aside
from rfa.service.process.board import Board, Outcome
from rfa.service.process.channel import reason_of
from rfa.service.process.snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    from rfa.service.process.supervisor import Child

logger = logging.getLogger("rfa.supervisor")
# To read the bundles from where they are, and for one process to load them; trying them out has limits of its own.
COPY_SECONDS = 300.0
PREPARE_SECONDS = 60.0
# Tries bundles out where they can do no harm; raises BundleError.
Vet = Callable[[Sequence[Path]], Awaitable[Any]]


class Refused(Exception):
    """The bundles are not to be served."""


class Aborted(Exception):
    """Something else went wrong; it says nothing of the bundles."""


class Lost(Aborted):
    """A process ended in the middle of a round."""


class Shelf:
    """Where the bundles of a server come from: copies of what the operator named, each tried out once.

    Args:
        bundles: folders.
        home: where copies go.
        max_bytes: of all bundles together.
    """

    def __init__(self, bundles: Sequence[Path], home: Path, max_bytes: int, vet: Vet) -> None:
        self._bundles = bundles
        self._home = home
        self._max_bytes = max_bytes
        self._vet = vet
        self._taken = 0

    async def take(self) -> Snapshot:
        """The bundles as they are now; the caller vets and discards them.

        Raises:
            Refused: they cannot be read, or are too large.
        """
        self._taken += 1
        try:
            async with asyncio.timeout(COPY_SECONDS):
                return await aside(
                    partial(take_snapshot, self._bundles, self._home, self._taken, max_bytes=self._max_bytes)
                )
        except TimeoutError:
            raise Refused(f"the bundles could not be read within {COPY_SECONDS:g} s") from None
        except (BundleError, OSError) as error:
            raise Refused(reason_of(error)) from None

    async def vet(self, snapshot: Snapshot) -> None:
        """Try a snapshot out.

        Raises:
            Refused: it is broken, or takes more than it may.
        """
        try:
            await self._vet(snapshot.bundles)
        except (BundleError, OSError) as error:  # a TimeoutError is one
            raise Refused(reason_of(error)) from None


class Reloader:
    """The bundles in force, and the rounds that replace them.

    Args:
        shelf: gives the bundles as they are.
        board: says to all processes which are in force.
        members: those that serve now.
        on_commit: called in the moment that others are in force.
    """

    def __init__(
        self, shelf: Shelf, board: Board, members: Callable[[], Sequence[Child]], on_commit: Callable[[], None]
    ) -> None:
        self._shelf = shelf
        self._board = board
        self._members = members
        self._on_commit = on_commit
        self._requested = asyncio.Event()
        self._is_in_round = False
        self._current: Snapshot | None = None

    @property
    def current(self) -> Snapshot:
        """The bundles in force; every process that starts loads these."""
        assert self._current is not None, "begin() comes first"
        return self._current

    async def begin(self) -> None:
        """Take the first bundles.

        Raises:
            Refused: there are none to serve with.
        """
        snapshot = await self._shelf.take()
        await self._shelf.vet(snapshot)
        self._current = snapshot
        self._board.commit(snapshot.generation)

    def request(self) -> None:
        """Have the bundles loaded anew, after the round under way if there is one."""
        if self._is_in_round:
            logger.info("bundles are being loaded; they are looked at once more after that")
        self._requested.set()

    async def run(self) -> None:
        """Do what is requested, one round after another."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            self._is_in_round = True
            try:
                await self._round()
            finally:
                self._is_in_round = False

    async def _round(self) -> None:
        snapshot: Snapshot | None = None
        try:
            snapshot = await self._shelf.take()
            await self._shelf.vet(snapshot)
            await self._prepare(snapshot)
        except (Refused, Aborted) as error:
            await self._abort(snapshot, "refused" if isinstance(error, Refused) else "aborted", str(error))
        except Exception as error:  # whatever it is, the next request to reload finds somebody here
            logger.exception("reloading failed")
            await self._abort(snapshot, "aborted", reason_of(error))
        else:
            # Nothing was awaited since every process that serves was seen to be prepared.
            await self._commit(snapshot)

    async def _prepare(self, snapshot: Snapshot) -> None:
        asked: list[Child] = []
        while (member := self._unprepared(snapshot)) is not None:
            asked.append(member)
            try:
                async with asyncio.timeout(PREPARE_SECONDS):
                    reason = await member.prepare(snapshot)
            except TimeoutError:
                raise Aborted(f"{member.name} did not load them within {PREPARE_SECONDS:g} s") from None
            if reason is not None:
                raise Refused(f"{member.name}: {reason}")
            member.prepared = snapshot
            if lost := [other.name for other in asked if other.is_gone]:
                raise Lost(f"{lost[0]} ended")

    def _unprepared(self, snapshot: Snapshot) -> Child | None:
        return next((member for member in self._members() if member.prepared is not snapshot), None)

    async def _commit(self, snapshot: Snapshot) -> None:
        before, self._current = self.current, snapshot
        self._board.commit(snapshot.generation)
        members = list(self._members())
        for member in members:
            member.snapshot, member.prepared = snapshot, None
        self._on_commit()
        self._board.count("committed", time.time())
        before.discard()
        logger.info(
            "reload committed, of version %s: served by all %d processes in place of version %s",
            *(snapshot.version, len(members), before.version),
        )
        await asyncio.gather(*(member.tell("commit") for member in members))

    async def _abort(self, snapshot: Snapshot | None, outcome: Outcome, reason: str) -> None:
        offered = "bundles that cannot be read" if snapshot is None else f"version {snapshot.version}"
        logger.error(
            "reload %s, of %s: %s; every process goes on with version %s",
            *(outcome, offered, reason, self.current.version),
        )
        self._board.count(outcome, time.time())
        members = list(self._members())
        for member in members:
            member.prepared = None
        if snapshot is not None:
            snapshot.discard()
        await asyncio.gather(*(member.tell("abort") for member in members))
