"""Redis fails and recovers, or stops answering for a while, under live named sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.faults.cast import BUNDLES, Truths, as_setting, stream_clients
from tests.soak.faults.detect import leaked
from tests.soak.faults.findings import Findings
from tests.soak.faults.redis_process import RedisProcess
from tests.soak.faults.server import Server
from tests.waiting import until

Act = Callable[[RedisProcess], None]
REPORTED = "told sessions_unavailable"


async def go_through(
    server: Server, redis_server: RedisProcess, truths: Truths, findings: Findings, break_it: Act, mend_it: Act
) -> None:
    """Break Redis once every client works, repair it after a client's error, and check that all resume."""
    stop = asyncio.Event()
    clients = stream_clients(6, ("session", "token"), lambda: server.url, truths, findings)
    work = [asyncio.create_task(client.survive(stop)) for client in clients]
    await until(lambda: all(client.is_live.is_set() for client in clients))
    break_it(redis_server)
    await until(lambda: findings.counts[REPORTED])
    resumed = findings.counts["resumed"]
    await asyncio.to_thread(mend_it, redis_server)
    await until(lambda: findings.counts["resumed"] > resumed)
    await until(lambda: all(client.is_live.is_set() for client in clients))
    stop.set()
    await asyncio.gather(*work)


@pytest.mark.parametrize(
    ("break_it", "mend_it"),
    [
        pytest.param(RedisProcess.kill, RedisProcess.start, id="gone"),
        pytest.param(RedisProcess.freeze, RedisProcess.thaw, id="frozen", marks=pytest.mark.slow),
    ],
)
def test_sessions_survive_an_outage_of_redis(
    tmp_path: Path, redis_server: RedisProcess, filter_truths: Truths, break_it: Act, mend_it: Act
) -> None:
    findings = Findings()
    with Server(tmp_path, bundles=as_setting(BUNDLES[:2]), processes=2, sessions=redis_server.url) as server:
        asyncio.run(go_through(server, redis_server, filter_truths, findings, break_it, mend_it))
        assert not findings.mistakes, findings
        assert leaked(server) == {}
        assert server.end() == 0
        assert "Traceback" not in server.log
