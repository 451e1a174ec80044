"""Write a configuration for the metrics of a Prometheus server, with `rfa watch init`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from rfa.library.watch.config import Endpoint
from rfa.library.watch.config_file import parse_config
from rfa.library.watch.prometheus import Prometheus, SourceError
from rfa.library.watch.selectors import parse_selector

MOST_CHOSEN: Final = 5
# Maximum number of series of a chosen query, and maximum number of metrics whose series are counted.
MOST_SERIES: Final = 200
MOST_COUNTED: Final = 40
STEPS: Final = (15, 30, 60, 300)
# Queries for common metrics, the most useful ones first.
TEMPLATES: Final = (
    ("http_requests_total", "requests", "sum by (job) (rate(http_requests_total[5m]))"),
    ("node_cpu_seconds_total", "cpu", '1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[5m]))'),
    ("node_load1", "load", "node_load1"),
    ("node_memory_MemAvailable_bytes", "memory_available", "node_memory_MemAvailable_bytes"),
    ("process_cpu_seconds_total", "process_cpu", "process_cpu_seconds_total"),
    ("process_resident_memory_bytes", "process_memory", "process_resident_memory_bytes"),
)
# Metrics that are not worth filtering: constants, times, buckets, and metrics about scraping.
_LEFT_OUT: Final = re.compile(
    r"(_info|_created|_bucket|_sum|_timestamp.*|_time_seconds|_start_time.*|_quantile)$|^(up|scrape_|go_|ALERTS|rfa_)"
)


class Choice(NamedTuple):
    """A query that was chosen for the new configuration."""

    name: str
    expr: str
    type: str
    series: int


def choose_queries(prometheus: Prometheus, now: float) -> list[Choice]:
    """Choose up to MOST_CHOSEN queries that return series. Counters are preferred to gauges.

    Raises:
        SourceError: If the server does not respond, or has no suitable metric.
    """
    names, types = prometheus.names(), prometheus.metadata()
    found: list[Choice] = []
    for counted, (name, expr, kind) in enumerate(_candidates(names, types)):
        if len(found) == MOST_CHOSEN or counted == MOST_COUNTED:
            break
        series = prometheus.count(expr, now)
        if 0 < series <= MOST_SERIES:
            taken = {one.name for one in found}
            free = next(each for each in (name, *(f"{name[:60]}_{k}" for k in range(2, 9))) if each not in taken)
            found.append(Choice(free, expr, kind, series))
    if not found:
        raise SourceError(
            f"no metric with 1 to {MOST_SERIES} series and changing values was found among up to {MOST_COUNTED} of "
            f"{len(names)} metrics; write the queries by hand"
        )
    return found


def _candidates(names: list[str], types: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    templates = [(metric, name, expr) for metric, name, expr in TEMPLATES if metric in names]
    for metric, name, expr in templates:
        yield name, expr, _type_of(metric, types) if metric == expr else "gauge"
    others = [name for name in names if not _LEFT_OUT.search(name) and name not in {one for one, _, _ in templates}]
    kinds = {name: _type_of(name, types) for name in others}
    for kind in ("counter", "gauge"):
        for name in others:
            if kinds[name] == kind:
                expr = name if parse_selector(name) is not None else f"{{__name__={json.dumps(name)}}}"
                yield re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64], expr, kind


def _type_of(metric: str, types: Mapping[str, str]) -> str:
    """Return the type of a metric, from the metadata of the server or from its name."""
    named = "counter" if metric.endswith(("_total", "_count")) else "gauge"
    return {"counter": "counter", "gauge": "gauge"}.get(types.get(metric, ""), named)


def usual_step(prometheus: Prometheus, now: float) -> int:
    """Return a time step that is about as long as the median scrape interval, or longer. Return 60 if the interval is
    unknown."""
    try:
        scrapes = prometheus.latest("up[10m]", now)
    except SourceError:
        return 60
    lags = np.concatenate([np.diff(one.times) for one in scrapes]) if scrapes else np.empty(0)
    if not len(lags):
        return 60
    interval = float(np.median(lags))
    return next((step for step in STEPS if step >= 0.9 * interval), STEPS[-1])


def write_config(url: str) -> str:
    """Return the text of a configuration for a running Prometheus server.

    Raises:
        SourceError: If the server does not respond, or has no suitable metric.
        ValueError: If `url` is not a valid URL.
    """
    endpoint, now = Endpoint(url=url), time.time()
    prometheus = Prometheus(endpoint)
    choices, step = choose_queries(prometheus, now), usual_step(prometheus, now)
    lines = [
        f'step = "{step}s"',
        'history = "1d"    # the filters learn from it at the first start',
        "",
        "[source.prometheus]",
        f"url = {json.dumps(endpoint.url)}",
        "",
        "[sink.metrics]",
        'listen = "127.0.0.1:9464"    # let Prometheus scrape it',
        "",
        "[sink.stdout]",
        'rows = "alarms"',
        "",
        "[state]",
        'file = "watch.state"',
    ]
    for one in choices:
        lines += [
            "",
            f"[[query]]    # {one.series} series now",
            f"name = {json.dumps(one.name)}",
            f"expr = {json.dumps(one.expr)}",
            f'type = "{one.type}"',
            'alarm = {rate = "1/week"}    # of each series',
        ]
    text = "\n".join(lines) + "\n"
    parse_config(text, "the new file")
    return text
