"""Sinks on other servers, secrets, and the history of sources that are pushed to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from rfa.library.watch import wire
from rfa.library.watch.config import Endpoint
from rfa.library.watch.http_server import HttpServer, Reply, _Handler
from rfa.library.watch.http_sinks import RemoteWrite
from rfa.library.watch.prometheus import Requests, SourceError
from rfa.library.watch.storage import FileStorage
from rfa.library.watch.store import Store
from rfa.library.watch.watch import Watch
from tests.library.watch.pushing import config_of, load
from tests.library.watch.running import START, STEP
from tests.waiting import wait_until


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
        history = [load("a", k) for k in range(300)]
        spike = [({"__name__": "load", "host": "a"}, START + 300 * STEP, 900.0)]
        after = [load("a", k) for k in range(301, 340)]
        for labels, t, y in [*history, *spike, *after]:
            message = json.dumps({"labels": labels, "t": t, "value": y}).encode()
            watch.push_messages([message])
            if t > START + 290 * STEP:
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
