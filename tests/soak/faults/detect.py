"""Resources that must be zero once every client has gone."""

from __future__ import annotations

import time

from tests.soak.faults.server import Server
from tests.waiting import PATIENCE

GAUGES = ("state_slots_used", "num_streams", "num_requests_running", "num_requests_waiting")
RETURN_SECONDS = PATIENCE
LOOK_SECONDS = 0.1


def held(server: Server) -> dict[str, float]:
    """Return the nonzero resources that the processes of a server hold for clients, summed.

    Raises:
        OSError: The server does not answer.
    """
    sums = {name: sum(server.gauge(name).values()) for name in GAUGES}
    return {name: value for name, value in sums.items() if value}


def leaked(server: Server, seconds: float = RETURN_SECONDS) -> dict[str, float]:
    """Return the resources still held so long after the last client left. Correct servers hold none."""
    deadline = time.monotonic() + seconds
    while (found := held(server)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return found
