"""Read observations that other programs push as JSON messages, and assign them to queries.

A message contains one observation: `{"labels": {"__name__": "load", "host": "a"}, "t": 1767614400, "value": 0.5}`. t is
in seconds since 1970; the default is the current time. If value is null, it is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from rfa.library.watch.config import Query
from rfa.library.watch.filters import Samples
from rfa.library.watch.selectors import NAME, Labels, labels_of
from rfa.runtime.uncertainty.input import LARGEST_TIME

# Maximum number of labels of a series, and maximum size of their names and values. Maximum size of all series whose
# queries are cached, and the overhead of one series in this sum.
MOST_LABELS: Final = 64
MOST_LABEL_BYTES: Final = 8_192
MOST_REMEMBERED_BYTES: Final = 256 << 20
_SERIES_BYTES: Final = 1_000
LONGEST_LINE: Final = 1 << 20
_LINES: Final = 5_000
_COUNTERS: Final = ("_total", "_count", "_bucket")


class Router:
    """Assigns series to the queries whose selectors match them."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self._selectors = [(query.name, selector) for query in queries if (selector := query.selector) is not None]
        self._names: dict[Labels, tuple[str, ...]] = {}
        self._bytes = 0

    def route(self, samples: Iterable[Samples]) -> dict[str, list[Samples]]:
        """Return a mapping from names of queries to the samples that they select. Samples that no query selects are
        left out."""
        found: dict[str, list[Samples]] = {}
        for one in samples:
            names = self._names.get(one.labels)
            if names is None:
                names = self._match(one.labels)
            for name in names:
                found.setdefault(name, []).append(one)
        return found

    def _match(self, labels: Labels) -> tuple[str, ...]:
        size = sum(len(name) + len(value) for name, value in labels)
        if len(labels) > MOST_LABELS or size > MOST_LABEL_BYTES:
            return ()
        self._bytes += size + _SERIES_BYTES
        if self._bytes > MOST_REMEMBERED_BYTES:
            self._names.clear()
            self._bytes = size + _SERIES_BYTES
        names = tuple(name for name, selector in self._selectors if selector.matches(labels))
        self._names[labels] = names
        return names


def is_counter_name(query: Query) -> bool:
    """Return whether the name of a pushed metric indicates a counter."""
    selector = query.selector
    return selector is not None and (selector.name or "").endswith(_COUNTERS)


def read_messages(messages: Iterable[bytes], now: float) -> tuple[list[Samples], int]:
    """Parse messages. Return their observations, and the number of invalid messages."""
    found, refused = [], 0
    for message in messages:
        try:
            found.append(_read(orjson.loads(message), now))
        except (ValueError, TypeError, KeyError, AttributeError):
            refused += 1
    return found, refused


def _read(document: Mapping[str, Any], now: float) -> Samples:
    labels, t, value = document["labels"], document.get("t"), document["value"]
    if not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise TypeError
    if isinstance(t, bool) or isinstance(value, bool):
        raise TypeError
    time = now if t is None else float(t)
    if not abs(time) <= LARGEST_TIME:
        raise ValueError
    number = np.nan if value is None else float(value)
    return Samples(labels_of(labels), np.array([time]), np.array([number]))


def read_lines(path: Path) -> Iterator[list[bytes]]:
    """Read the messages of a file, and yield them in batches.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If a line is too long.
    """
    with path.open("rb") as file:
        found: list[bytes] = []
        while line := file.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise ValueError(f"{path} contains a line longer than {LONGEST_LINE:,} bytes")
            if line.strip():
                found.append(line)
            if len(found) == _LINES:
                yield found
                found = []
        yield found


def named(name: str, labels: Mapping[str, str]) -> Labels:
    """Return labels that include the name of the metric as `__name__`."""
    return labels_of({**labels, NAME: name})
