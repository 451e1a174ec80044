"""Fit items in several threads. They run in parallel, because compiled code releases the interpreter lock. A stop
signal ends each fit after its current step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from threadpoolctl import threadpool_limits

from rfa.fitting.interrupts import Stopped, StopSignals
from rfa.fitting.maximum_likelihood import Report
from rfa.fitting.progress import SavedFits

Item = TypeVar("Item")
Document = dict[str, Any]
# Seconds between checks for a signal.
PAUSE = 0.2


class _Ended(Exception):
    """Raised in a fit that must end because another fit has failed or a signal has arrived."""


class _Fits(Generic[Item]):
    """Runs fits in several threads.

    Args:
        refuses: Whether items that cannot be fitted are skipped.
    """

    def __init__(
        self, fit: Callable[[Item, Report], Document], report: Report | None, saved: SavedFits | None, *, refuses: bool
    ) -> None:
        self.is_over = threading.Event()
        self._fit, self._report, self._saved, self._refuses = fit, report, saved, refuses
        self._lock = threading.Lock()

    def run(self, name: str, item: Item) -> Document:
        """Fit an item, and return the result. If a result of the item is saved, return the saved result instead."""
        found: Document | None = None if self._saved is None else self._saved.get(name)
        if found is not None:
            self._advance(f"{name}: loaded from an earlier fit", 1.0)
            return found
        reported = 0.0

        def advance(line: str, share: float) -> None:
            nonlocal reported
            reported += share
            self._advance(f"{name}: {line}", share)

        try:
            found = self._fit(item, advance)
        except ValueError:
            if self._refuses:
                self._advance(f"{name}: cannot be fitted", 1.0 - reported)
            raise
        if self._saved is not None:
            with self._lock:
                self._saved.add(name, found)
        return found

    def _advance(self, line: str, share: float) -> None:
        if self.is_over.is_set():
            raise _Ended
        if self._report is not None:
            with self._lock:
                self._report(line, share)


def fit_each(
    items: Mapping[str, Item],
    fit: Callable[[Item, Report], Document],
    *,
    report: Report | None = None,
    saved: SavedFits | None = None,
    refused: Callable[[str, ValueError], object] | None = None,
) -> dict[str, Document]:
    """Fit all items, and return a mapping from names to results as JSON types, in the order of the items.

    Args:
        items: Mapping from names to items.
        fit: Function that fits an item. It must call its second argument after every step, with a message and the
            completed fraction of the item. The fractions must sum to 1.
        report: Function that is called after every step with a progress message and the completed fraction of an item.
            Threads call it one at a time.
        saved: Store of completed items, which are not fitted again.
        refused: Function that is called with the name and the error of each item that cannot be fitted. The item is
            skipped. By default, the first error is raised.

    Raises:
        ValueError: If an item cannot be fitted and `refused` is None.
        Stopped: If a signal arrived. Completed items are saved.
    """
    fits = _Fits(fit, report, saved, refuses=refused is not None)
    workers = max(1, min(len(items), os.cpu_count() or 1))
    # More threads for linear algebra would contend, which makes a fit four times as slow.
    with StopSignals() as signals, threadpool_limits(1, "blas"), ThreadPoolExecutor(workers) as pool:
        futures = {name: pool.submit(fits.run, name, item) for name, item in items.items()}
        try:
            while not _have_ended(futures, stop_at_failure=refused is None):
                if signals.received is not None:
                    fits.is_over.set()
                    pool.shutdown(cancel_futures=True)
                    done = sum(_is_done(future) for future in futures.values())
                    if done < len(futures):
                        raise Stopped(signals.received, done, len(futures))
            return _results(futures, refused)
        finally:
            fits.is_over.set()
            pool.shutdown(cancel_futures=True)


def _have_ended(futures: Mapping[str, Future[Document]], *, stop_at_failure: bool) -> bool:
    """Wait for at most PAUSE seconds. Return whether all fits have ended, or whether they must end because of a
    failure."""
    pending = [future for future in futures.values() if not future.done()]
    if pending:
        wait(pending, PAUSE, FIRST_COMPLETED)
    failed = any(future.done() and future.exception() is not None for future in futures.values())
    return (failed and stop_at_failure) or all(future.done() for future in futures.values())


def _is_done(future: Future[Document]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _results(
    futures: Mapping[str, Future[Document]], refused: Callable[[str, ValueError], object] | None
) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for name, future in futures.items():
        if refused is None and not future.done():
            continue  # another fit failed
        error = future.exception()
        if error is None:
            found[name] = future.result()
        elif refused is not None and isinstance(error, ValueError):
            refused(name, error)
        else:
            raise error
    return found
