"""Repeatedly kill a random server process, sometimes the supervisor, with SIGKILL under live clients.

Only unacknowledged steps may be lost: every client resumes from its last acknowledged state on any process, and all
numbers equal those of an uninterrupted run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.soak.faults.cast import Truths, find_truths, server_beside_redis, stream_clients, text_clients
from tests.soak.faults.detect import leaked
from tests.soak.faults.findings import Findings
from tests.soak.faults.server import Server
from tests.soak.faults.streams import StreamClient
from tests.soak.faults.verdict import Verdict
from tests.waiting import PATIENCE

Progress = Callable[[], None]


@dataclass(frozen=True)
class KillPlan:
    """The size of the scenario.

    Attributes:
        supervisor_every: Every so many kills, the supervisor is killed.
        quiet: Longest time between two kills, in seconds.
    """

    kills: int = 100
    supervisor_every: int = 10
    processes: int = 2
    streams: int = 24
    texts: int = 4
    quiet: float = 1.0
    seed: int = 7


def run_kill(plan: KillPlan, progress: Progress, truths: Truths | None = None) -> Verdict:
    """Kill processes, and check the requirements on the clients' findings."""
    truths = truths or find_truths()
    with server_beside_redis(plan.processes, with_texts=plan.texts > 0) as server, server:
        return asyncio.run(_run(plan, server, truths, progress))


async def _run(plan: KillPlan, server: Server, truths: Truths, progress: Progress) -> Verdict:
    findings = Findings()
    stop = asyncio.Event()
    streams = stream_clients(plan.streams, ("token", "session"), lambda: server.url, truths, findings)
    texts = text_clients(plan.texts, lambda: server.url, truths, findings)
    clients = [asyncio.create_task(client.survive(stop)) for client in streams]
    clients += [asyncio.create_task(client.survive(stop)) for client in texts]
    kills = await _kill_and_watch(plan, server, streams, progress)
    stop.set()
    await asyncio.gather(*clients)
    left = await asyncio.to_thread(leaked, server)
    code = await asyncio.to_thread(server.end)
    return _judge(findings, kills, left, code, server.orphans())


async def _kill_and_watch(
    plan: KillPlan, server: Server, streams: list[StreamClient], progress: Progress
) -> dict[str, int]:
    rng = random.Random(plan.seed)
    kills = {"process": 0, "supervisor": 0, "under live streams": 0}
    for number in range(1, plan.kills + 1):
        await asyncio.wait_for(asyncio.gather(*(stream.is_live.wait() for stream in streams)), PATIENCE)
        await asyncio.sleep(rng.uniform(0, plan.quiet))
        kills["under live streams"] += any(stream.is_live.is_set() for stream in streams)
        if number % plan.supervisor_every == 0:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            kills["supervisor"] += 1
        else:
            await asyncio.to_thread(_kill_one, server, rng)
            kills["process"] += 1
        progress()
    return kills


def _kill_one(server: Server, rng: random.Random) -> None:
    victim = rng.choice(server.children())
    server.kill(victim)
    server.wait_until(lambda: victim not in server.children() and server.is_whole(), "does not come back")


def _judge(findings: Findings, kills: dict[str, int], left: dict[str, float], code: int, orphans: list[int]) -> Verdict:
    verdict = Verdict({"kills": kills, **findings.to_document(), "leaked": left, "exit_code": code})
    verdict.require("no mistake in any answer or resumption", not findings.mistakes)
    verdict.require("kills hit live streams", findings.counts["connections lost"] >= sum(kills.values()) // 2)
    verdict.require("streams and texts were resumed", findings.counts["resumed"] > 0)
    verdict.require("nothing leaked", not left)
    verdict.require("exit code 0", code == 0)
    verdict.require("no orphan", not orphans)
    return verdict
