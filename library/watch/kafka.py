"""Kafka topics as a source and as a sink.

The offsets of the source are stored together with the rows, so each message is filtered once. If source and sink use
the same brokers, the outputs of a batch and its offsets form a transaction:

    1. the outputs are produced      2. the rows and the offsets are stored      3. the transaction is committed

If a process ends between steps 2 and 3, the stored offsets are ahead of those that the consumer group has committed,
and the outputs of these rows are not visible. The next process filters the rows again from the journal, with the same
outputs, and commits the outputs. Consumers that only read committed messages therefore see each output exactly once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from rfa.library.watch.config import KafkaSource, KafkaTopic
from rfa.library.watch.filters import QueryFilter, Scored
from rfa.library.watch.sink import Sink, rows_as_documents

if TYPE_CHECKING:
    from rfa.library.watch.watch import Watch

_TIMEOUT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.5
# Maximum number of messages that are filtered and confirmed at a time.
_MESSAGES: Final = 5_000
_LINGER_MS: Final = 20
# Maximum number of attempts of a request in a transaction.
_ATTEMPTS: Final = 5


def cursor_name(source: KafkaTopic) -> str:
    """Return the name under which the offsets of a source are stored among the cursors. An offset is the position of
    the next message in a partition."""
    return f"kafka:{source.topic}"


@contextmanager
def _errors() -> Iterator[None]:
    """Convert errors of Kafka to OSError, and errors in its settings to ValueError."""
    try:
        yield
    except KafkaException as error:
        reason = error.args[0]
        kind = ValueError if reason.code() == KafkaError._INVALID_ARG else OSError
        raise kind(f"Kafka: {reason.str()}") from None


def _consumer(source: KafkaSource) -> Consumer:
    with _errors():
        return Consumer(
            {
                **source.client,
                "bootstrap.servers": source.brokers,
                "group.id": source.group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
            }
        )


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    found: Any = consumer.list_topics(topic, _TIMEOUT_SECONDS).topics[topic]
    if found.error is not None:
        raise ValueError(f"topic {topic!r}: {found.error}")
    return list(found.partitions)


class KafkaFeed:
    """Reads the messages from all partitions of a topic. See `Feed`.

    Args:
        source: The topic.
        is_committed: Whether the sink commits the offsets to the consumer group. Otherwise, this feed commits them, so
            that tools can show the lag of the group.
    """

    def __init__(self, source: KafkaSource, *, is_committed: bool = False) -> None:
        self._source, self._is_committed = source, is_committed
        self._consumer = _consumer(source)

    def run(self, watch: Watch, stop: threading.Event) -> None:
        name = cursor_name(self._source)
        offsets: dict[str, int] = dict(watch.cursors.get(name, {}))
        try:
            with _errors():
                history = self._assign(offsets)
            while not stop.is_set():
                messages = self._consumer.consume(_MESSAGES, _POLL_SECONDS)
                good = [message for message in messages if message.error() is None]
                is_old = [(one.offset() or 0) < history.get(one.partition() or 0, 0) for one in good]
                for chosen, is_history in (
                    ([one for one, old in zip(good, is_old, strict=True) if old], True),
                    ([one for one, old in zip(good, is_old, strict=True) if not old], False),
                ):
                    if chosen:
                        offsets |= {str(message.partition()): (message.offset() or 0) + 1 for message in chosen}
                        contents = [message.value() or b"" for message in chosen]
                        only = list(watch.filters) if is_history else None
                        watch.push_messages(contents, {name: dict(offsets)}, only=only)
                history = {part: end for part, end in history.items() if offsets.get(str(part), 0) < end}
                if any(is_old) and not history:
                    watch.save()
                if good and not self._is_committed:
                    self._consumer.commit(message=good[-1], asynchronous=True)
        finally:
            self._consumer.close()

    def _assign(self, offsets: dict[str, int]) -> dict[int, int]:
        """Start reading at `offsets`. Return the offset at which the history of each partition ends."""
        topic, replay = self._source.topic, self._source.replay
        parts = _partitions(self._consumer, topic)
        begins = [TopicPartition(topic, part, offsets.get(str(part), OFFSET_BEGINNING)) for part in parts]
        history: dict[int, int] = {}
        if not offsets and replay is not None:
            now = time.time()
            begins = self._consumer.offsets_for_times(
                [TopicPartition(topic, part, int(1000 * (now - replay))) for part in parts], _TIMEOUT_SECONDS
            )
            for begin in begins:
                low, high = self._consumer.get_watermark_offsets(begin, _TIMEOUT_SECONDS)
                begin.offset = high if begin.offset < 0 else max(low, begin.offset)
                if begin.offset < high:
                    history[begin.partition] = high
        self._consumer.assign(begins)
        return history


class KafkaRows(Sink):
    """Sink that writes a JSON message for each row. The key of a message consists of its query and labels.

    Args:
        options: The topic.
        source: Source on the same brokers. Its offsets are committed in one transaction with the outputs. If None,
            there are no transactions.

    Raises:
        ValueError: If a setting in `client` is invalid.
        OSError: If the brokers do not respond.
    """

    def __init__(self, options: KafkaTopic, source: KafkaSource | None = None) -> None:
        self._topic, self._source, self._is_open = options.topic, source, False
        settings: dict[str, Any] = {
            **options.client, "bootstrap.servers": options.brokers, "enable.idempotence": True, "linger.ms": _LINGER_MS,
        }  # fmt: skip
        if source is not None:
            settings["transactional.id"] = f"{source.group}.{source.topic}.{options.topic}"
        with _errors():
            self._producer = Producer(settings)
        self._consumer = None if source is None else _consumer(source)
        self._committed: dict[str, int] = {}
        if source is not None:
            self._retry(lambda: self._producer.init_transactions(_TIMEOUT_SECONDS))

    def is_committed(self, cursors: Mapping[str, Any]) -> bool:
        """Return whether the outputs of the rows that were stored together with the given cursors are committed."""
        if self._source is None or self._consumer is None:
            return True
        topic = self._source.topic
        offsets = cursors.get(cursor_name(self._source), {})
        parts = [TopicPartition(topic, int(part)) for part in offsets if part not in self._committed]
        if parts:
            with _errors():
                found = self._consumer.committed(parts, _TIMEOUT_SECONDS)
            self._committed |= {str(one.partition): one.offset for one in found}
        return all(self._committed[part] >= offset for part, offset in offsets.items())

    def write(self, one: QueryFilter, scored: Scored) -> None:
        self._begin()
        for document in rows_as_documents(one, scored):
            key = orjson.dumps([document["query"], document["labels"]])
            while True:
                try:
                    with _errors():
                        self._producer.produce(self._topic, orjson.dumps(document), key)
                    break
                except BufferError:  # the queue is full
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until the messages are delivered. With transactions, do nothing, because a commit waits for its
        messages."""
        if self._source is None:
            self._producer.flush(_TIMEOUT_SECONDS)

    def confirm(self, cursors: Mapping[str, Any]) -> None:
        """Commit the transaction of the written outputs. See `Sink`.

        Raises:
            OSError: If the commit fails. It is repeated after a restart.
        """
        if self._source is None or self._consumer is None:
            return
        topic, consumer = self._source.topic, self._consumer
        offsets = cursors.get(cursor_name(self._source), {})
        parts = [TopicPartition(topic, int(part), offset) for part, offset in offsets.items()]
        self._begin()
        if parts:
            group = consumer.consumer_group_metadata()
            self._retry(lambda: self._producer.send_offsets_to_transaction(parts, group, _TIMEOUT_SECONDS))
        self._retry(lambda: self._producer.commit_transaction(_TIMEOUT_SECONDS))
        self._is_open = False

    def close(self) -> None:
        if self._source is None:
            self._producer.flush(_TIMEOUT_SECONDS)
        elif self._consumer is not None:
            self._consumer.close()

    def _begin(self) -> None:
        if self._source is not None and not self._is_open:
            self._retry(self._producer.begin_transaction)
            self._is_open = True

    def _retry(self, request: Callable[[], object]) -> None:
        for left in range(_ATTEMPTS, 0, -1):
            with _errors():
                try:
                    request()
                    return
                except KafkaException as error:
                    if left == 1 or not error.args[0].retriable():
                        raise
