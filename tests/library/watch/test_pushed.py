"""Sources that are pushed to."""

from __future__ import annotations

import gzip
import json
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

import cramjam
import numpy as np
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import rfa
from rfa.library.watch import wire
from rfa.library.watch.config_file import ConfigError
from rfa.library.watch.feeds import StdinFeed
from rfa.library.watch.http_server import HttpServer
from rfa.library.watch.storage import FileStorage
from rfa.library.watch.store import Store
from rfa.library.watch.watch import Watch
from tests.library.watch.pushing import RECEIVER, Rows, config_of, listening, load, sent
from tests.library.watch.running import START, STEP
from tests.waiting import PATIENCE


def test_remote_write_gives_the_rows_of_a_stream(tmp_path: Path) -> None:
    store = Store(FileStorage(tmp_path / "state"))
    with listening(config_of(RECEIVER), store) as (watch, rows, url):
        for k in range(6):
            request = [load("a", k), load("b", k), ({"__name__": "other"}, START, 1.0)]
            assert sent(f"{url}/api/v1/write", wire.write_request(request)) == (204, b"")
        assert sent(f"{url}/api/v1/write", wire.write_request([load("a", 5)])) == (204, b"")  # sent again
        assert watch.filters["q"].dropped["late"] == 1 and len(watch.filters["q"].labels) == 2
    stream = rfa.Stream(model="auto", alarm="1/day")
    expected = [stream.update(t, y).anomaly for _, t, y in (load("a", k) for k in range(6))]
    assert [row["score"] for row in rows.rows if row["labels"]["host"] == "a"] == expected
    again = Watch(config_of(RECEIVER), Store(FileStorage(tmp_path / "state")))
    found = Rows()
    again.sinks.append(found)
    again.push(wire.read_write_request(wire.write_request([load("a", 5), load("a", 6)])))
    assert [row["index"] for row in found.rows] == [6]
    again.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not a valid snappy block"),
        (b"\xff" * 20, "not a valid snappy block"),
        (b"\xff\xff\xff\xff\x0f" + b"x" * 50, "exceeds the limit of 67,108,864"),
        (cramjam.snappy.compress_raw(b"\xff\xff not protobuf"), "not a WriteRequest"),
        (bytes(cramjam.snappy.compress_raw(b"abc"))[:-1], "not a valid snappy block"),
    ],
)
def test_what_is_no_remote_write_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(wire.WireError, match=message):
        wire.read_write_request(bytes(body))
    with listening(config_of(RECEIVER)) as (_, _, url):
        assert sent(f"{url}/api/v1/write", bytes(body))[0] == 400
        assert sent(f"{url}/api/v1/read", b"")[0] == 404
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(f"{url}/api/v1/write", timeout=PATIENCE)


def test_markers_of_ended_series_are_no_values() -> None:
    stale = np.array([0x7FF0000000000002], np.uint64).view(np.float64)[0]
    request = wire.write_request([({"__name__": "load"}, 1.5, 2.0), ({"__name__": "gone"}, 1.5, stale)])
    (only,) = wire.read_write_request(request)
    assert (only.labels, only.times.tolist(), only.values.tolist()) == ((("__name__", "load"),), [1.5], [2.0])


OTLP = {
    "resourceMetrics": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "api"}}]},
        "scopeMetrics": [{"metrics": [
            {"name": "load.now", "gauge": {"dataPoints": [
                {"timeUnixNano": "1700000000000000000", "asDouble": 1.5,
                 "attributes": [{"key": "is.hot", "value": {"boolValue": True}}]}]}},
            {"name": "requests", "sum": {"isMonotonic": True, "aggregationTemporality": 2, "dataPoints": [
                {"timeUnixNano": str(1_700_000_000 + 60 * k) + "000000000", "asInt": str(120 * k)} for k in range(3)]}},
            {"name": "latency", "histogram": {"dataPoints": [
                {"timeUnixNano": "1700000000000000000", "count": "7", "sum": 3.5}]}},
        ]}],
    }]
}  # fmt: skip


@pytest.mark.parametrize("kind", ["json", "protobuf", "gzip"])
def test_opentelemetry_metrics(kind: str) -> None:
    query = 'name = "requests"\nexpr = "requests_total"\n[[query]]\nname = "load"\nexpr = "load_now"'
    body = json.dumps(OTLP).encode()
    headers = {"Content_Type": "application/json"}
    if kind != "json":
        body = json_format.Parse(body, ExportMetricsServiceRequest()).SerializeToString()
        headers = {"Content_Type": "application/x-protobuf"}
    if kind == "gzip":
        body, headers = gzip.compress(body), {**headers, "Content_Encoding": "gzip"}
    with listening(config_of('otlp]\nlisten = "127.0.0.1:0"', query=query)) as (_, rows, url):
        assert sent(f"{url}/v1/metrics", body, **headers)[0] == 200
        assert sent(f"{url}/v1/metrics", b"\xff" + body, **headers)[0] == 400
        found = {row["labels"]["__name__"]: row for row in rows.rows}
    assert found["requests_total"]["value"] == 2.0 and found["requests_total"]["labels"]["job"] == "api"
    assert found["load_now"]["value"] == 1.5 and found["load_now"]["labels"]["is_hot"] == "true"


def test_names_of_labels_cannot_break_the_exposition() -> None:
    watch = Watch(config_of("stdin]"))
    names = {"a.b": "1", "0": "2", "query": "3", 'c="1"} 5\nrfa_alarm{d': "4\n"}
    labels = {"__name__": "load", **names}
    for k in range(2):
        watch.push_messages([json.dumps({"labels": labels, "t": START + k * STEP, "value": 1}).encode()])
    text = watch.metrics()
    written = '{query="q",_0="2",metric="load",a_b="1",c__1___5_rfa_alarm_d="4\\n",exported_query="3"} 0.0'
    assert [line for line in text.splitlines() if line.startswith("rfa_alarm{")] == [f"rfa_alarm{written}"]


def test_a_value_of_a_far_future_does_not_make_the_next_ones_late() -> None:
    watch, rows = Watch(config_of("stdin]"), now=lambda: START), Rows()
    watch.sinks.append(rows)
    for t in (START, START + 1e6, START + 599, START + 600):
        watch.push_messages([json.dumps({"labels": load("a", 0)[0], "t": t, "value": 1}).encode()])
    assert [row["t"] for row in rows.rows] == [START, START + 599, START + 600]
    assert watch.filters["q"].dropped["future"] == 1


def test_a_flood_of_series_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rfa.library.watch.pushed.MOST_REMEMBERED_BYTES", 50_000)
    config = config_of("stdin]", query='name = "q"\nexpr = "load"\nseries_limit = 10')
    watch = Watch(config)
    for k in range(200):
        watch.push_messages([json.dumps({"labels": load(f"h{k}", 0)[0], "t": START, "value": 1}).encode()])
    one = watch.filters["q"]
    assert len(one.labels) == 10 and one.dropped["limit"] == 190 and len(watch._router._names) < 50


def test_an_address_in_use_is_named() -> None:
    first = HttpServer("127.0.0.1:0", {})
    listen = f"127.0.0.1:{first.server_address[1]}"
    with pytest.raises(OSError, match=f"Address already in use: '{listen}'"):
        HttpServer(listen, {})
    first.close()


def test_standard_input() -> None:
    watch, rows = Watch(config_of("stdin]")), Rows()
    watch.sinks.append(rows)
    reader, writer = os.pipe()
    lines = [json.dumps({"labels": labels, "t": t, "value": y}) for labels, t, y in (load("a", k) for k in range(3))]
    lines += ["", "no json", '{"labels": {"__name__": "load"}, "t": true, "value": 1}', '{"labels": {}, "value": 1}']
    lines += ['{"labels": {"__name__": "load", "host": "b"}, "t": 1700000000, "value": null}']
    os.write(writer, "\n".join(lines).encode())
    os.close(writer)
    StdinFeed(reader).run(watch, threading.Event())
    os.close(reader)
    assert [(row["labels"]["host"], row["value"] is None) for row in rows.rows] == [("a", False)] * 3 + [("b", True)]
    assert watch.counts["rfa_watch_messages_refused_total"] == 2


def test_a_query_of_a_push_source_must_be_a_selector() -> None:
    with pytest.raises(ConfigError, match="query 'q': with this source, expr must be a selector such as"):
        config_of("stdin]", query='name = "q"\nexpr = "rate(load[5m])"')
    with pytest.raises(ConfigError, match="source: set exactly one of prometheus, remote_write, otlp, kafka, stdin"):
        config_of("stdin]\n[source.otlp]")
