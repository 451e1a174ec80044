"""Sources that are pushed to, and sinks on other servers."""

from __future__ import annotations

import gzip
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import cramjam
import numpy as np
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

import rfa
from rfa.library.watch import wire
from rfa.library.watch.config import Config, Endpoint
from rfa.library.watch.config_file import ConfigError, parse_config
from rfa.library.watch.feeds import StdinFeed
from rfa.library.watch.filters import Samples
from rfa.library.watch.http_server import HttpServer, Reply, _Handler
from rfa.library.watch.http_sinks import RemoteWrite
from rfa.library.watch.prometheus import Requests, SourceError
from rfa.library.watch.routes import serve
from rfa.library.watch.selectors import labels_of
from rfa.library.watch.sink import JsonLines, rows_as_documents
from rfa.library.watch.storage import FileStorage
from rfa.library.watch.store import Store
from rfa.library.watch.watch import Watch
from tests.library.watch.fake_prometheus import fake_prometheus, wave
from tests.library.watch.running import START, STEP
from tests.waiting import PATIENCE, wait_until


def config_of(source: str, sink: str = "", query: str = 'name = "q"\nexpr = "load"') -> Config:
    return parse_config(f'step = "1m"\n[source.{source}\n{sink}\n[[query]]\n{query}\n', "test")


class Rows(JsonLines):
    """Keeps rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, one: Any, scored: Any) -> None:
        self.rows += rows_as_documents(one, scored)


def sent(url: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, named), timeout=PATIENCE) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@contextmanager
def listening(config: Config, store: Store | None = None) -> Iterator[tuple[Watch, Rows, str]]:
    watch, rows = Watch(config, store), Rows()
    watch.sinks.append(rows)
    (server,) = serve(watch)
    try:
        yield watch, rows, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.close()
        watch.close()


def load(host: str, k: int) -> tuple[dict[str, str], float, float]:
    return {"__name__": "load", "host": host}, START + k * STEP, wave(host, START + k * STEP)


RECEIVER = 'remote_write]\nlisten = "127.0.0.1:0"'


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


@pytest.mark.parametrize(
    ("options", "sent"),
    [({"bearer_token_file": "secret"}, "Bearer secret"), ({"user": "a", "password_file": "secret"}, "Basic YTpzw7w=")],
)
def test_secrets_are_not_sent_to_another_server(options: dict[str, str], sent: str, tmp_path: Path) -> None:
    found: list[tuple[str | None, str | None]] = []

    def reply(body: bytes, headers: Mapping[str, str]) -> Reply:
        found.append((headers.get("authorization"), headers.get("x-tenant")))
        return Reply(200)

    other = HttpServer("127.0.0.1:0", {("GET", "/there"): reply})

    class Redirecting(_Handler):
        def do_GET(self) -> None:
            found.append((self.headers.get("Authorization"), self.headers.get("X-Tenant")))
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{other.server_address[1]}/there")
            self.send_header("Content-Length", "0")
            self.end_headers()

    first = HttpServer("127.0.0.1:0", {})
    first.RequestHandlerClass = Redirecting
    (tmp_path / "secret").write_text("secret\n" if sent.startswith("Bearer") else "sü\n", encoding="utf-8")
    files = {name: tmp_path / value if name.endswith("file") else value for name, value in options.items()}
    url = f"http://127.0.0.1:{first.server_address[1]}"
    try:
        Requests(Endpoint.model_validate({"url": url, "headers": {"X-Tenant": "t"}, **files})).send("/here")
    finally:
        first.close()
        other.close()
    assert found == [(sent, "t"), (None, None)]


def test_a_redirected_post_is_not_taken_for_sent() -> None:
    server = HttpServer("127.0.0.1:0", {})

    class Redirecting(_Handler):
        routes: ClassVar = {("GET", "/there"): lambda body, headers: Reply(200)}

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(302)
            self.send_header("Location", "/there")
            self.send_header("Content-Length", "0")
            self.end_headers()

    server.RequestHandlerClass = Redirecting
    requests = Requests(Endpoint(url=f"http://127.0.0.1:{server.server_address[1]}"))
    try:
        with pytest.raises(SourceError, match="redirects of POST requests are not followed; set the URL to /there"):
            requests.send("/here", b"{}")
    finally:
        server.close()


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


class Receiver:
    """A server that keeps what it gets, and at first refuses it."""

    def __init__(self, paths: Sequence[str], failures: int = 1) -> None:
        self.bodies: list[bytes] = []
        self._failures = failures
        self.server = HttpServer("127.0.0.1:0", {("POST", path): self._take for path in paths})
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def _take(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        if self._failures:
            self._failures -= 1
            return Reply(503)
        self.bodies.append(body)
        return Reply(200)


def test_incidents_and_outputs_reach_other_servers() -> None:
    receiver = Receiver(["/write", "/api/v2/alerts", "/hook"])
    sink = (
        f'[sink.remote_write]\nurl = "{receiver.url}/write"\n[sink.alertmanager]\nurl = "{receiver.url}"\n'
        f'[sink.webhook]\nurl = "{receiver.url}/hook"'
    )
    query = 'name = "q"\nexpr = "load"\nalarm = {rate = "1/hour"}\nhorizon = ["1h"]'
    watch = Watch(config_of("stdin]", sink, query))
    try:
        history = [load("a", k) for k in range(600)]
        spike = [({"__name__": "load", "host": "a"}, START + 600 * STEP, 900.0)]
        after = [load("a", k) for k in range(601, 640)]
        for labels, t, y in [*history, *spike, *after]:
            message = json.dumps({"labels": labels, "t": t, "value": y}).encode()
            watch.push_messages([message])
            if t > START + 590 * STEP:
                wait_until(lambda: all(not sink.outbox.waiting for sink in watch.sinks))
    finally:
        watch.close()
        receiver.server.close()
    documents = [json.loads(body) for body in receiver.bodies if body[:1] in b"[{"]
    events = [event for one in documents if isinstance(one, dict) for event in one["events"]]
    peak = [event for event in events if event["value"] == 900.0]
    assert [event["status"] for event in peak] == ["firing"] and peak[0]["value"] > peak[0]["upper"]
    assert events[-1]["status"] == "resolved"
    alerts = [alert for one in documents if isinstance(one, list) for alert in one]
    last = [alert for alert in alerts if alert["startsAt"] == alerts[-1]["startsAt"]]
    lasts = [datetime.fromisoformat(last[k]["endsAt"]) - datetime.fromisoformat(last[k]["startsAt"]) for k in (0, 1)]
    assert lasts == [timedelta(seconds=300), timedelta(seconds=360)]  # of a row of a minute ago, too, it is open
    assert len(last) > 5 and last[-1]["endsAt"] < last[-2]["endsAt"]  # resolved before it would have expired
    assert alerts[-1]["labels"] == {"alertname": "RfaIncident", "query": "q", "metric": "load", "host": "a"}
    written = [one for body in receiver.bodies if body[:1] not in b"[{" for one in wire.read_write_request(body)]
    names = {dict(one.labels)["__name__"] for one in written}
    assert {"rfa_score", "rfa_mean", "rfa_alarm", "rfa_forecast_upper"} <= names
    assert "rfa_watch_requests_sent_total" in watch.metrics()


def test_a_server_that_is_away_holds_a_bounded_number_of_requests() -> None:
    sink = '[sink.remote_write]\nurl = "http://127.0.0.1:9/write"'
    watch = Watch(config_of("stdin]", sink))
    for k in range(260):
        watch.push_messages([json.dumps({"labels": load("a", k)[0], "t": START + k, "value": 1}).encode()])
    (outbox,) = (sink.outbox for sink in watch.sinks if isinstance(sink, RemoteWrite))
    assert outbox.dropped in (59, 60)  # 200 wait, and one may be on its way
    watch.close()


def test_history_of_pushed_series_comes_from_range_queries() -> None:
    with fake_prometheus() as fake:
        fake.hosts["load"] = ["a"]
        config = config_of(RECEIVER, f'[warmup.prometheus]\nurl = "{fake.url}"')
        watch, rows = Watch(config.model_copy(update={"history": 600 * STEP, "delay": 0.0}), now=lambda: START), Rows()
        watch.sinks.append(rows)
        watch.warm_up()
        assert not rows.rows and watch.filters["q"].observations == 600
        spike = ({"__name__": "load", "host": "a"}, START + STEP, 900.0)
        watch.push(wire.read_write_request(wire.write_request([spike])))
        fake.is_down = True
        watch.warm_up()  # it has the history already
        with pytest.raises(ValueError, match=r"warmup: .* status 503"):
            Watch(config).warm_up()
    assert [(row["index"], row["alarm"]) for row in rows.rows] == [(600, True)]


def test_a_reload_reads_the_history_of_new_queries(tmp_path: Path) -> None:
    path = tmp_path / "watch.toml"
    with fake_prometheus() as fake:
        fake.hosts |= {"load": ["a"], "other": ["b"]}
        queries = '[[query]]\nname = "q"\nexpr = "load"\n'
        top = f'step = "1m"\nhistory = "600m"\ndelay = 0\n[source.{RECEIVER}\n'
        warmup = f'[warmup.prometheus]\nurl = "{fake.url}"\n'
        watch = Watch(parse_config(top + queries, "test"), now=lambda: START)
        watch.push([Samples(labels_of(load("a", 0)[0]), np.array([START]), np.array([1.0]))])
        path.write_text(top + warmup + queries + queries.replace('"q"', '"new"').replace("load", "other"))
        fake.is_down = True
        assert not watch.reload(path) and list(watch.filters) == ["q"]
        fake.is_down = False
        assert watch.reload(path)
        assert {name: one.observations for name, one in watch.filters.items()} == {"q": 1, "new": 600}
        fake.is_down = True
        assert watch.reload(path)  # it has the history already
        rows = Rows()
        watch.sinks.append(rows)
        spike = ({"__name__": "other", "host": "b"}, START + STEP, 900.0)
        watch.push(wire.read_write_request(wire.write_request([spike])))
    assert [(row["index"], row["alarm"]) for row in rows.rows] == [(600, True)]


def test_history_of_pushed_series_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    lines = [json.dumps({"labels": labels, "t": t, "value": y}) for labels, t, y in (load("a", k) for k in range(600))]
    file.write_text("\n".join(["no json", *lines, ""]))
    config = config_of("stdin]", f'[warmup]\nfile = "{file}"')
    watch, rows = Watch(config, Store(FileStorage(tmp_path / "state"))), Rows()
    watch.sinks.append(rows)
    watch.warm_up()
    assert watch._store is not None
    watch._store.close()  # as a killed process
    again = Watch(config, Store(FileStorage(tmp_path / "state")))
    again.sinks.append(rows)
    file.unlink()
    again.warm_up()
    again.push_messages(
        [lines[-1].encode(), lines[-1].replace(f"{START + 599 * STEP}", f"{START + 600 * STEP}").encode()]
    )
    assert [row["index"] for row in rows.rows] == [600]
    again.close()
    with pytest.raises(ConfigError, match="warmup: set exactly one of prometheus and file"):
        config_of("stdin]", "[warmup]")
    with pytest.raises(ConfigError, match=r"not supported with source.prometheus"):
        config_of('prometheus]\nurl = "http://127.0.0.1:9"', f'[warmup]\nfile = "{file}"')


def test_requests_outlive_the_process_that_could_not_send_them(tmp_path: Path) -> None:
    receiver = Receiver(["/write"], failures=0)
    away = f'[sink.remote_write]\nurl = "http://127.0.0.1:9/write"\n[state]\nfile = "{tmp_path / "state"}"'
    watch = Watch(config_of("stdin]", away), Store(FileStorage(tmp_path / "state")))
    for k in range(3):
        watch.push_messages([json.dumps({"labels": load("a", k)[0], "t": START + k, "value": 1}).encode()])
    assert 'rfa_watch_requests_waiting{sink="remote_write"} 3' in watch.metrics()
    watch.close()
    (tmp_path / "state.outbox" / "remote_write" / "000000000000007.request").write_bytes(b"no request")
    back = away.replace("http://127.0.0.1:9", receiver.url)
    again = Watch(config_of("stdin]", back), Store(FileStorage(tmp_path / "state")))
    again.push_messages([json.dumps({"labels": load("a", 3)[0], "t": START + 3, "value": 1}).encode()])
    wait_until(lambda: len(receiver.bodies) == 4)
    again.close()
    receiver.server.close()
    assert not list((tmp_path / "state.outbox" / "remote_write").iterdir())
    times = [one.times[0] for body in receiver.bodies for one in wire.read_write_request(body)[:1]]
    assert times == [START, START + 1, START + 2, START + 3]
