"""A detector that has never fired proves nothing: each planted fault must trip its own, and no other."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.soak.faults.cast import BUNDLES, FILTERS, Truths, as_setting, stream_clients
from tests.soak.faults.detect import leaked
from tests.soak.faults.findings import Findings
from tests.soak.faults.planted_child import PLANTS, SWAP_AT
from tests.soak.faults.redis_process import RedisProcess
from tests.soak.faults.server import Server
from tests.soak.faults.sockets import live_stream, reset
from tests.soak.faults.streams import StreamClient, StreamPlan
from tests.waiting import PATIENCE, until

PROGRAM = (sys.executable, str(Path(__file__).with_name("planted_child.py")))
# Of a dropped answer the next one tells: it is not the one that was due.
SYMPTOMS = {"none": set(), "leak": {"leak"}, "swap": {"swap"}, "drop": {"order"}, "second-end": {"terminal"}}


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTS)
def test_a_planted_fault_trips_its_detector(
    tmp_path: Path, redis_server: RedisProcess, filter_truths: Truths, fault: str
) -> None:
    with Server(
        tmp_path,
        program=PROGRAM,
        environment={"FAULT": fault},
        bundles=as_setting(BUNDLES[:2]),
        processes=1,
        sessions=redis_server.url,
    ) as server:
        symptoms = {"leak"} if leave_streams(server, 2 if fault == "leak" else PATIENCE) else set()
        symptoms |= {"swap"} if asyncio.run(interrupt_sessions(server, filter_truths)) else set()
        symptoms |= asyncio.run(finish_streams(server, filter_truths))
    assert symptoms == SYMPTOMS[fault]


def leave_streams(server: Server, seconds: float) -> dict[str, float]:
    """What clients leave behind for so long who leave with a reset, and without."""
    for leave in (reset, lambda client: client.close()):
        leave(live_stream(server.port))
    return leaked(server, seconds)


async def interrupt_sessions(server: Server, truths: Truths) -> set[str]:
    """Two sessions are left, one after the other, and gone on with: which of them go on with something wrong?"""
    findings = [Findings(), Findings()]
    clients = [session_client(number, server, truths, findings[number]) for number in range(2)]
    for client in clients:
        await work_until(client, SWAP_AT)
    for client in clients:
        await work_until(client, SWAP_AT + 1)
    wrong = {client.name for client, found in zip(clients, findings, strict=True) if found.mistakes}
    assert len(wrong) in (0, 2), findings
    return wrong


def session_client(number: int, server: Server, truths: Truths, findings: Findings) -> StreamClient:
    """A client that has no observation under way when it looks whether to stop."""
    plan = StreamPlan(FILTERS[0], "session", window=1, pause=0.1)
    return StreamClient(number, lambda: server.url, truths.series[FILTERS[0]][number], plan, findings)


async def work_until(client: StreamClient, count: int) -> None:
    """Work until so many steps are acknowledged, then leave."""
    stop = asyncio.Event()
    talk = asyncio.create_task(client.converse(stop))
    await until(lambda: client.acknowledged >= count or talk.done())
    stop.set()
    await talk


async def finish_streams(server: Server, truths: Truths) -> set[str]:
    """Mistakes in one series of each filter, from begin to end."""
    findings = Findings()
    clients = stream_clients(2, ["token"], lambda: server.url, truths, findings, pause=0)
    await asyncio.gather(*(client.converse(asyncio.Event()) for client in clients))
    assert all(count == len(clients) for count in findings.mistakes.values()), findings
    return set(findings.mistakes)
