"""The sinks that a configuration names."""

from __future__ import annotations

from pathlib import Path

from rfa.watch.config import Config
from rfa.watch.servers import Alertmanager, RemoteWrite, Webhook
from rfa.watch.sinks import JsonLines, Sink


def has_transactions(config: Config) -> bool:
    """Whether outputs and offsets of Kafka are transactions: from and to the same brokers, with stored states."""
    source, sink = config.source.kafka, config.sink.kafka
    return source is not None and sink is not None and sink.brokers == source.brokers and config.state is not None


def make_sinks(config: Config) -> list[Sink]:
    """The sinks of a configuration that rows are written to.

    Raises:
        OSError: one cannot be opened.
    """

    def folder(sink: str) -> Path | None:
        return None if config.state is None else config.state.outbox_of(sink)

    found: list[Sink] = []
    sinks = config.sink
    if sinks.stdout is not None:
        found.append(JsonLines(only_alarms=sinks.stdout.rows == "alarms"))
    if sinks.remote_write is not None:
        found.append(RemoteWrite(sinks.remote_write, folder("remote_write")))
    if sinks.alertmanager is not None:
        found.append(Alertmanager(sinks.alertmanager, config.step, folder("alertmanager")))
    if sinks.webhook is not None:
        found.append(Webhook(sinks.webhook, folder("webhook")))
    if sinks.kafka is not None:
        from rfa.watch.kafka import KafkaRows

        found.append(KafkaRows(sinks.kafka, config.source.kafka if has_transactions(config) else None))
    return found
