"""Sources that are read as messages come: standard input, and a topic of Kafka."""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

from rfa.watch.config import Config, KafkaTopic

if TYPE_CHECKING:
    from rfa.watch.watch import Watch

_POLL_SECONDS: Final = 0.5
# Bytes of a read, and of a line.
_CHUNK: Final = 1 << 20
# Messages that are filtered together, and confirmed.
_MESSAGES: Final = 5_000


class Feed(Protocol):
    """Gives observations to a watch."""

    def run(self, watch: Watch, stop: threading.Event) -> None:
        """Read until stopped, or until the source has ended."""
        ...


class StdinFeed:
    """A message in each line; the watch ends with the input."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor

    def run(self, watch: Watch, stop: threading.Event) -> None:
        """See `Feed`."""
        rest = b""
        while not stop.is_set():
            if not select.select([self._descriptor], [], [], _POLL_SECONDS)[0]:
                continue
            chunk = os.read(self._descriptor, _CHUNK)
            *lines, rest = (rest + chunk).split(b"\n")
            if not chunk:
                lines, rest = [rest], b""
            if len(rest) > _CHUNK:
                raise ValueError(f"standard input has a line of more than {_CHUNK:,} bytes")
            watch.push_messages([line for line in lines if line.strip()])
            if not chunk:
                return


class KafkaFeed:
    """The messages of a topic from all its partitions.

    The offsets are confirmed with the rows, in the store of the watch: a message is filtered once, also after a crash.
    They are committed to the group as well, so that tools can show the lag.
    """

    def __init__(self, options: KafkaTopic) -> None:
        from confluent_kafka import Consumer

        self._options = options
        self._consumer = Consumer(
            {
                **options.client,
                "bootstrap.servers": options.brokers,
                "group.id": options.group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
            }
        )

    def run(self, watch: Watch, stop: threading.Event) -> None:
        """See `Feed`."""
        name = f"kafka:{self._options.topic}"
        offsets: dict[str, int] = dict(watch.cursors.get(name, {}))
        self._assign(offsets)
        try:
            while not stop.is_set():
                messages = self._consumer.consume(_MESSAGES, _POLL_SECONDS)
                good = [message for message in messages if message.error() is None]
                if not good:
                    continue
                offsets |= {str(message.partition()): (message.offset() or 0) + 1 for message in good}
                watch.push_messages([message.value() or b"" for message in good], {name: dict(offsets)})
                self._consumer.commit(message=good[-1], asynchronous=True)
        finally:
            self._consumer.close()

    def _assign(self, offsets: dict[str, int]) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        topic = self._options.topic
        found: Any = self._consumer.list_topics(topic, 30.0).topics[topic]
        if found.error is not None:
            raise ValueError(f"topic {topic!r}: {found.error}")
        partitions = [
            TopicPartition(topic, number, offsets.get(str(number), OFFSET_BEGINNING)) for number in found.partitions
        ]
        self._consumer.assign(partitions)


def feed_of(config: Config) -> Feed | None:
    """The feed that a configuration names."""
    if config.source.kafka is not None:
        return KafkaFeed(config.source.kafka)
    return StdinFeed() if config.source.stdin is not None else None
