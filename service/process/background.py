"""Run blocking work in a thread that can be abandoned."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def run_in_background(work: Callable[[], Result]) -> Result:
    """Run `work` in a new thread, and return its result.

    If the caller is cancelled, the thread is abandoned. Unlike a thread of an executor, it then does not delay other
    work or the exit of the process.

    Raises:
        BaseException: If `work` raises an exception, it is raised again.
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
