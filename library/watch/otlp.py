"""Source of OpenTelemetry metrics over HTTP, in protobuf or JSON.

Names and labels are converted as in Prometheus. Dots become underscores, the resource's `service.name` and
`service.instance.id` become `job` and `instance`, and a monotonic cumulative sum gets the suffix `_total`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from rfa.library.watch.filters import Samples
from rfa.library.watch.pushed import named
from rfa.library.watch.wire import MOST_DECOMPRESSED, WireError

_CUMULATIVE: Final = 2
_BAD: Final = re.compile(r"[^a-zA-Z0-9_]")
_RESOURCE: Final = {"service.name": "job", "service.instance.id": "instance"}


def read_metrics(body: bytes, headers: Mapping[str, str]) -> list[Samples]:
    """Return the gauges and sums in a request, and the count and sum of each histogram.

    Raises:
        WireError: If the body is not a valid request.
    """
    if headers.get("content-encoding", "identity") == "gzip":
        body = _inflate(body)
    try:
        if headers.get("content-type", "").startswith("application/json"):
            request = json_format.Parse(body, ExportMetricsServiceRequest(), ignore_unknown_fields=True)
        else:
            request = ExportMetricsServiceRequest.FromString(body)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError):
        raise WireError("the body is not an ExportMetricsServiceRequest") from None
    found: dict[Any, list[tuple[float, float]]] = {}
    for resource in request.resource_metrics:
        shared = {_RESOURCE[one.key]: _text(one.value) for one in resource.resource.attributes if one.key in _RESOURCE}
        for scope in resource.scope_metrics:
            for name, points in _points(scope.metrics):
                for attributes, nanoseconds, value in points:
                    labels = {**shared, **{_BAD.sub("_", one.key): _text(one.value) for one in attributes}}
                    found.setdefault(named(name, labels), []).append((nanoseconds / 1e9, value))
    return [Samples(labels, *np.array(sorted(points)).T) for labels, points in found.items()]


def _points(metrics: Iterable[Any]) -> Iterator[tuple[str, Iterator[tuple[Any, int, float]]]]:
    for metric in metrics:
        name, kind = _BAD.sub("_", metric.name), metric.WhichOneof("data")
        if kind in ("gauge", "sum"):
            data = getattr(metric, kind)
            is_counter = kind == "sum" and data.is_monotonic and data.aggregation_temporality == _CUMULATIVE
            suffix = "_total" if is_counter and not name.endswith("_total") else ""
            yield name + suffix, ((one.attributes, one.time_unix_nano, _number(one)) for one in data.data_points)
        elif kind == "histogram":
            points = metric.histogram.data_points
            yield f"{name}_count", ((one.attributes, one.time_unix_nano, float(one.count)) for one in points)
            yield f"{name}_sum", ((one.attributes, one.time_unix_nano, one.sum) for one in points)


def _number(point: Any) -> float:
    return point.as_double if point.WhichOneof("value") == "as_double" else float(point.as_int)


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    found = "" if kind is None else getattr(value, kind)
    return str(found).lower() if isinstance(found, bool) else str(found)


def _inflate(body: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        found = unpacker.decompress(body, MOST_DECOMPRESSED)
    except zlib.error:
        raise WireError("the body is not valid gzip") from None
    if unpacker.unconsumed_tail:
        raise WireError(f"the uncompressed body is larger than {MOST_DECOMPRESSED:,} bytes")
    return found
