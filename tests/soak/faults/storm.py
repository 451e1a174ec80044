"""Thousands of clients of live streams and streamed replies disconnect at once, with and without resets.

Well-behaved clients continue meanwhile. Every slot must be released, and those clients must hardly be slowed.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from tests.soak.faults.cast import BUNDLES, FILTERS
from tests.soak.faults.detect import RETURN_SECONDS, leaked
from tests.soak.faults.server import Server
from tests.soak.faults.sockets import live_stream, reset, streamed_reply
from tests.soak.faults.verdict import Verdict
from tests.soak.live import Live, Seen

LIVE_SHARE = 0.7
SPARE_FILES = 500
NEVER_SECONDS = 3_600
SLOWDOWN = 2.0
LONGEST_LEAVING_SECONDS = 1.0


@dataclass(frozen=True)
class StormPlan:
    """The size of the scenario.

    Attributes:
        window: Seconds over which the well-behaved clients are measured, before the storm and from it on.
        longest: Seconds for which the well-behaved clients have expected answers.
        settle: Seconds until replies without a reader have filled every buffer.
        leaving: Seconds within which all clients leave.
    """

    clients: int = 5_000
    processes: int = 4
    good_streams: int = 20
    good_rate: float = 10.0
    window: float = 10.0
    longest: float = 300.0
    settle: float = 20.0
    leaving: float = 0.8

    @property
    def live(self) -> int:
        """Return the number of live streams. The other clients wait for a streamed reply or do not read theirs."""
        return round(LIVE_SHARE * self.clients)


def run_storm(plan: StormPlan, progress: Callable[[], None]) -> Verdict:
    """Open, disconnect, and check the requirements on the server and the well-behaved clients."""
    allow_open_files(plan.clients + SPARE_FILES)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        Server(
            Path(name),
            bundles=BUNDLES[0],
            processes=plan.processes,
            # Nobody may be rejected or disconnected before the storm.
            max_waiting=plan.clients,
            queue_seconds=NEVER_SECONDS,
            send_timeout_seconds=NEVER_SECONDS,
        ) as server,
        Live(plan.longest, plan.good_streams, plan.good_rate, FILTERS[:1]) as live,
    ):
        begin_good_clients(live, server)
        crowd = _gather(plan, server.port, progress)
        held = {name: sum(server.gauge(name).values()) for name in ("num_streams", "num_requests_running")}
        calm = time.monotonic()
        time.sleep(plan.window)
        begun = time.monotonic()
        _leave(crowd, plan.leaving)
        left = time.monotonic()
        rest = {"num_streams": plan.good_streams, "state_slots_used": plan.good_streams}
        returned = _wait_for(server, rest, left + RETURN_SECONDS)
        time.sleep(max(0.0, begun + plan.window - time.monotonic()))
        good = live.close()
        remaining = leaked(server)
        code = server.end()
    slowdown = compare(good, (calm, begun), (begun, begun + plan.window))
    verdict = Verdict(
        {
            "clients": plan.clients,
            "held_before": held,
            "leaving_seconds": round(left - begun, 3),
            "returned_after_seconds": None if returned is None else round(returned - left, 3),
            "good_clients": {**slowdown, "errors": good.errors, "wrong": good.wrong},
            "leaked": remaining,
            "exit_code": code,
        }
    )
    verdict.require("all left within a second", left - begun <= LONGEST_LEAVING_SECONDS)
    verdict.require("every live stream was there", held["num_streams"] == plan.live + plan.good_streams)
    verdict.require("slots came back", returned is not None and not remaining)
    verdict.require("good clients got every answer, and right", not good.errors and not good.wrong)
    verdict.require("good clients' p99 within 2x", slowdown["slowdown"] <= SLOWDOWN)
    verdict.require("exit code 0", code == 0)
    return verdict


def begin_good_clients(live: Live, server: Server) -> None:
    """Start the well-behaved clients."""
    live.wait_until_prepared()
    live.open(server.url)


def compare(good: Seen, before: tuple[float, float], during: tuple[float, float]) -> dict[str, float]:
    """Return the latencies of the well-behaved clients before and during a fault."""
    calm, rough = good.p99_ms(*before), good.p99_ms(*during)
    return {"p99_before_ms": calm, "p99_during_ms": rough, "slowdown": round(rough / calm, 3)}


def allow_open_files(count: int) -> None:
    """Raise the soft limit of open files.

    Raises:
        OSError: The hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard < count:
            raise OSError(f"{count} open files are needed, the hard limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _gather(plan: StormPlan, port: int, progress: Callable[[], None]) -> list[socket]:
    """Open the clients in the order in which they leave: both kinds mixed, newest replies first.

    Live streams are opened last, because they answer no pings and would be closed. Most replies wait in the queue; if
    the running ones left first, others would start to run, which is not tested here.
    """
    replies = []
    for _ in range(plan.clients - plan.live):
        replies.append(streamed_reply(port))
        progress()
    time.sleep(plan.settle)
    crowd = []
    for number in range(plan.live):
        crowd.append(live_stream(port))
        progress()
        while len(replies) * plan.live > (plan.live - number - 1) * (plan.clients - plan.live):
            crowd.append(replies.pop())
    return crowd


def _leave(crowd: list[socket], seconds: float) -> None:
    """Close all clients evenly over so many seconds, as far as this process can."""
    begun = time.monotonic()
    for number, client in enumerate(crowd):
        time.sleep(max(0.0, begun + seconds * number / len(crowd) - time.monotonic()))
        (reset if number % 2 else socket.close)(client)


def _wait_for(server: Server, rest: dict[str, int], deadline: float) -> float | None:
    """Return when only the well-behaved clients held resources, or None if not before the deadline."""
    while time.monotonic() < deadline:
        held = {name: sum(server.gauge(name).values()) for name in (*rest, "num_requests_running")}
        if held == {**rest, "num_requests_running": 0}:
            return time.monotonic()
        time.sleep(0.1)
    return None
