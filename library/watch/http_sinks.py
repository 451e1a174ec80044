"""Sinks that send HTTP requests: remote write, Alertmanager and webhooks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import orjson

from rfa.library.watch.config import Endpoint
from rfa.library.watch.exposition import output_labels, row_samples
from rfa.library.watch.filters import QueryFilter, Scored
from rfa.library.watch.outbox import Outbox, RequestStorage
from rfa.library.watch.sink import Sink, rows_as_documents

JSON: Final = {"Content-Type": "application/json"}
# An alert ends after this number of steps, and not before this number of seconds, unless it is sent again. The margin
# allows for values that arrive late.
_ALERT_STEPS: Final = 5
_ALERT_SECONDS: Final = 300.0


class OutboxSink(Sink):
    """Base class of sinks that send their requests through an outbox."""

    outbox: Outbox

    def flush(self) -> None:
        self.outbox.flush()

    def close(self) -> None:
        self.outbox.close()


class RemoteWrite(OutboxSink):
    """Sink that writes the outputs of rows as time series to a server, by remote write."""

    def __init__(self, endpoint: Endpoint, storage: RequestStorage | None = None) -> None:
        self.outbox = Outbox("remote_write", endpoint, storage)

    def write(self, one: QueryFilter, scored: Scored) -> None:
        from rfa.library.watch.wire import HEADERS, write_request

        if len(scored.slots):
            samples = row_samples(one, scored)
            self.outbox.send("", write_request(samples), HEADERS)


class Webhook(OutboxSink):
    """Sink that sends a POST request with the JSON `{"events": [...]}` when incidents start or end. An event is a row
    with a `status`."""

    def __init__(self, endpoint: Endpoint, storage: RequestStorage | None = None) -> None:
        self.outbox = Outbox("webhook", endpoint, storage)

    def write(self, one: QueryFilter, scored: Scored) -> None:
        chosen = np.flatnonzero(_has_begun(scored) | _has_ended(scored))
        if len(chosen):
            rows = rows_as_documents(one, scored.select(chosen))
            events = [{"status": "firing" if row["incident"] else "resolved", **row} for row in rows]
            self.outbox.send("", orjson.dumps({"events": events}), JSON)


class Alertmanager(OutboxSink):
    """Sink that sends the open incidents to Alertmanager as alerts at each step. Alertmanager resolves alerts that are
    no longer sent."""

    def __init__(self, endpoint: Endpoint, step: float, storage: RequestStorage | None = None) -> None:
        self.outbox = Outbox("alertmanager", endpoint, storage)
        self._lasts = max(_ALERT_STEPS * step, _ALERT_SECONDS)

    def write(self, one: QueryFilter, scored: Scored) -> None:
        rows = np.flatnonzero((scored.incident > 0) | _has_ended(scored))
        if len(rows):
            alerts = [self._alert(one, scored, k) for k in rows.tolist()]
            self.outbox.send("/api/v2/alerts", orjson.dumps(alerts), JSON)

    def _alert(self, one: QueryFilter, scored: Scored, k: int) -> dict[str, Any]:
        t, slot = float(scored.times[k]), int(scored.slots[k])
        labels = {"alertname": "RfaIncident", **output_labels(one.query.name, one.labels[slot])}
        value, mean, lower, upper = (getattr(scored, name)[k] for name in ("values", "mean", "lower", "upper"))
        return {
            "labels": labels,
            "annotations": {"summary": f"{one.query.name} is unusual: {value:.6g}, expected {lower:.6g} to {upper:.6g}",
                            "expected": f"{mean:.6g}"},
            "startsAt": _iso(scored.began[k]),
            "endsAt": _iso(t + self._lasts if scored.incident[k] > 0 else t),
        }  # fmt: skip


def _has_begun(scored: Scored) -> np.ndarray:
    found: np.ndarray = (scored.incident > 0) & (scored.incident != scored.incident_before)
    return found


def _has_ended(scored: Scored) -> np.ndarray:
    found: np.ndarray = (scored.incident == 0) & (scored.incident_before > 0)
    return found


def _iso(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).isoformat().replace("+00:00", "Z")
