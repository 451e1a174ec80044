"""One answer to `GET /metrics` from many processes.

A scrape reaches any one of the processes that share the port. That one asks its siblings for their text over UNIX
sockets in a directory that only the server's user can enter, and merges: each sample carries the number of its
process as `engine`, so that a process that was started anew is an ordinary counter reset of its own series.

prometheus_client's multiprocess mode was the alternative. It has no gauges that are read when scraped, keeps the files
of dead processes, and must be switched on in the environment before the first import.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from rfa.service.metrics import Metrics

logger = logging.getLogger("rfa.metrics")
SIBLING_SECONDS = 0.5
_FAMILY = re.compile(r"^(?=# HELP )", re.MULTILINE)


class Exposition:
    """The metrics of this process, together with those of its siblings once it has joined them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._siblings: list[Path] = []
        self._server: asyncio.Server | None = None

    async def join(self, directory: Path, index: int, processes: int) -> None:
        """Answer siblings at `directory/index`, and ask them from now on.

        Raises:
            OSError: the socket cannot be made.
        """
        own = directory / str(index)
        own.unlink(missing_ok=True)  # of the process that had this place before
        self._server = await asyncio.start_unix_server(self._answer, path=str(own))
        self._siblings = [directory / str(other) for other in range(processes) if other != index]

    def leave(self) -> None:
        """Answer no longer."""
        if self._server is not None:
            self._server.close()

    async def render(self) -> bytes:
        """The text exposition format; a sibling that does not answer in time is left out and counted."""
        texts = await asyncio.gather(*(self._ask(path) for path in self._siblings))
        own = await self._own()  # last, so that what was counted just now is in it
        return merge([own, *(text for text in texts if text is not None)]).encode()

    async def _own(self) -> str:
        return (await asyncio.to_thread(self._metrics.render)).decode()

    async def _ask(self, path: Path) -> str | None:
        if (text := await ask(path)) is None:
            self._metrics.siblings_unanswered.inc()
        return text

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write((await self._own()).encode())
            await writer.drain()
        except OSError:
            logger.debug("a sibling did not wait for the metrics")
        finally:
            writer.close()


async def ask(path: Path) -> str | None:
    """The metrics of the process that answers at a socket; None if it does not in time."""
    try:
        async with asyncio.timeout(SIBLING_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                return (await reader.read()).decode()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None


def merge(texts: Iterable[str]) -> str:
    """Expositions as one: every family described once, its samples from all of them together."""
    families: dict[str, tuple[str, list[str]]] = {}
    for text in texts:
        for family in filter(None, _FAMILY.split(text)):
            described, kind, samples = family.split("\n", 2)
            name = described.split(" ", 3)[2]
            families.setdefault(name, (f"{described}\n{kind}\n", []))[1].append(samples)
    return "".join(head + "".join(samples) for head, samples in families.values())
