"""A server with the query API of Prometheus, whose values are functions of series and time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from rfa.library.watch.http_server import HttpServer, Reply, _Handler

# Labels and time to a value; None where there is none.
Value = Callable[[str, float], float | None]


def noise(name: str, t: float) -> float:
    """A number between -1 and 1."""
    mixed = sum(map(ord, name)) * 2_654_435_761 ^ (int(t * 8) * 40_503)
    mixed = (mixed ^ (mixed >> 13)) * 1_274_126_177 % 2**32
    return ((mixed ^ (mixed >> 16)) % 20_001) / 10_000 - 1


def wave(name: str, t: float) -> float:
    """Ten minutes' waves with noise."""
    return 100 + 10 * math.sin(t / 600) + noise(name, t)


class FakePrometheus:
    """Queries are names of metrics; each has series with the label `host`."""

    def __init__(self) -> None:
        self.hosts: dict[str, list[str]] = {"up": ["a", "b", "c"]}
        self.value: Value = wave
        self.types: dict[str, str] = {"up": "gauge"}
        self.names: list[str] = []  # of metrics; those of `hosts` if empty
        self.is_down = False
        self.is_victoria = False
        self.scrapes: list[float] = []  # how long ago each was
        self.asked: list[tuple[float, float]] = []
        self.url = ""

    def answer(self, path: str) -> Reply:
        """The reply to a request."""
        parts = urlsplit(path)
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.is_down:
            return Reply(503, b"down")
        data: object
        if parts.path == "/api/v1/query_range":
            data = {"resultType": "matrix", "result": list(self._series(given))}
        elif parts.path == "/api/v1/query" and given["query"] == "up[10m]":
            scrapes = [[float(given["time"]) - lag, "1"] for lag in self.scrapes]
            data = {"resultType": "matrix", "result": [{"metric": {}, "values": scrapes}]}
        elif parts.path == "/api/v1/query" and given["query"] == "1":
            data = {"resultType": "scalar", "result": [0, "1"]}
        elif parts.path == "/api/v1/query":
            metric = given["query"].removeprefix("count(").removesuffix(")").strip()
            data = {"resultType": "vector", "result": [{"metric": {}, "value": [0, str(len(self.hosts[metric]))]}]}
        elif parts.path == "/api/v1/metadata":
            data = {name: [{"type": kind}] for name, kind in self.types.items()}
        elif parts.path == "/api/v1/label/__name__/values":
            data = self.names or sorted(self.hosts)
        else:
            return Reply(404)
        return Reply(200, json.dumps({"status": "success", "data": data}).encode())

    def _series(self, given: Mapping[str, str]) -> Iterator[object]:
        start, end, step = (float(given[name]) for name in ("start", "end", "step"))
        self.asked.append((start, end))
        times = [start + k * step for k in range(int((end - start) / step + 1e-9) + 1)]
        for host in self.hosts.get(given["query"], []):
            points = [(t, value) for t in times if (value := self.value(host, t)) is not None]
            if points:
                values = [[t, str(value)] for t, value in points]
                yield {"metric": {"__name__": given["query"], "host": host}, "values": values}


@contextmanager
def fake_prometheus() -> Iterator[FakePrometheus]:
    """A server in a thread."""
    fake = FakePrometheus()
    server = HttpServer("127.0.0.1:0", {})

    class Handler(_Handler):
        def _answer(self, body: bytes) -> None:
            self._send(fake.answer(self.path))

        def end_headers(self) -> None:
            if fake.is_victoria:
                self.send_header("X-Server-Hostname", "vm")
            super().end_headers()

    server.RequestHandlerClass = Handler
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.close()
