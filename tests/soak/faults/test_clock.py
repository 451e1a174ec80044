"""The wall clock of a server jumps: live streams and sessions do not notice, tokens expire by it and come back.

A kernel gives no process a wall clock of its own, so the clock of the server's Python is replaced.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.soak.faults.cast import BUNDLES, Truths, stream_clients
from tests.soak.faults.findings import Findings
from tests.soak.faults.server import Server
from tests.waiting import PATIENCE

HOUR, DAY = 3_600, 86_400
PROGRAM = (sys.executable, str(Path(__file__).with_name("clock_child.py")))


class Clock:
    """Of the server."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.jump(0)

    def jump(self, offset: float) -> None:
        """Be ahead of the true time by so many seconds."""
        new = self.file.with_suffix(".new")
        new.write_text(str(offset))
        new.replace(self.file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "offset")


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    with Server(
        tmp_path,
        program=PROGRAM,
        environment={"CLOCK_OFFSET": str(clock.file)},
        bundles=BUNDLES[0],
        processes=1,
        sessions="memory",
        state_seconds=DAY,
        session_seconds=DAY,
    ) as made:
        yield made


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    reply = httpx.post(f"{server.url}/filter", json={"observations": [[1.0, 0.5]], **fields}, timeout=PATIENCE)
    document: dict[str, Any] = reply.json()
    return document


def test_tokens_and_sessions_under_a_jumping_clock(server: Server, clock: Clock) -> None:
    token = ask(server, return_state=True)["state"]
    expected = ask(server, state=token)["steps"]
    assert ask(server, return_state="session:here")["state"] == "session:here@1"
    step = 1
    # A token is good for a day of the server's clock, and may come from a clock that is a minute ahead.
    for offset, is_good in ((HOUR, True), (2 * DAY, False), (0, True), (-HOUR, False), (-30, True), (0, True)):
        clock.jump(offset)
        answer = ask(server, state=token)
        if is_good:
            assert answer["steps"] == expected
        else:
            assert answer["error"]["code"] == "state_invalid"
        # A session lives by the time that passes, not by what the clock says.
        step += 1
        assert ask(server, state="session:here")["state"] == f"session:here@{step}"


def test_live_streams_do_not_notice_a_jump(server: Server, clock: Clock, filter_truths: Truths) -> None:
    findings = Findings()
    truths = Truths({"linear": filter_truths.series["linear"]}, [])

    async def run() -> None:
        clients = stream_clients(2, ["token"], lambda: server.url, truths, findings)
        talks = [asyncio.create_task(client.converse(asyncio.Event())) for client in clients]
        for offset in (2 * DAY, -2 * DAY):
            async with asyncio.timeout(PATIENCE):
                await clients[0].is_live.wait()
            clock.jump(offset)
            await asyncio.sleep(0.2)
        assert await asyncio.gather(*talks) == ["finished", "finished"]

    asyncio.run(run())
    assert not findings.mistakes, findings
    assert httpx.get(f"{server.url}/ready", timeout=PATIENCE).status_code == 200
