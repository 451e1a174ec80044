"""Kafka in and out, on the brokers that librdkafka simulates; `test_real_kafka.py` has a real one.

The simulated ones neither hide what was aborted, nor commit the offsets of a transaction, nor find offsets by time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from rfa.library.watch.config import Config
from rfa.library.watch.kafka import KafkaFeed, KafkaRows
from rfa.library.watch.storage import FileStorage
from rfa.library.watch.store import Store
from rfa.library.watch.watch import Watch
from tests.library.watch.pushing import Rows, config_of, load
from tests.waiting import PATIENCE, wait_until


class Transactions(Producer):
    """Commits the offsets of a transaction, as brokers do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._brokers, self._offsets = settings["bootstrap.servers"], list[TopicPartition]()

    def send_offsets_to_transaction(self, offsets: list[TopicPartition], *arguments: Any) -> None:
        super().send_offsets_to_transaction(offsets, *arguments)
        self._offsets = offsets

    def commit_transaction(self, *arguments: Any) -> None:
        super().commit_transaction(*arguments)
        consumer = Consumer({"bootstrap.servers": self._brokers, "group.id": "rfa-watch"})
        consumer.commit(offsets=self._offsets, asynchronous=False)
        consumer.close()


class Replayed(Consumer):
    """Finds the first offset for any time."""

    def offsets_for_times(self, parts: list[TopicPartition], *arguments: Any) -> list[TopicPartition]:
        return [TopicPartition(one.topic, one.partition, 0) for one in parts]


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("rfa.library.watch.kafka.Producer", Transactions)
    monkeypatch.setattr("rfa.library.watch.kafka.Consumer", Replayed)
    monkeypatch.setattr("rfa.library.watch.kafka._POLL_SECONDS", 0.05)
    mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused"})
    yield str(mock.list_topics(timeout=PATIENCE).brokers[1]).rpartition("/")[0]
    assert mock  # until here: the brokers end with it


def produce(brokers: str, first: int, last: int) -> None:
    producer = Producer({"bootstrap.servers": brokers})
    for k in range(first, last):
        labels, t, y = load("a", k)
        producer.produce("in", json.dumps({"labels": labels, "t": t, "value": y}), partition=0)
    assert producer.flush(PATIENCE) == 0


def written(brokers: str, count: int) -> list[int]:
    """The positions of the rows in the topic of the sink, of which there are at least so many."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "test"})
    parts = consumer.list_topics("out", PATIENCE).topics["out"].partitions
    consumer.assign([TopicPartition("out", part, OFFSET_BEGINNING) for part in parts])  # a group takes 3 s to form
    found: list[Any] = []
    wait_until(lambda: [found.extend(consumer.consume(10, 0.05)), len(found) >= count][1])
    found.extend(consumer.consume(10, 0.2))
    consumer.close()
    return [json.loads(message.value())["index"] for message in found]


def run(config: Config, state: Path | None, until: Callable[[Watch, Rows], bool], feed: KafkaFeed) -> Rows:
    """Rows of a watch that reads until something is so, and ends as a killed process does."""
    watch, rows = Watch(config, None if state is None else Store(FileStorage(state))), Rows()
    watch.sinks.append(rows)
    stop = threading.Event()
    thread = threading.Thread(target=watch._read, args=(feed, stop))
    thread.start()
    wait_until(lambda: until(watch, rows) or stop.is_set())
    stop.set()
    thread.join()
    if watch._store is not None:
        watch._store.close()
    for sink in watch.sinks:
        sink.close()
    return rows


def until_index(last: int) -> Callable[[Watch, Rows], bool]:
    return lambda watch, rows: any(row["index"] == last for row in rows.rows)


def feed_for(config: Config, *, is_committed: bool) -> KafkaFeed:
    assert config.source.kafka is not None
    return KafkaFeed(config.source.kafka, is_committed=is_committed)


def committed(brokers: str) -> int:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "rfa-watch"})
    (found,) = consumer.committed([TopicPartition("in", 0)], PATIENCE)
    consumer.close()
    return found.offset


@pytest.mark.parametrize("has_transactions", [True, False])
def test_offsets_are_stored_with_the_rows(brokers: str, tmp_path: Path, has_transactions: bool) -> None:
    # Another spelling of the same broker: the sink does not know that it is the same.
    to = brokers if has_transactions else f"{brokers},{brokers}"
    config = config_of(
        f'kafka]\nbrokers = "{brokers}"\ntopic = "in"',
        f'[sink.kafka]\nbrokers = "{to}"\ntopic = "out"\n[state]\nfile = "{tmp_path / "state"}"',
    )
    produce(brokers, 0, 5)
    rows = run(config, tmp_path / "state", until_index(4), feed_for(config, is_committed=has_transactions)).rows
    produce(brokers, 5, 8)
    rows += run(config, tmp_path / "state", until_index(7), feed_for(config, is_committed=has_transactions)).rows
    assert [row["index"] for row in rows] == list(range(8))
    assert written(brokers, 8) == list(range(8))
    if has_transactions:
        assert committed(brokers) == 8


@pytest.mark.parametrize("moment", ["before the rows are stored", "before the commit", "after the commit"])
def test_a_crash_between_the_store_and_the_commit(
    brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    # Nothing is sent before the commit, because these brokers do not hide what was aborted.
    config = config_of(
        f'kafka]\nbrokers = "{brokers}"\ntopic = "in"',
        f'[sink.kafka]\nbrokers = "{brokers}"\ntopic = "out"\n[state]\nfile = "{tmp_path / "state"}"',
    )
    monkeypatch.setattr("rfa.library.watch.kafka._LINGER_MS", 20_000)
    produce(brokers, 0, 5)
    run(config, tmp_path / "state", until_index(4), feed_for(config, is_committed=True))
    produce(brokers, 5, 8)
    confirm = KafkaRows.confirm

    def crash(sink: Any, *arguments: Any) -> None:
        if moment == "after the commit":
            confirm(sink, *arguments)
        raise KeyError("crash")

    with monkeypatch.context() as patched:
        if moment == "before the rows are stored":
            patched.setattr(Store, "append", crash)
        else:
            patched.setattr(KafkaRows, "confirm", crash)
        patched.setattr(KafkaRows, "close", lambda sink: sink._producer.purge())
        run(config, tmp_path / "state", lambda watch, rows: False, feed_for(config, is_committed=True))
    assert committed(brokers) == (8 if moment == "after the commit" else 5)
    produce(brokers, 8, 9)
    rows = run(config, tmp_path / "state", until_index(8), feed_for(config, is_committed=True)).rows
    assert written(brokers, 9) == list(range(9)) and committed(brokers) == 9
    # What was stored is not read again, only written.
    assert [row["index"] for row in rows] == ([5, 6, 7, 8] if moment == "before the rows are stored" else [8])


def test_messages_before_the_first_start_are_history(brokers: str, tmp_path: Path) -> None:
    config = config_of(
        f'kafka]\nbrokers = "{brokers}"\ntopic = "in"\nreplay = "1h"', f'[state]\nfile = "{tmp_path / "state"}"'
    )
    produce(brokers, 0, 5)

    def is_read(watch: Watch, rows: Rows) -> bool:
        return watch.cursors.get("kafka:in") == {"0": 5}

    assert not run(config, tmp_path / "state", is_read, feed_for(config, is_committed=False)).rows
    produce(brokers, 5, 7)
    rows = run(config, tmp_path / "state", until_index(6), feed_for(config, is_committed=False)).rows
    assert [row["index"] for row in rows] == [5, 6]


def test_an_invalid_setting_is_an_error(tmp_path: Path) -> None:
    state = f'[state]\nfile = "{tmp_path / "state"}"'
    config = config_of('kafka]\nbrokers = "127.0.0.1:9"\ntopic = "in"\nclient = {"no.such" = 1}', state)
    with pytest.raises(ValueError, match=r"Kafka: No such configuration property: .no\.such."):
        feed_for(config, is_committed=False)
