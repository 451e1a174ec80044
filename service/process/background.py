"""Blocking work in a thread for which an event loop need not wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def run_in_background(work: Callable[[], Result]) -> Result:
    """Run `work` in a new thread and return its result.

    A cancelled caller abandons the thread. It delays neither later work nor the exit of the process, unlike the threads
    of an executor.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def set_result(result: Result | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(set_result, result, error)

    threading.Thread(target=run, daemon=True, name=getattr(work, "__name__", "background")).start()
    return await done
