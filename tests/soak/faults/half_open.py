"""Clients that connect and then fall silent, crawl, or stop reading: each must be seen off in time, and cost nobody.

silent     never sends a byte                      header timeout, closed without a word
crawling   a byte of its headers now and then      header timeout: slow-loris
headless   half of its headers                     header timeout
bodiless   half of its body                        body timeout
wordless   a WebSocket without its first frame     body timeout
deaf       a live stream whose answers, and a streamed reply whose lines, are never read: send timeout
gone       an idle live stream that answers no ping: the pings of the wire, 20 s and 20 s
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from tests.soak.faults.cast import BUNDLES, FILTERS
from tests.soak.faults.detect import leaked
from tests.soak.faults.server import Server
from tests.soak.faults.sockets import (
    LARGE_ANSWERS,
    LARGE_SAMPLES,
    SMALL_BUFFER,
    live_stream,
    open_socket,
    streamed_reply,
    upgrade,
)
from tests.soak.faults.storm import SLOWDOWN, SPARE_FILES, allow_open_files, begin_good_clients, compare
from tests.soak.faults.verdict import Verdict
from tests.soak.live import Live
from tests.soak.requests import head, message, post

CRAWL_SECONDS = 0.5
QUIET = ("silent", "crawling", "headless", "bodiless", "wordless", "gone")
# Those who ask and do not read make work before they fall silent: few of them, so that silence is what is measured.
MIXTURE = (*8 * QUIET, "deaf", "deaf reply")


def silent(port: int) -> socket:
    """Connects."""
    return open_socket(port)


def headless(port: int) -> socket:
    """Sends half of a head."""
    made = open_socket(port)
    made.sendall(head("POST", "/generate", "Content-Type: application/json")[:-10])
    return made


def bodiless(port: int) -> socket:
    """Sends half of a body."""
    made = open_socket(port)
    made.sendall(post("/filter", {"observations": [None] * 10})[:-20])
    return made


def deaf(port: int) -> socket:
    """Asks for large answers on a live stream and reads none."""
    made = upgrade(port, SMALL_BUFFER)
    made.sendall(message({"samples": LARGE_SAMPLES}) + message({"y": None}) * LARGE_ANSWERS)
    return made


KINDS: Mapping[str, Callable[[int], socket]] = {
    "silent": silent,
    "crawling": headless,
    "headless": headless,
    "bodiless": bodiless,
    "wordless": upgrade,
    "deaf": deaf,
    "deaf reply": streamed_reply,
    "gone": live_stream,
}


@dataclass(frozen=True)
class HalfOpenPlan:
    """How much of it.

    Attributes:
        timeout: header, body, send and keep-alive timeout of the server, seconds.
        patience: by when all must be gone, seconds: the pings take 40 of them.
        window: seconds over which good clients are watched before.
        longest: seconds that good clients can go on; they know so many answers.
        kinds: of clients, in turn.
    """

    clients: int = 1_000
    processes: int = 4
    timeout: int = 5
    patience: float = 60.0
    good_streams: int = 20
    good_rate: float = 10.0
    window: float = 10.0
    longest: float = 300.0
    kinds: tuple[str, ...] = MIXTURE


def run_half_open(plan: HalfOpenPlan, progress: Callable[[], None]) -> Verdict:
    """Open, wait, and hold the server and the good clients to the bars."""
    allow_open_files(plan.clients + SPARE_FILES)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        Server(
            Path(name),
            bundles=BUNDLES[0],
            processes=plan.processes,
            max_waiting=plan.clients,
            max_running=plan.clients,
            header_timeout_seconds=plan.timeout,
            body_timeout_seconds=plan.timeout,
            send_timeout_seconds=plan.timeout,
            keep_alive_seconds=plan.timeout,
        ) as server,
        Live(plan.longest, plan.good_streams, plan.good_rate, FILTERS[:1]) as live,
    ):
        begin_good_clients(live, server)
        calm = time.monotonic()
        time.sleep(plan.window)
        begun = time.monotonic()
        crowd = _gather(plan, server.port, progress)
        gone = _wait_until_gone(plan, server, crowd)
        ended = time.monotonic()
        refused = server.labelled("connections_refused_total", "reason")
        good = live.close()
        for client in crowd:
            client.close()
        remaining = leaked(server)
        code = server.end()
    slowdown = compare(good, (calm, begun), (begun, ended))
    verdict = Verdict(
        {
            "clients": plan.clients,
            "kinds": dict(Counter(plan.kinds[number % len(plan.kinds)] for number in range(plan.clients))),
            "timeout_seconds": plan.timeout,
            "gone_after_seconds": None if gone is None else round(gone - begun, 3),
            "ended_by": refused,
            "good_clients": {**slowdown, "errors": good.errors, "wrong": good.wrong},
            "leaked": remaining,
            "exit_code": code,
        }
    )
    verdict.require("every connection was ended", gone is not None)
    verdict.require("nothing leaked", not remaining)
    verdict.require("good clients got every answer, and right", not good.errors and not good.wrong)
    verdict.require("good clients' p99 within 2x", slowdown["slowdown"] <= SLOWDOWN)
    verdict.require("exit code 0", code == 0)
    return verdict


def _gather(plan: HalfOpenPlan, port: int, progress: Callable[[], None]) -> list[socket]:
    crowd = []
    for number in range(plan.clients):
        crowd.append(KINDS[plan.kinds[number % len(plan.kinds)]](port))
        progress()
    return crowd


def _wait_until_gone(plan: HalfOpenPlan, server: Server, crowd: list[socket]) -> float | None:
    """Crawl on; when only the good clients were left, None if that was not in time."""
    crawlers = [client for number, client in enumerate(crowd) if plan.kinds[number % len(plan.kinds)] == "crawling"]
    deadline = time.monotonic() + plan.patience
    while time.monotonic() < deadline:
        for client in crawlers:
            with suppress(OSError):  # it was ended
                client.send(b"x")
        time.sleep(CRAWL_SECONDS)
        # The scrape and a visit of the good clients are connections; another may not be closed yet.
        if sum(server.gauge("open_connections").values()) <= plan.good_streams + 3:
            return time.monotonic()
    return None
