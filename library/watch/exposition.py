"""Format the latest outputs of each series and the metrics of the watch itself as text for Prometheus, for
`/metrics`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rfa.library.watch.filters import QueryFilter, Scored
from rfa.library.watch.selectors import NAME, Labels

# Labels that outputs add. An input label with such a name gets a prefix, as in Prometheus.
OWN_LABELS: Final = ("query", "metric", "horizon")
# Characters and positions that are not allowed in the name of a label in this format.
_BAD: Final = re.compile(r"^(?=[0-9])|[^a-zA-Z0-9_]")
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# For each output of a series, the name of the metric, its field, and its help text.
OUTPUTS: Final = (
    ("rfa_score", "score", "fraction of earlier values that are less unusual than the latest one, from 0 to 1"),
    ("rfa_alarm", "alarm", "1 if the latest value raised an alarm, otherwise 0"),
    ("rfa_incident", "incident", "1 during an incident, otherwise 0"),
    ("rfa_mean", "mean", "forecast of the latest value, computed from the values before it"),
    ("rfa_lower", "lower", "lower bound of the interval for the latest value"),
    ("rfa_upper", "upper", "upper bound of the interval for the latest value"),
)
FORECASTS: Final = ("rfa_forecast", "rfa_forecast_lower", "rfa_forecast_upper")


def output_labels(query: str, labels: Labels) -> dict[str, str]:
    """Return the labels for the outputs of a series. They are its labels with valid names, the name of the query as
    `query`, and the name of the metric as `metric`."""
    found = {"query": query}
    for name, value in labels:
        if name == NAME:
            found["metric"] = value
        else:
            found[_output_name(name)] = value
    return found


@functools.lru_cache(4_096)
def _output_name(name: str) -> str:
    valid = _BAD.sub("_", name)
    return f"exported_{valid}" if valid in OWN_LABELS else valid


def format_labels(labels: Mapping[str, str]) -> str:
    """Return labels as text without braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def output_samples(one: QueryFilter) -> Iterator[tuple[str, str, float, dict[str, str]]]:
    """Yield the metric name, type, value and labels of the latest outputs, grouped by metric."""
    if not one.latest:
        return
    series = [(slot, output_labels(one.query.name, labels)) for slot, labels in one.labels.items()]
    for name, field, _ in OUTPUTS:
        column = one.latest[field]
        for slot, labels in series:
            value = float(column[slot])
            if value == value:  # noqa: PLR0124
                yield name, "gauge", float(value > 0) if field == "incident" else value, labels
    alarms = one.pool.arrays["watch.alarms"]
    for slot, labels in series:
        yield "rfa_alarms_total", "counter", float(alarms[slot]), labels
    forecast = one.latest["forecast"]
    for h, seconds in enumerate(one.query.horizon):
        for k, name in enumerate(FORECASTS):
            for slot, labels in series:
                value = float(forecast[slot, h, k])
                if value == value:  # noqa: PLR0124
                    yield name, "gauge", value, {**labels, "horizon": _span(seconds)}


def row_samples(one: QueryFilter, scored: Scored) -> Iterator[tuple[dict[str, str], float, float]]:
    """Yield the labels, the time and the value of each output of the rows in `scored`. The labels include the metric
    name."""
    for k, slot in enumerate(scored.slots.tolist()):
        labels, t = output_labels(one.query.name, one.labels[slot]), float(scored.times[k])
        for name, field, _ in OUTPUTS:
            value = float(getattr(scored, field)[k])
            if value == value:  # noqa: PLR0124
                yield {NAME: name, **labels}, t, float(value > 0) if field == "incident" else value
        for seconds, numbers in zip(one.query.horizon, scored.forecast[k].tolist(), strict=True):
            for name, value in zip(FORECASTS, numbers, strict=True):
                if value == value:  # noqa: PLR0124
                    yield {NAME: name, **labels, "horizon": _span(seconds)}, t, value


def own_samples(filters: Iterable[QueryFilter]) -> Iterator[tuple[str, str, float, dict[str, str]]]:
    """Yield the metric name, type, value and labels of each metric of the watch itself."""
    for one in filters:
        labels = {"query": one.query.name}
        yield "rfa_watch_series", "gauge", len(one.labels), labels
        yield "rfa_watch_series_limit", "gauge", one.pool.capacity, labels
        yield "rfa_watch_state_bytes", "gauge", one.state_bytes, labels
        yield "rfa_watch_observations_total", "counter", one.observations, labels
        yield "rfa_watch_alarms_total", "counter", one.alarms, labels
        for reason, count in one.dropped.items():
            yield "rfa_watch_dropped_total", "counter", count, {**labels, "reason": reason}


def render(samples: Iterable[tuple[str, str, float, dict[str, str]]]) -> str:
    """Return samples as text in which the samples of each metric are grouped."""
    families: dict[str, list[str]] = {}
    helps = {name: text for name, _, text in OUTPUTS}
    for name, kind, value, labels in samples:
        if name not in families:
            text = [f"# HELP {name} {helps[name]}"] if name in helps else []
            families[name] = [*text, f"# TYPE {name} {kind}"]
        families[name].append(f"{name}{{{format_labels(labels)}}} {value!r}" if labels else f"{name} {value!r}")
    return "".join(f"{line}\n" for lines in families.values() for line in lines)
