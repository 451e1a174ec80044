"""The whole loop against real servers: a Prometheus scrapes, a watch queries it, and it scrapes the watch."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rfa.library.watch.config import Endpoint
from rfa.library.watch.config_file import parse_config
from rfa.library.watch.demo import DemoTarget
from rfa.library.watch.filters import Samples
from rfa.library.watch.http_server import HttpServer
from rfa.library.watch.init import write_config
from rfa.library.watch.prometheus import Prometheus, SourceError
from rfa.library.watch.routes import routes_of
from rfa.library.watch.watch import Watch
from tests.waiting import PATIENCE, wait_until

COMMANDS = {
    "prometheus": (
        "prometheus", "--config.file={folder}/scrape.yml", "--storage.tsdb.path={folder}/data",
        "--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.size=100MB",
    ),
    "victoria-metrics": (
        "victoria-metrics", "-promscrape.config={folder}/scrape.yml", "-storageDataPath={folder}/data",
        "-httpListenAddr=127.0.0.1:{port}", "-memory.allowedBytes=200MB", "-retentionPeriod=1d",
    ),
}  # fmt: skip
SERVERS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed"))
    for name in COMMANDS
]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def serving(name: str, folder: Path, targets: list[int]) -> Iterator[Prometheus]:
    """A server that scrapes these ports each second."""
    port, listed = free_port(), ", ".join(f'"127.0.0.1:{target}"' for target in targets)
    (folder / "scrape.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f'scrape_configs: [{{job_name: "demo", static_configs: [{{targets: [{listed}]}}]}}]\n'
    )
    command = [part.format(folder=folder, port=port) for part in COMMANDS[name]]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        found = Prometheus(Endpoint(url=f"http://127.0.0.1:{port}"))
        wait_until(lambda: count(found, "http_requests_total") == 3)
        yield found
    finally:
        process.terminate()
        process.wait(PATIENCE)


def count(server: Prometheus, expr: str) -> int:
    try:
        return server.count(expr, time.time())
    except SourceError:
        return 0


def latest(server: Prometheus, expr: str) -> list[Samples]:
    """The last values that the server returns, however it hides new ones."""
    end = time.time() - server.usual_delay(1.0)
    return server.range(expr, end - 1, end, 1.0)


@pytest.mark.slow  # real servers scrape in real time; test_watch.py has one that answers at once
@pytest.mark.parametrize("name", SERVERS)
def test_scores_come_back_to_the_server(name: str, tmp_path: Path) -> None:
    target, port = HttpServer("127.0.0.1:0", DemoTarget().routes()), free_port()
    try:
        with serving(name, tmp_path, [target.server_address[1], port]) as server:
            url = server._requests._endpoint.url
            config = parse_config(
                f'step = "1s"\nhistory = "3s"\n[source.prometheus]\nurl = "{url}"\n[sink.metrics]\n'
                'listen = "127.0.0.1:0"\n[[query]]\nname = "requests"\nexpr = "http_requests_total"\n'
                f'type = "{"auto" if name == "prometheus" else "counter"}"\n',
                "test",
            )
            watch = Watch(config)
            assert watch.filters["requests"].is_counter
            metrics = HttpServer(f"127.0.0.1:{port}", routes_of(watch)["127.0.0.1:0"])
            try:
                wait_until(lambda: [watch.pull(), watch.filters["requests"].observations >= 9][1])
                wait_until(lambda: [watch.pull(), count(server, 'rfa_mean{query="requests"}') == 3][1])
                wait_until(lambda: [watch.pull(), latest(server, 'rfa_mean{route="/"}')][1])
            finally:
                metrics.close()
            assert 20 < latest(server, 'rfa_mean{route="/"}')[-1].values[-1] < 120
            written = parse_config(write_config(url), "init")
            assert "requests" in {query.name for query in written.query}
    finally:
        target.close()
