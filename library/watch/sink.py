"""Interface of a sink, which receives the outputs of rows and the incidents, and the sink that prints them."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
import orjson

from rfa.library.watch.filters import QueryFilter, Scored
from rfa.runtime.uncertainty.alarms import RULE_NAMES
from rfa.runtime.uncertainty.rules import FIRST_ALARM, PROBABILITY, RAISED_BY


class Sink(ABC):
    """Interface of a sink, which receives the outputs of new rows.

    Attributes:
        outbox: Queue that sends the requests of this sink. None if it sends no requests.
    """

    outbox: Any = None

    @abstractmethod
    def write(self, one: QueryFilter, scored: Scored) -> None:
        """Write the outputs of a batch of rows of a query."""

    def flush(self) -> None:
        """Wait until the written outputs would survive a crash of this process, if the sink can determine this."""
        return

    def is_committed(self, cursors: Mapping[str, Any]) -> bool:
        """Return whether the outputs of the rows that were stored together with the given cursors are committed, so
        that they need not be written again."""
        return True

    def confirm(self, cursors: Mapping[str, Any]) -> None:
        """Make the written outputs visible. This is called after the rows and the positions of the sources are
        stored."""
        return

    def close(self) -> None:
        """Send the remaining outputs, and close the sink."""
        return


def rows_as_documents(one: QueryFilter, scored: Scored) -> list[dict[str, Any]]:
    """Return rows as dictionaries of JSON types, with None for missing numbers."""
    columns = {
        name: [_number(value) for value in getattr(scored, name).tolist()]
        for name in ("score", "mean", "lower", "upper")
    }
    documents = []
    for k, slot in enumerate(scored.slots.tolist()):
        document: dict[str, Any] = {
            "query": one.query.name,
            "labels": dict(one.labels[slot]),
            "t": float(scored.times[k]),
            "index": int(scored.index[k]),
            "value": _number(scored.values[k]),
            **{name: column[k] for name, column in columns.items()},
            "alarm": bool(scored.alarm[k] == 1),
            "incident": bool(scored.incident[k] > 0),
        }
        if scored.alarm[k] == 1:
            document["rule"] = RULE_NAMES[int(scored.raised[k, RAISED_BY])]
            document["probability"] = float(scored.raised[k, PROBABILITY])
            document["incident_index"] = int(scored.raised[k, FIRST_ALARM])
        if one.query.horizon:
            document["forecast"] = [
                {"horizon": seconds, **dict(zip(("mean", "lower", "upper"), map(_number, numbers), strict=True))}
                for seconds, numbers in zip(one.query.horizon, scored.forecast[k], strict=True)
            ]
        documents.append(document)
    return documents


def _number(value: Any) -> float | None:
    return None if value != value else float(value)  # noqa: PLR0124


class JsonLines(Sink):
    """Sink that writes one JSON line for each row.

    Args:
        only_alarms: Whether to write only the rows with an alarm.
        out: Binary stream to write to. The default is standard output.
    """

    def __init__(self, *, only_alarms: bool, out: IO[bytes] | None = None) -> None:
        self._only_alarms, self._out = only_alarms, out or sys.stdout.buffer

    def write(self, one: QueryFilter, scored: Scored) -> None:
        chosen = scored.select(np.flatnonzero(scored.alarm == 1)) if self._only_alarms else scored
        self._write(rows_as_documents(one, chosen))

    def _write(self, documents: Sequence[Any]) -> None:
        self._out.write(b"".join(orjson.dumps(document) + b"\n" for document in documents))
        self._out.flush()
