"""A watch to which series are pushed."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rfa.library.watch.config import Config
from rfa.library.watch.config_file import parse_config
from rfa.library.watch.routes import serve
from rfa.library.watch.sink import JsonLines, rows_as_documents
from rfa.library.watch.store import Store
from rfa.library.watch.watch import Watch
from tests.library.watch.fake_prometheus import wave
from tests.library.watch.running import START, STEP
from tests.waiting import PATIENCE


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
