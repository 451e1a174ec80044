"""Combine the metrics of all server processes for `GET /metrics`.

A scrape reaches one of the processes that share the port. This process requests the metrics of the others over UNIX
sockets in a private directory, and merges the texts. Each sample has the label `engine` with the number of its process.
A restarted process therefore appears as an ordinary counter reset.

The multiprocess mode of prometheus_client is not used: it does not support gauges that are read during a scrape, keeps
files of processes that have exited, and must be enabled in the environment before the first import.
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
    """Returns the metrics of this process and, after `join` was called, of the other processes."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._siblings: list[Path] = []
        self._server: asyncio.Server | None = None

    async def join(self, directory: Path, index: int, processes: int) -> None:
        """Serve the metrics of this process to the other processes, and include their metrics in `render`.

        Args:
            directory: Directory of the sockets. The name of a socket is the index of its process.
            index: Index of this process.
            processes: Number of processes.

        Raises:
            OSError: If the socket cannot be created.
        """
        own = directory / str(index)
        own.unlink(missing_ok=True)  # socket of the previous process with the same index
        self._server = await asyncio.start_unix_server(self._answer, path=str(own))
        self._siblings = [directory / str(other) for other in range(processes) if other != index]

    def leave(self) -> None:
        """Stop serving the metrics of this process to the other processes."""
        if self._server is not None:
            self._server.close()

    async def render(self) -> bytes:
        """Return the metrics in the text format of Prometheus. Processes that do not reply in time are left out, and a
        counter reports their number."""
        texts = await asyncio.gather(*(self._ask(path) for path in self._siblings))
        own = await self._own()  # last, so that it counts processes that did not reply
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
            logger.debug("another process closed the socket before it had read the metrics")
        finally:
            writer.close()


async def ask(path: Path) -> str | None:
    """Request the metrics of the process that listens on a socket, and return them as text. Return None if the process
    does not reply in time."""
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
    """Merge texts with metrics, and return the result. Each metric family occurs once in the result, with all of its
    samples."""
    families: dict[str, tuple[str, list[str]]] = {}
    for text in texts:
        for family in filter(None, _FAMILY.split(text)):
            described, kind, samples = family.split("\n", 2)
            name = described.split(" ", 3)[2]
            families.setdefault(name, (f"{described}\n{kind}\n", []))[1].append(samples)
    return "".join(head + "".join(samples) for head, samples in families.values())
