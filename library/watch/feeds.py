"""Sources that deliver messages as they arrive. This module reads standard input, and `rfa.library.watch.kafka` reads
Kafka."""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Final, Protocol

from rfa.library.watch.config import Config

if TYPE_CHECKING:
    from rfa.library.watch.watch import Watch

_POLL_SECONDS: Final = 0.5
# Maximum number of bytes in a read, and in a line.
_CHUNK: Final = 1 << 20


class Feed(Protocol):
    """Interface of a source that delivers messages as they arrive."""

    def run(self, watch: Watch, stop: threading.Event) -> None:
        """Read messages and pass them to the watch, until the event `stop` is set or the source ends."""
        ...


class StdinFeed:
    """Reads one message per line from standard input. The watch ends at the end of the input."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor

    def run(self, watch: Watch, stop: threading.Event) -> None:
        rest = b""
        while not stop.is_set():
            if not select.select([self._descriptor], [], [], _POLL_SECONDS)[0]:
                continue
            chunk = os.read(self._descriptor, _CHUNK)
            *lines, rest = (rest + chunk).split(b"\n")
            if not chunk:
                lines, rest = [rest], b""
            if len(rest) > _CHUNK:
                raise ValueError(f"a line of standard input is longer than {_CHUNK:,} bytes")
            watch.push_messages([line for line in lines if line.strip()])
            if not chunk:
                return


def feed_of(config: Config, *, is_committed: bool = False) -> Feed | None:
    """Return the source of messages in a configuration, or None if the source does not deliver messages.

    Args:
        config: The configuration.
        is_committed: Whether a sink commits the offsets of Kafka.
    """
    if config.source.kafka is not None:
        from rfa.library.watch.kafka import KafkaFeed

        return KafkaFeed(config.source.kafka, is_committed=is_committed)
    return StdinFeed() if config.source.stdin is not None else None
