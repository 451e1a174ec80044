"""Prometheus metrics of one process, in a registry of its own; `rfa.service.exposition` puts processes together.

Names are vLLM's with our prefix where the meaning is the same. Buckets begin below a millisecond: a recurrent step of
a small model takes less. Labels are fixed sets: route templates, statuses and the names of loaded bundles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

FAST_SECONDS: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters, gauges and histograms, by what they measure.

    `engine`, once set, is a label of every sample: the number of this process among those of the server.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine: int | None = None
        self._gauges: dict[str, Gauge] = {}
        self.http_requests = self._counter("http_requests", "Answered requests.", ["route", "method", "status"])
        self.request_success = self._counter(
            "request_success", "Finished generations.", ["model_name", "finished_reason"]
        )
        self.admission_rejections = self._counter("admission_rejections", "Requests refused before work.", ["reason"])
        self.quota_refusals = self._counter(
            "quota_refusals", "Requests and streams beyond a quota of their client.", ["quota"]
        )
        self.corrupted_requests = self._counter(
            "corrupted_requests", "Requests ended by a non-finite model output.", ["model_name"]
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens processed.", ["model_name"])
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.", ["model_name"])
        self.drift_tokens = self._counter(
            "decoder_drift_tokens", "Generated tokens that were read again in both modes.", ["model_name", "decode"]
        )
        self.drift_nats = self._counter(
            "decoder_drift_nats", "Sum of their KL divergence from the other mode.", ["model_name", "decode"]
        )
        self.drift_agreed = self._counter(
            "decoder_drift_agreed_tokens", "Those whose most probable token is the other's.", ["model_name", "decode"]
        )
        self.filter_observations = self._counter("filter_observations", "Observations filtered.", ["model_name"])
        self.filter_scored = self._counter(
            "filter_scored_observations", "Observations that have an anomaly score.", ["model_name"]
        )
        self.filter_inside = self._counter(
            "filter_inside_observations",
            "Scored observations with a score of at most the level: where the filter is calibrated, just that share.",
            ["model_name", "level"],
        )
        self.filter_series = self._counter(
            "filter_series", "Series of requests of many, answered or failed.", ["model_name", "outcome"]
        )
        self.filter_alarm_observations = self._counter(
            "filter_alarm_observations", "Observations for which alarms were asked for.", ["model_name"]
        )
        self.filter_alarms_expected = self._counter(
            "filter_alarms_expected", "Alarms that there should be among them, by their rates.", ["model_name"]
        )
        self.filter_alarms = self._counter("filter_alarms", "Alarms among them.", ["model_name"])
        self.filter_forecast_observations = self._counter(
            "filter_forecast_observations", "Observations that the one before them had forecast.", ["model_name"]
        )
        self.filter_weighted_nis = self._counter(
            "filter_weighted_nis", "Sum over them of weight × nis / components: about 1 each.", ["model_name"]
        )
        self.filter_forecast_scored = self._counter(
            "filter_forecast_scored_components", "Their components.", ["model_name"]
        )
        self.filter_forecast_inside = self._counter(
            "filter_forecast_inside_components",
            "Those inside their one-step forecast interval: where it is calibrated, the share of the level.",
            ["model_name", "level"],
        )
        self.filter_outliers = self._counter(
            "filter_outlier_observations",
            "Those whose nis is rarer than one in a thousand, if the filter is right.",
            ["model_name"],
        )
        self.filter_warnings = self._counter(
            "filter_warnings", "Replies and streams that warn of this.", ["model_name", "code"]
        )
        self.filter_pit = self._counter(
            "filter_forecast_pit_components",
            "Those at this place in their forecast distribution, by the upper edge of ten bins; even if it is right.",
            ["model_name", "bin"],
        )
        self.filter_nis = self._counter(
            "filter_forecast_nis_observations",
            "Forecast observations by weight × nis / components, by the upper edge of eight bins.",
            ["model_name", "bin"],
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", ["model_name"]
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a continuation.", ["model_name"]
        )
        self.e2e_request_latency = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the end.", ["model_name"]
        )
        self.request_queue_time = self._histogram(
            "request_queue_time_seconds", "From arrival to the first work.", ["model_name"]
        )
        self.request_prefill_time = self._histogram(
            "request_prefill_time_seconds", "Reading the prompt.", ["model_name"]
        )
        self.request_decode_time = self._histogram("request_decode_time_seconds", "Generating.", ["model_name"])
        self.filter_step = self._histogram(
            "filter_step_seconds", "Filtering, per observation of a quantum.", ["model_name"]
        )
        self.bundle_version = self._gauge(
            "bundle_version_info", "1 for the version of the bundles that new requests are answered with.", ["version"]
        )
        self.state_slots = self._gauge("state_slots", "Places for the state of streams and requests.", ["model_name"])
        self.state_slots_used = self._gauge("state_slots_used", "Those that have an owner.", ["model_name"])
        self.iteration_rows = self._histogram(
            "iteration_rows", "Sequences in one decode step.", ["model_name"], buckets=(1, 2, 4, 8, 16, 32, 64, 128)
        )
        self.connections_refused = self._counter(
            "connections_refused", "Connections that the server ended, by error code.", ["reason"]
        )
        self.process_restarts = self._counter("process_restarts", "Server processes that had to be replaced.", [])
        self.siblings_unanswered = self._counter(
            "metrics_siblings_unanswered", "Processes left out of an answer to a scrape.", []
        )
        self.watch("process_resident_memory_bytes", "Memory of this process that is in RAM.", resident_memory_bytes)

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """A gauge that is read when scraped; a second one of the name takes the place of the first."""
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"rfa_{name}", description, registry=self.registry)
        self._gauges[name].set_function(read)

    def watch_reloads(self, read: Callable[[], Mapping[str, tuple[float, float]]]) -> None:
        """Reloads by outcome, each with their number and the time of the last: read when scraped, of the server."""
        self.registry.register(_Reloads(read))

    def render(self) -> bytes:
        """The text exposition format."""
        if self.engine is None:
            return generate_latest(self.registry)
        labelled = CollectorRegistry()
        labelled.register(_Labelled(self.registry, {"engine": str(self.engine)}))
        return generate_latest(labelled)

    def _counter(self, name: str, description: str, labels: list[str]) -> Counter:
        return Counter(f"rfa_{name}", description, labels, registry=self.registry)

    def _gauge(self, name: str, description: str, labels: list[str]) -> Gauge:
        return Gauge(f"rfa_{name}", description, labels, registry=self.registry)

    def _histogram(
        self, name: str, description: str, labels: list[str], buckets: tuple[float, ...] = FAST_SECONDS
    ) -> Histogram:
        return Histogram(f"rfa_{name}", description, labels, registry=self.registry, buckets=buckets)


class _Reloads(Collector):
    """What the supervisor counts; every process tells the same."""

    def __init__(self, read: Callable[[], Mapping[str, tuple[float, float]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        total = CounterMetricFamily(
            "rfa_reloads", "Reloads of the bundles by all processes; each process tells the same.", labels=["outcome"]
        )
        last = GaugeMetricFamily(
            "rfa_last_reload_timestamp_seconds",
            "When the last one ended so, since 1970; 0 is never.",
            labels=["outcome"],
        )
        for outcome, (count, ended) in self._read().items():
            total.add_metric([outcome], count)
            last.add_metric([outcome], ended)
        return iter((total, last))


class _Labelled(Collector):
    """The samples of a registry with further labels."""

    def __init__(self, registry: CollectorRegistry, labels: dict[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            labelled = Metric(family.name, family.documentation, family.type, family.unit)
            labelled.samples = [sample._replace(labels={**sample.labels, **self._labels}) for sample in family.samples]
            yield labelled


def resident_memory_bytes() -> float:
    """Resident set of this process; NaN where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return float("nan")
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
