"""Sinks that send requests to other servers, in a thread of their own, so that a slow server delays no step."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import orjson

from rfa.watch.config import Endpoint
from rfa.watch.exposition import output_labels, row_samples
from rfa.watch.filters import QueryFilter, Scored
from rfa.watch.prometheus import Requests, SourceError
from rfa.watch.sinks import Sink, rows_as_documents

logger = logging.getLogger("rfa.watch")
# Requests that wait, of which the oldest are dropped.
MOST_WAITING: Final = 200
MOST_WAITING_BYTES: Final = 64 << 20
LONGEST_PAUSE: Final = 30.0
CLOSING_SECONDS: Final = 5.0
JSON: Final = {"Content-Type": "application/json"}


class Outbox:
    """Sends requests in order, each until the server takes it.

    Attributes:
        dropped: requests that did not fit any more, or that the server refused for good.
    """

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name, self.dropped, self.sent = name, 0, 0
        self._requests = Requests(endpoint)
        self._waiting: deque[tuple[str, bytes, Mapping[str, str]]] = deque()
        self._bytes, self._is_closed = 0, False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)
        self._thread.start()

    def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request later."""
        with self._change:
            self._waiting.append((path, body, headers))
            self._bytes += len(body)
            while len(self._waiting) > MOST_WAITING or (self._bytes > MOST_WAITING_BYTES and len(self._waiting) > 1):
                self._bytes -= len(self._waiting.popleft()[1])
                self.dropped += 1
            self._change.notify_all()

    def close(self) -> None:
        """Send what waits, for some seconds."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()
        self._thread.join(CLOSING_SECONDS)

    def _run(self) -> None:
        pause = 1.0
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                request = self._waiting[0]
            try:
                self._requests.send(request[0], request[1], request[2])
                done, pause = True, 1.0
                self.sent += 1
            except SourceError as error:
                logger.warning("sink %s: %s", self.name, error)
                done = self._is_closed or error.is_final
                self.dropped += done
            with self._change:
                if done and self._waiting and self._waiting[0] is request:
                    self._waiting.popleft()
                    self._bytes -= len(request[1])
                elif not done:
                    self._change.wait_for(lambda: self._is_closed, pause)
                    pause = min(2 * pause, LONGEST_PAUSE)


class RemoteWrite(Sink):
    """Outputs of rows as series of a server with remote write."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.outbox = Outbox("remote_write", endpoint)

    def write(self, one: QueryFilter, scored: Scored) -> None:
        """See `Sink`."""
        from rfa.watch.wire import HEADERS, write_request

        if len(scored.slots):
            samples = row_samples(one, scored)
            self.outbox.send("", write_request(samples), HEADERS)

    def close(self) -> None:
        """See `Sink`."""
        self.outbox.close()


class Webhook(Sink):
    """A POST of JSON for the rows at which incidents begin and end: `{"events": [...]}`, rows with a `status`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.outbox, self._open = Outbox("webhook", endpoint), dict[tuple[str, int], int]()

    def write(self, one: QueryFilter, scored: Scored) -> None:
        """See `Sink`."""
        chosen, status = _transitions(one, scored, self._open)
        if len(chosen):
            rows = rows_as_documents(one, scored.select(chosen))
            events = [{"status": text, **row} for text, row in zip(status, rows, strict=True)]
            self.outbox.send("", orjson.dumps({"events": events}), JSON)

    def close(self) -> None:
        """See `Sink`."""
        self.outbox.close()


class Alertmanager(Sink):
    """Open incidents as alerts, sent at each step; one that is not sent again ends by itself."""

    def __init__(self, endpoint: Endpoint, step: float) -> None:
        self.outbox, self._step = Outbox("alertmanager", endpoint), step
        self._open, self._begins = dict[tuple[str, int], int](), dict[tuple[str, int], float]()

    def write(self, one: QueryFilter, scored: Scored) -> None:
        """See `Sink`."""
        chosen, status = _transitions(one, scored, self._open)
        ended = dict(zip(chosen.tolist(), status, strict=True))
        rows = np.union1d(chosen, np.flatnonzero(scored.incident > 0))
        if len(rows):
            alerts = [self._alert(one, scored, int(k), ended.get(int(k)) == "resolved") for k in rows]
            self.outbox.send("/api/v2/alerts", orjson.dumps(alerts), JSON)

    def _alert(self, one: QueryFilter, scored: Scored, k: int, is_resolved: bool) -> dict[str, Any]:
        key, t = (one.query.name, int(scored.slots[k])), float(scored.times[k])
        begin = self._begins.pop(key, t) if is_resolved else self._begins.setdefault(key, t)
        labels = {"alertname": "RfaIncident", **output_labels(one.query.name, one.labels[key[1]])}
        value, mean, lower, upper = (getattr(scored, name)[k] for name in ("values", "mean", "lower", "upper"))
        return {
            "labels": labels,
            "annotations": {"summary": f"{one.query.name} is unusual: {value:.6g}, expected {lower:.6g} to {upper:.6g}",
                            "expected": f"{mean:.6g}"},
            "startsAt": _iso(begin),
            "endsAt": _iso(t if is_resolved else t + 5 * self._step),
        }  # fmt: skip

    def close(self) -> None:
        """See `Sink`."""
        self.outbox.close()


def _transitions(
    one: QueryFilter, scored: Scored, open_incidents: dict[tuple[str, int], int]
) -> tuple[np.ndarray, Sequence[str]]:
    """The rows at which incidents begin or end, and "firing" or "resolved" of each."""
    chosen, status = [], []
    for k, (slot, incident) in enumerate(zip(scored.slots.tolist(), scored.incident.tolist(), strict=True)):
        key = (one.query.name, slot)
        before = open_incidents.get(key, 0)
        if incident and incident != before:
            open_incidents[key] = incident
            chosen.append(k)
            status.append("firing")
        elif before and not incident:
            del open_incidents[key]
            chosen.append(k)
            status.append("resolved")
    return np.array(chosen, np.int64), status


def _iso(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).isoformat().replace("+00:00", "Z")
