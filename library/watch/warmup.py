"""Read the history of queries whose series are pushed, by range queries to a server or from a file of messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from rfa.library.watch.config import Config
from rfa.library.watch.filters import QueryFilter, Samples
from rfa.library.watch.history import last_step, read_parts
from rfa.library.watch.prometheus import Prometheus, SourceError
from rfa.library.watch.pushed import Router, read_lines, read_messages

logger = logging.getLogger("rfa.watch")


def warm_up(config: Config, filters: Mapping[str, QueryFilter], now: float) -> tuple[dict[str, float], int]:
    """Filter the history of pushed queries without producing outputs.

    Args:
        config: The configuration.
        filters: Filter of each query.
        now: Current time, in seconds since 1970.

    Returns:
        The time up to which each query was read, and the number of rejected lines.

    Raises:
        OSError, ValueError: If the history cannot be read.
    """
    if config.warmup is None or not filters:
        return {}, 0
    cursors, refused = dict[str, float](), 0
    if config.warmup.prometheus is not None:
        source = Prometheus(config.warmup.prometheus)
        try:
            end = last_step(config, source, now)
            span = config.history_begin(end), end
            for name, one in filters.items():
                for to, samples in read_parts(source, one.query.expr, span, config.step):
                    _learn(one, samples, to, config.expire)
                cursors[name] = end
        except SourceError as error:
            raise ValueError(f"warmup: {error}") from None
    if config.warmup.file is not None:
        router = Router([one.query for one in filters.values()])
        for lines in read_lines(config.warmup.file):
            samples, count = read_messages(lines, now)
            refused += count
            for name, some in router.route(samples).items():
                last = min(max(float(one.times.max()) for one in some), now)
                cursors[name] = max(last, cursors.get(name, -math.inf))
                _learn(filters[name], some, cursors[name], config.expire)
    for name, one in filters.items():
        logger.info("query %s: read %d observations of %d series as history", name, one.observations, len(one.labels))
    return cursors, refused


def _learn(one: QueryFilter, samples: Sequence[Samples], until: float, expire: float) -> None:
    rows = one.admit(samples, until)
    rows.gone = one.expired(until - expire, rows)
    for _ in one.apply(rows, is_history=True):
        pass
