"""Read the history of the series in a configuration."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from rfa.data.series import Series
from rfa.data.utc_offsets import UtcOffsets
from rfa.library.watch.config import Config, Query
from rfa.library.watch.filters import Samples
from rfa.library.watch.prometheus import MOST_POINTS, Prometheus, SourceError
from rfa.library.watch.pushed import is_counter_name
from rfa.library.watch.selectors import Labels
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION

Array = np.ndarray[Any, Any]
# Maximum number of points of a range query over all series, of one series in the first query, when the number of series
# is unknown, and of a complete history.
MOST_READ: Final = 1_000_000
FIRST_POINTS: Final = 100
MOST_KEPT: Final = 50_000_000


class QuerySource(Protocol):
    """Interface of a source that answers queries."""

    def range(self, expr: str, start: float, end: float, step: float) -> list[Samples]:
        """Return the values of a query at `start`, `start + step`, … up to `end`."""
        ...

    def usual_delay(self, step: float) -> float:
        """Return the delay in seconds after which the values of a time step are complete."""
        ...


def delay_of(config: Config, queries: QuerySource) -> float:
    """Return the delay in seconds between a time step and its query.

    Raises:
        SourceError: If the server does not respond.
    """
    return queries.usual_delay(config.step) if config.delay is None else config.delay


def last_step(config: Config, queries: QuerySource, now: float) -> float:
    """Return the last time step that can be queried.

    Raises:
        SourceError: If the server does not respond.
    """
    return math.floor((now - delay_of(config, queries)) / config.step) * config.step


class Recorded(NamedTuple):
    """A series of a query, with the values that `rfa watch` would have filtered."""

    query: Query
    labels: Labels
    series: Series


def recorded_series(config: Config, begin: float | None, end: float) -> Iterator[Recorded]:
    """Yield the series of all queries, at the time steps of a watch.

    Args:
        config: The configuration.
        begin, end: First and last time, in seconds since 1970. If `begin` is None, the period `history` of the
            configuration is used.

    Raises:
        ValueError: If the configuration does not contain `source.prometheus`.
        SourceError: If Prometheus does not respond, or the history is too long.
    """
    if config.source.prometheus is None:
        raise ValueError("a backtest requires source.prometheus in the configuration")
    prometheus, step = Prometheus(config.source.prometheus), config.step
    last = min(math.floor(end / step) * step, last_step(config, prometheus, time.time()))
    first = config.history_begin(last) if begin is None else math.ceil(begin / step) * step - step
    for query in config.query:
        is_counter = is_counter_query(query, prometheus)
        for labels, points in _read(prometheus, query.expr, (first, last), step).items():
            times, values = counter_rates(*points) if is_counter else points
            observed = np.where(np.abs(values) <= LARGEST_OBSERVATION, values, np.nan)
            if np.isnan(observed).all():
                continue
            offsets = UtcOffsets.of_zone(query.tz)
            yield Recorded(
                query, labels,
                Series(times, observed[:, None], (query.name,), "t", True, zone=query.tz, utc_offsets=offsets),
            )  # fmt: skip


def is_counter_query(query: Query, prometheus: Prometheus | None) -> bool:
    """Return whether the values of a query come from a counter.

    Raises:
        SourceError: If the type must be requested from the server, and the server does not respond. The type is not
            guessed, because the stored states would be lost if the guess were wrong.
    """
    if query.type != "auto":
        return query.type == "counter"
    selector = query.selector
    if selector is None:
        return False
    try:
        kind = None if prometheus is None else prometheus.type_of(selector)
    except SourceError as error:
        hint = 'set type = "gauge" or "counter" to start without the server'
        raise SourceError(f"query {query.name!r}: its type is unknown, because {error}; {hint}") from None
    # The metadata of OpenMetrics and of histograms have the name without the suffix.
    return is_counter_name(query) if kind is None else kind == "counter"


def counter_rates(times: Array, values: Array) -> tuple[Array, Array]:
    """Return the times and rates per second of a counter, from its second value on.

    If a counter has decreased, it is assumed that it was reset to 0 in between.
    """
    is_number = np.isfinite(values)
    times, values = times[is_number], values[is_number]
    rise = np.where(values[1:] < values[:-1], values[1:], np.diff(values))
    return times[1:], rise / np.diff(times)


def read_parts(
    queries: QuerySource, expr: str, span: tuple[float, float], step: float
) -> Iterator[tuple[float, list[Samples]]]:
    """Yield the values of a query at the time steps in the half-open interval `span`, which excludes its first time.
    Each item is an end time and the samples since the previous item.

    Raises:
        SourceError: If the server does not respond, or returns an error.
    """
    last, end = span
    points = FIRST_POINTS
    while last < end - step / 2:
        to = min(end, last + points * step)
        samples = queries.range(expr, last + step, to, step)
        yield to, samples
        last = to
        points = max(1, min(MOST_POINTS - 1, MOST_READ // max(1, len(samples))))


def _read(
    prometheus: Prometheus, expr: str, span: tuple[float, float], step: float
) -> dict[Labels, tuple[Array, Array]]:
    """Return the times and the values of each series that a query returns in a range."""
    parts: dict[Labels, list[tuple[Array, Array]]] = {}
    kept = 0
    for _, samples in read_parts(prometheus, expr, span, step):
        for one in samples:
            parts.setdefault(one.labels, []).append((one.times, one.values))
        kept += sum(len(one.times) for one in samples)
        if kept > MOST_KEPT:
            raise SourceError(f"query {expr!r} returns more than {MOST_KEPT:,} values; shorten the history")
    return {
        labels: (np.concatenate([times for times, _ in some]), np.concatenate([values for _, values in some]))
        for labels, some in parts.items()
    }
