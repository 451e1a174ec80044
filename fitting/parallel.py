"""Fits side by side, a thread each: what is compiled needs no lock. A stop ends them at their next step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from rfa.fitting.maximum_likelihood import Report
from rfa.fitting.progress import Kept
from rfa.fitting.stopping import Stopped, StopSignals

Item = TypeVar("Item")
Document = dict[str, Any]
# Seconds between looks for a signal.
PAUSE = 0.2


class _Ended(Exception):
    """Of one fit, because of another or a signal."""


def fit_each(
    items: Mapping[str, Item],
    fit: Callable[[Item, Report], Document],
    *,
    report: Report | None = None,
    kept: Kept | None = None,
    refused: Callable[[str, ValueError], object] | None = None,
) -> dict[str, Document]:
    """What is found of each item, in their order, as JSON.

    Args:
        fit: of an item; it calls the report after every step, with shares that come to 1.
        report: is called one at a time.
        kept: where what is finished is kept, and not done again.
        refused: is told of an item that cannot be fitted, which is left out; without it the first such one raises.

    Raises:
        Stopped: a signal came; what is finished is kept.
    """
    lock, is_over = threading.Lock(), threading.Event()

    def tell(line: str, share: float) -> None:
        if is_over.is_set():
            raise _Ended
        if report is not None:
            with lock:
                report(line, share)

    def run(name: str, item: Item) -> Document:
        found: Document | None = None if kept is None else kept.get(name)
        if found is not None:
            tell(f"{name}: was fitted before", 1.0)
            return found
        reported = 0.0

        def tell_of(line: str, share: float) -> None:
            nonlocal reported
            reported += share
            tell(f"{name}: {line}", share)

        try:
            found = fit(item, tell_of)
        except ValueError:
            if refused is not None:
                tell(f"{name}: refused", 1.0 - reported)
            raise
        if kept is not None:
            with lock:
                kept.add(name, found)
        return found

    workers = max(1, min(len(items), os.cpu_count() or 1))
    # Threads of the linear algebra beside these wait for each other, four times as long as the work takes.
    with StopSignals() as signals, threadpool_limits(1, "blas"), ThreadPoolExecutor(workers) as pool:
        futures = {name: pool.submit(run, name, item) for name, item in items.items()}
        try:
            while not _settled(futures, stop_at_failure=refused is None):
                if signals.received is not None:
                    is_over.set()
                    pool.shutdown(cancel_futures=True)
                    done = sum(_is_done(future) for future in futures.values())
                    if done < len(futures):
                        raise Stopped(signals.received, done, len(futures))
            return _results(futures, refused)
        finally:
            is_over.set()
            pool.shutdown(cancel_futures=True)


def _settled(futures: Mapping[str, Future[Document]], *, stop_at_failure: bool) -> bool:
    """Whether all have ended, or one has failed that all wait for; waits a little."""
    left = [future for future in futures.values() if not future.done()]
    if left:
        wait(left, PAUSE, FIRST_COMPLETED)
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
            continue  # one behind it has failed
        error = future.exception()
        if error is None:
            found[name] = future.result()
        elif refused is not None and isinstance(error, ValueError):
            refused(name, error)
        else:
            raise error
    return found


__all__ = ["fit_each"]
