"""Watch a simulated service with an incident, with `rfa watch demo`. It needs no server and takes a few seconds."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from rfa.library.watch.config import Config
from rfa.library.watch.config_file import parse_config
from rfa.library.watch.exposition import CONTENT_TYPE
from rfa.library.watch.filters import QueryFilter, Samples, Scored
from rfa.library.watch.http_server import Reply, Route
from rfa.library.watch.selectors import labels_of
from rfa.library.watch.sink import Sink
from rfa.library.watch.watch import Watch
from rfa.runtime.uncertainty.alarms import RULE_NAMES
from rfa.runtime.uncertainty.rules import RAISED_BY

# First minute after the history of the demo, which is Monday, 2026-01-05, at noon in UTC.
START: Final = 1_767_614_400
MINUTES: Final = 180
ROUTES: Final = {"/": 60.0, "/login": 12.0, "/search": 30.0}
# Route that fails, and the first and last minute of its failure after START.
FAILING, BEGIN, END = "/search", 90, 120
CONFIG: Final = """
step = "1m"
history = "3d"
[source.prometheus]
url = "http://demo"
[[query]]
name = "requests"
expr = "sum by (route) (rate(http_requests_total[1m]))"
alarm = {rate = "1/day"}
"""


class DemoService:
    """Simulated requests per second on the routes of a service, with a daily pattern, noise and an incident."""

    def range(self, expr: str, start: float, end: float, step: float) -> list[Samples]:
        times = np.arange(start, end + step / 2, step)
        return [
            Samples(labels_of({"route": route}), times, np.array([request_rate(route, t) for t in times]))
            for route in ROUTES
        ]

    def usual_delay(self, step: float) -> float:
        return 0.0


def request_rate(route: str, t: float) -> float:
    """Return the simulated requests per second on a route at the given time."""
    day = 1 - 0.5 * math.cos(2 * math.pi * (t / 86_400 - 0.1))
    chance = random.Random(f"{route} {int(t)}")
    is_failing = route == FAILING and BEGIN <= (t - START) / 60 < END
    return ROUTES[route] * day * (0.35 if is_failing else 1.0) * (1 + 0.04 * chance.gauss(0, 1))


class Report(Sink):
    """Sink that prints a line for each alarm and for the end of each incident."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write, self._open = write, set[int]()

    def write(self, one: QueryFilter, scored: Scored) -> None:
        for k, slot in enumerate(scored.slots.tolist()):
            name = f"{one.query.name}{dict(one.labels[slot])}"
            minute = (scored.times[k] - START) / 60
            when = f"{12 + int(minute) // 60:02d}:{int(minute) % 60:02d}"
            if scored.alarm[k] == 1:
                self._open.add(slot)
                expected = f"expected {scored.mean[k]:.1f}, {scored.lower[k]:.1f} to {scored.upper[k]:.1f}"
                rule = RULE_NAMES[int(scored.raised[k, RAISED_BY])]
                self._write(f"{when}  {name}: alarm by {rule}, {scored.values[k]:.1f} a second, {expected}")
            elif not scored.incident[k] and slot in self._open:
                self._open.remove(slot)
                self._write(f"{when}  {name}: the incident has ended")


def run_demo(write: Callable[[str], None]) -> Watch:
    """Run a watch of the simulated service from noon to three o'clock, and return the watch."""
    config: Config = parse_config(CONFIG, "demo")
    now = [float(START)]
    watch = Watch(config, now=lambda: now[0], source=DemoService())
    watch.sinks.append(Report(write))
    for minute in range(MINUTES + 1):
        now[0] = START + 60.0 * minute
        watch.pull()
    return watch


class DemoTarget:
    """Serves `/metrics` of the simulated service in real time. Every half hour, there is an incident of five
    minutes."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now, self._last = now, now()
        self._totals = dict.fromkeys(ROUTES, 0.0)
        self._lock = threading.Lock()

    def render(self) -> str:
        """Return the counters in the text format of Prometheus."""
        with self._lock:
            now = self._now()
            for route in ROUTES:
                minute = now / 60 % 30
                t = START + 60 * ((BEGIN if 10 <= minute < 15 else 0) + minute / 60)
                self._totals[route] += request_rate(route, t) * (now - self._last)
            self._last = now
            lines = [f'http_requests_total{{route="{route}"}} {total!r}' for route, total in self._totals.items()]
        return "\n".join(["# TYPE http_requests_total counter", *lines]) + "\n"

    def routes(self) -> dict[tuple[str, str], Route]:
        """Return the routes of the HTTP server by path."""
        return {("GET", "/metrics"): lambda body, headers: Reply(200, self.render().encode(), CONTENT_TYPE)}
