"""Create the sinks of a configuration."""

from __future__ import annotations

from rfa.library.watch.config import Config
from rfa.library.watch.http_sinks import Alertmanager, RemoteWrite, Webhook
from rfa.library.watch.outbox import FolderRequests, RequestStorage
from rfa.library.watch.sink import JsonLines, Sink
from rfa.library.watch.store import Store


def has_transactions(config: Config) -> bool:
    """Return whether the outputs and the offsets of Kafka are committed in one transaction. This requires the same
    brokers for source and sink, and stored states."""
    source, sink = config.source.kafka, config.sink.kafka
    return source is not None and sink is not None and sink.brokers == source.brokers and config.state is not None


def make_sinks(config: Config, store: Store | None) -> list[Sink]:
    """Create the sinks of a configuration to which rows are written.

    Args:
        config: The configuration.
        store: Storage of the states. If it is in Redis, requests that wait for a server are also stored there.

    Raises:
        OSError: If a sink cannot be opened, for example because its server does not respond.
        ValueError: If an option of a sink is invalid.
    """

    def storage(sink: str) -> RequestStorage | None:
        folder = None if config.state is None else config.state.outbox_of(sink)
        if folder is not None:
            return FolderRequests(folder)
        return None if store is None else store.requests(sink)

    found: list[Sink] = []
    sinks = config.sink
    if sinks.stdout is not None:
        found.append(JsonLines(only_alarms=sinks.stdout.rows == "alarms"))
    if sinks.remote_write is not None:
        found.append(RemoteWrite(sinks.remote_write, storage("remote_write")))
    if sinks.alertmanager is not None:
        found.append(Alertmanager(sinks.alertmanager, config.step, storage("alertmanager")))
    if sinks.webhook is not None:
        found.append(Webhook(sinks.webhook, storage("webhook")))
    if sinks.kafka is not None:
        from rfa.library.watch.kafka import KafkaRows

        found.append(KafkaRows(sinks.kafka, config.source.kafka if has_transactions(config) else None))
    return found
