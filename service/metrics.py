"""Prometheus metrics of one process. `rfa.service.exposition` combines the metrics of all processes.

Metrics that also exist in vLLM have the same names, but the prefix of this server. The buckets of histograms start at
0.1 ms, because a recurrent step of a small model takes less than a millisecond. All labels have a limited set of
values, such as route templates, statuses and the names of loaded bundles.
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
    """Counters, gauges and histograms of a process.

    Attributes:
        engine: Number of this process. If set, every sample has it as the label `engine`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine: int | None = None
        self._gauges: dict[str, Gauge] = {}
        self._add_requests()
        self._add_texts()
        self._add_filters()
        self._add_forecasts()
        self.watch("process_resident_memory_bytes", "Resident memory of this process.", resident_memory_bytes)

    def _add_requests(self) -> None:
        counter, model_counter, histogram = self._counter, self._model_counter, self._histogram
        self.http_requests = counter(
            "http_requests", "Requests and WebSockets that have ended.", "route", "method", "status"
        )
        self.admission_rejections = counter(
            "admission_rejections", "Requests rejected before any work on them started.", "reason"
        )
        self.quota_refusals = counter("quota_refusals", "Requests and streams rejected by a quota.", "quota")
        self.corrupted_requests = model_counter(
            "corrupted_requests", "Requests in which an output of the model was not finite."
        )
        self.e2e_request_latency = histogram(
            "e2e_request_latency_seconds", "Time from the arrival of a request to its completion."
        )
        self.request_queue_time = histogram(
            "request_queue_time_seconds", "Time from the arrival of a request until its processing starts."
        )
        self.bundle_version = self._gauge(
            "bundle_version_info", "Always 1. The label is the version of the served bundles.", "version"
        )
        self.state_slots = self._gauge(
            "state_slots", "Pool slots for the states of streams and requests.", "model_name"
        )
        self.state_slots_used = self._gauge("state_slots_used", "Pool slots in use.", "model_name")
        self.connections_refused = counter(
            "connections_refused", "Connections that the server rejected or closed, by reason.", "reason"
        )
        self.process_restarts = counter("process_restarts", "Server processes that exited and were replaced.")
        self.siblings_unanswered = counter(
            "metrics_siblings_unanswered", "Server processes whose metrics are missing from this scrape."
        )

    def _add_texts(self) -> None:
        model_counter, histogram = self._model_counter, self._histogram
        self.request_success = model_counter("request_success", "Completed continuations.", "finished_reason")
        self.prompt_tokens = model_counter("prompt_tokens", "Prompt tokens of completed requests.")
        self.prefix_cache_queries = model_counter(
            "prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache."
        )
        self.prefix_cache_hits = model_counter(
            "prefix_cache_hits", "Prompt tokens that were found in the prefix cache."
        )
        self.generation_tokens = model_counter("generation_tokens", "Generated tokens.")
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "Time from the arrival of a request to its first token."
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Time between two consecutive tokens of a continuation."
        )
        self.request_prefill_time = histogram(
            "request_prefill_time_seconds", "Time to process the prompt of a request."
        )
        self.request_decode_time = histogram("request_decode_time_seconds", "Time to generate the tokens of a request.")
        self.iteration_rows = histogram(
            "iteration_rows", "Number of sequences in a decoding step.", buckets=(1, 2, 4, 8, 16, 32, 64, 128)
        )
        self.drift_tokens = model_counter(
            "decoder_drift_tokens",
            "Generated tokens that were decoded again to compare the attention and recurrent modes.",
            "decode",
        )
        self.drift_nats = model_counter(
            "decoder_drift_nats",
            "Sum of the KL divergences in nats between the modes at the compared tokens.",
            "decode",
        )
        self.drift_agreed = model_counter(
            "decoder_drift_agreed_tokens",
            "Compared tokens whose most probable token is the same in both modes.",
            "decode",
        )

    def _add_filters(self) -> None:
        model_counter = self._model_counter
        self.filter_step = self._histogram("filter_step_seconds", "Time to filter one observation.")
        self.filter_observations = model_counter("filter_observations", "Filtered observations.")
        self.filter_scored = model_counter(
            "filter_scored_observations", "Observations for which an anomaly score was computed."
        )
        self.filter_inside = model_counter(
            "filter_inside_observations",
            "Scored observations with an anomaly score of at most `level`. With a calibrated filter, the fraction of "
            "scored observations that are counted is `level`.",
            "level",
        )
        self.filter_series = model_counter(
            "filter_series", "Series in requests with several series, by outcome.", "outcome"
        )
        self.filter_alarm_observations = model_counter(
            "filter_alarm_observations", "Observations in requests with an alarm rate."
        )
        self.filter_alarms_expected = model_counter(
            "filter_alarms_expected", "Number of alarms that would be expected from the requested rates."
        )
        self.filter_alarms = model_counter("filter_alarms", "Observations that raised an alarm.")
        self.filter_warnings = model_counter("filter_warnings", "Replies and streams with the warning `code`.", "code")

    def _add_forecasts(self) -> None:
        model_counter = self._model_counter
        self.filter_forecast_observations = model_counter(
            "filter_forecast_observations", "Observations that were compared with their one-step forecast."
        )
        self.filter_weighted_nis = model_counter(
            "filter_weighted_nis",
            "Sum of weight × nis / components over the compared observations. With a calibrated filter, the mean is "
            "about 1.",
        )
        self.filter_forecast_scored = model_counter(
            "filter_forecast_scored_components",
            "Components of observations that were compared with their one-step forecast.",
        )
        self.filter_forecast_inside = model_counter(
            "filter_forecast_inside_components",
            "Components of observations inside their one-step interval. With a calibrated filter, the fraction of "
            "compared components that are counted is `level`.",
            "level",
        )
        self.filter_outliers = model_counter(
            "filter_outlier_observations", "Observations whose nis has a tail probability below 0.001."
        )
        self.filter_pit = model_counter(
            "filter_forecast_pit_components",
            "Components of observations by their quantile in the forecast distribution. `bin` is the upper edge of one "
            "of ten bins. With a calibrated filter, all bins have equal counts.",
            "bin",
        )
        self.filter_nis = model_counter(
            "filter_forecast_nis_observations",
            "Observations by weight × nis / components. `bin` is the upper edge of one of eight bins.",
            "bin",
        )

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is read during a scrape. A gauge with the same name is replaced.

        Args:
            name: Name without the prefix `rfa_`.
            read: Function that returns the value.
        """
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"rfa_{name}", description, registry=self.registry)
        self._gauges[name].set_function(read)

    def watch_reloads(self, read: Callable[[], Mapping[str, tuple[float, float]]]) -> None:
        """Add metrics with the number of reloads and the time of the last reload, by outcome.

        Args:
            read: Function that returns, for each outcome, the number of reloads and the time of the last one.
        """
        self.registry.register(_Reloads(read))

    def render(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        if self.engine is None:
            return generate_latest(self.registry)
        labelled = CollectorRegistry()
        labelled.register(_Labelled(self.registry, {"engine": str(self.engine)}))
        return generate_latest(labelled)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"rfa_{name}", description, labels, registry=self.registry)

    def _model_counter(self, name: str, description: str, *labels: str) -> Counter:
        return self._counter(name, description, "model_name", *labels)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(f"rfa_{name}", description, labels, registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...] = FAST_SECONDS) -> Histogram:
        return Histogram(f"rfa_{name}", description, ["model_name"], registry=self.registry, buckets=buckets)


class _Reloads(Collector):
    """Collector for reloads. The supervisor counts them, so all processes report the same values."""

    def __init__(self, read: Callable[[], Mapping[str, tuple[float, float]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        total = CounterMetricFamily(
            "rfa_reloads", "Reloads of the bundles. All processes report the same value.", labels=["outcome"]
        )
        last = GaugeMetricFamily(
            "rfa_last_reload_timestamp_seconds",
            "Unix time of the last reload with this outcome, or 0 if there was none.",
            labels=["outcome"],
        )
        for outcome, (count, ended) in self._read().items():
            total.add_metric([outcome], count)
            last.add_metric([outcome], ended)
        return iter((total, last))


class _Labelled(Collector):
    """Collector that adds labels to the samples of a registry."""

    def __init__(self, registry: CollectorRegistry, labels: dict[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            labelled = Metric(family.name, family.documentation, family.type, family.unit)
            labelled.samples = [sample._replace(labels={**sample.labels, **self._labels}) for sample in family.samples]
            yield labelled


def resident_memory_bytes() -> float:
    """Return the resident memory of this process in bytes, or NaN if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return float("nan")
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
