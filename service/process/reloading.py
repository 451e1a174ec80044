"""Reload the bundles in all processes of a server, or in none.

- Copy: the bundles are copied, and the copy is checked in a subprocess.
- Prepare: one process after another loads the copy while it serves requests, and checks the golden outputs.
- Commit: the generation in the shared status changes. All processes read it when a request starts. Later requests use
  the new bundles; running requests are completed with the old ones.
- Abort: if bundles are rejected, a process exits or a timeout passes before the commit, all processes discard the new
  bundles.

The processes prepare one after another, so that most of them are available. A process that starts to serve during a
reload has loaded the old bundles, and is prepared like the others. A process that is still loading the old bundles at
the commit is restarted. Therefore, all processes that serve requests serve the current bundles.

A reload that is requested during another one starts after it, and copies the bundles at that time. Several such
requests cause one reload.
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
from rfa.service.process.background import run_in_background
from rfa.service.process.channel import error_reason
from rfa.service.process.shared_status import Outcome, SharedStatus
from rfa.service.process.snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    from rfa.service.process.managed_child import Child

logger = logging.getLogger("rfa.supervisor")
# Time limits for copying the bundles, and for loading them in one process. The check has separate limits.
COPY_SECONDS = 300.0
PREPARE_SECONDS = 60.0
# Function that checks bundles in a subprocess. It raises BundleError if a bundle is rejected.
CheckBundles = Callable[[Sequence[Path]], Awaitable[Any]]


class BundlesRefused(Exception):
    """Raised if the bundles cannot be served."""


class ReloadAborted(Exception):
    """Raised if a reload failed for a reason other than the bundles."""


class ProcessLost(ReloadAborted):
    """Raised if a process exited during a reload."""


class BundleStore:
    """Copies the bundles of the operator, and checks the copies.

    Args:
        bundles: Bundle directories.
        home: Directory for the copies.
        max_bytes: Maximum total size of the bundles, in bytes.
        check: Function that checks a copy (see `CheckBundles`).
    """

    def __init__(self, bundles: Sequence[Path], home: Path, max_bytes: int, check: CheckBundles) -> None:
        self._bundles = bundles
        self._home = home
        self._max_bytes = max_bytes
        self._check = check
        self._copies = 0

    async def copy(self) -> Snapshot:
        """Copy the current content of the bundle directories, and return the copy. The caller must check the copy, and
        later discard it.

        Raises:
            BundlesRefused: If the bundles cannot be read, or are too large.
        """
        self._copies += 1
        try:
            async with asyncio.timeout(COPY_SECONDS):
                return await run_in_background(
                    partial(take_snapshot, self._bundles, self._home, self._copies, max_bytes=self._max_bytes)
                )
        except TimeoutError:
            raise BundlesRefused(f"reading the bundles took longer than {COPY_SECONDS:g} s") from None
        except (BundleError, OSError) as error:
            raise BundlesRefused(error_reason(error)) from None

    async def check(self, snapshot: Snapshot) -> None:
        """Check a copy of the bundles.

        Raises:
            BundlesRefused: If a bundle is rejected.
        """
        try:
            await self._check(snapshot.bundles)
        except (BundleError, OSError) as error:  # includes TimeoutError
            raise BundlesRefused(error_reason(error)) from None


class Reloader:
    """Stores which bundles are current, and runs reloads.

    Args:
        store: Object that copies and checks the bundles.
        status: Shared status, which contains the generation of the current bundles.
        members: Function that returns the processes that are serving requests.
        on_commit: Function that is called immediately after the current bundles have changed.
    """

    def __init__(
        self,
        store: BundleStore,
        status: SharedStatus,
        members: Callable[[], Sequence[Child]],
        on_commit: Callable[[], None],
    ) -> None:
        self._store = store
        self._status = status
        self._members = members
        self._on_commit = on_commit
        self._requested = asyncio.Event()
        self._is_reloading = False
        self._current: Snapshot | None = None

    @property
    def current(self) -> Snapshot:
        """Bundles that processes load when they start."""
        assert self._current is not None, "begin() must be called first"
        return self._current

    async def begin(self) -> None:
        """Copy and check the first bundles.

        Raises:
            BundlesRefused: If the bundles cannot be served.
        """
        snapshot = await self._store.copy()
        await self._store.check(snapshot)
        self._current = snapshot
        self._status.commit(snapshot.generation)

    def request(self) -> None:
        """Request a reload. If a reload is in progress, the new one starts after it."""
        if self._is_reloading:
            logger.info("a reload is in progress; the requested one starts after it")
        self._requested.set()

    async def run(self) -> None:
        """Wait for requests, and run the reloads one after another, until the coroutine is cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            self._is_reloading = True
            try:
                await self._reload()
            finally:
                self._is_reloading = False

    async def _reload(self) -> None:
        snapshot: Snapshot | None = None
        try:
            snapshot = await self._store.copy()
            await self._store.check(snapshot)
            await self._prepare(snapshot)
        except (BundlesRefused, ReloadAborted) as error:
            await self._abort(snapshot, "refused" if isinstance(error, BundlesRefused) else "aborted", str(error))
        except Exception as error:  # later requests to reload must still be handled
            logger.exception("the bundles could not be reloaded")
            await self._abort(snapshot, "aborted", error_reason(error))
        else:
            # `_prepare` has found that all serving processes are prepared. There is no `await` between this and the
            # commit.
            await self._commit(snapshot)

    async def _prepare(self, snapshot: Snapshot) -> None:
        asked: list[Child] = []
        while (member := self._unprepared(snapshot)) is not None:
            asked.append(member)
            try:
                async with asyncio.timeout(PREPARE_SECONDS):
                    reason = await member.prepare(snapshot)
            except TimeoutError:
                raise ReloadAborted(f"{member.name} did not load the bundles within {PREPARE_SECONDS:g} s") from None
            if reason is not None:
                raise BundlesRefused(f"{member.name}: {reason}")
            member.prepared = snapshot
            if lost := [other.name for other in asked if other.has_ended]:
                raise ProcessLost(f"{lost[0]} exited")

    def _unprepared(self, snapshot: Snapshot) -> Child | None:
        return next((member for member in self._members() if member.prepared is not snapshot), None)

    async def _commit(self, snapshot: Snapshot) -> None:
        before, self._current = self.current, snapshot
        self._status.commit(snapshot.generation)
        members = list(self._members())
        for member in members:
            member.snapshot, member.prepared = snapshot, None
        self._on_commit()
        self._status.count("committed", time.time())
        before.discard()
        logger.info(
            "reload finished: all %d processes now serve version %s instead of version %s",
            *(len(members), snapshot.version, before.version),
        )
        await asyncio.gather(*(member.send("commit") for member in members))

    async def _abort(self, snapshot: Snapshot | None, outcome: Outcome, reason: str) -> None:
        offered = "unreadable bundles" if snapshot is None else f"version {snapshot.version}"
        logger.error(
            "the reload of %s was %s: %s; all processes still serve version %s",
            *(offered, outcome, reason, self.current.version),
        )
        self._status.count(outcome, time.time())
        members = list(self._members())
        for member in members:
            member.prepared = None
        if snapshot is not None:
            snapshot.discard()
        await asyncio.gather(*(member.send("abort") for member in members))
