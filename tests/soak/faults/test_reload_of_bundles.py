"""Bundles that are replaced under live streams: a bad one changes nothing, a good one serves what begins after it."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.soak.faults.cast import ROOT, Truths, stream_clients
from tests.soak.faults.detect import leaked
from tests.soak.faults.findings import Findings
from tests.soak.faults.server import Server
from tests.soak.faults.streams import StreamClient
from tests.soak.faults.tampering import TAMPERINGS
from tests.waiting import PATIENCE

REFUSED = "every process still serves"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "bundles" / "linear", tmp_path / "linear"))


@pytest.fixture
def server(tmp_path: Path, bundle: Path) -> Iterator[Server]:
    with Server(tmp_path, bundles=bundle, processes=2) as made:
        yield made


def reload(server: Server, verdict: str) -> None:
    """Have the bundles loaded anew, and wait for what the supervisor says of it."""
    before = server.log.count(verdict)
    server.send(signal.SIGHUP)
    server.wait_until(lambda: server.log.count(verdict) > before, "does not load its bundles anew")


def version(server: Server) -> str:
    return str(httpx.get(f"{server.url}/info", timeout=PATIENCE).json()["bundle_version"])


def versions(server: Server) -> set[str]:
    """As every process tells."""
    return set(server.labelled("bundle_version_info", "version"))


async def live(clients: list[StreamClient]) -> None:
    async with asyncio.timeout(PATIENCE):
        for client in clients:
            await client.is_live.wait()


@pytest.mark.slow
def test_bad_bundles_change_nothing_under_live_streams(server: Server, bundle: Path, filter_truths: Truths) -> None:
    findings = Findings()
    stop = asyncio.Event()

    async def run() -> None:
        truths = Truths({"linear": filter_truths.series["linear"]}, [])
        clients = stream_clients(4, ["token"], lambda: server.url, truths, findings)
        work = [asyncio.create_task(client.survive(stop)) for client in clients]
        await live(clients)
        for tamper, named in TAMPERINGS.values():
            shutil.copytree(ROOT / "bundles" / "linear", bundle, dirs_exist_ok=True)
            tamper(bundle)
            await asyncio.to_thread(reload, server, REFUSED)
            *_, line = (line for line in server.log.splitlines() if REFUSED in line)
            assert named in line and version(server) in line
            assert versions(server) == {version(server)}
            (bundle / "extra.pt2").unlink(missing_ok=True)
        shutil.copytree(ROOT / "bundles" / "linear", bundle, dirs_exist_ok=True)
        await asyncio.to_thread(reload, server, "all 2 processes serve version")
        await live(clients)
        stop.set()
        await asyncio.gather(*work)

    asyncio.run(run())
    assert not findings.mistakes and "connections lost" not in findings.counts, findings
    assert leaked(server) == {}
    assert server.end() == 0
