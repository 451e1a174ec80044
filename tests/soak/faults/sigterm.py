"""Repeated SIGTERM under hundreds of live streams and some generations.

Every stream gets exactly one terminal frame, `done` with the reason `drain` and its state, and resumes from it on the
next server with the numbers of an uninterrupted run. The server ends in time with exit code 0.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rfa.service.process.shutdown_limits import FLUSH_SECONDS
from tests.soak.faults.cast import Truths, find_truths, server_beside_redis, stream_clients, text_clients
from tests.soak.faults.findings import Findings
from tests.soak.faults.server import Server
from tests.soak.faults.streams import RETRY_SECONDS, Outcome, StreamClient
from tests.soak.faults.texts import TextClient
from tests.soak.faults.verdict import Verdict
from tests.waiting import PATIENCE

# Time for the end of the processes after all states are returned.
EXIT_SECONDS = 3.0


@dataclass(frozen=True)
class SigtermPlan:
    """The size of the scenario.

    Attributes:
        grace: Grace time of the server in seconds.
        work: Seconds before the signal.
    """

    rounds: int = 50
    processes: int = 2
    streams: int = 200
    texts: int = 4
    grace: int = 10
    work: float = 0.5


def run_sigterm(plan: SigtermPlan, progress: Callable[[], None], truths: Truths | None = None) -> Verdict:
    """Start and end servers, and check the requirements on clients and servers."""
    truths = truths or find_truths()
    with server_beside_redis(plan.processes, with_texts=plan.texts > 0, shutdown_grace_seconds=plan.grace) as server:
        return asyncio.run(_run(plan, server, truths, progress))


async def _run(plan: SigtermPlan, server: Server, truths: Truths, progress: Callable[[], None]) -> Verdict:
    findings = Findings()
    streams = stream_clients(
        plan.streams, ("last", "session"), lambda: server.url, truths, findings, pause=plan.streams / 1000
    )
    texts = text_clients(plan.texts, lambda: server.url, truths, findings)
    ends: list[tuple[int, float]] = []
    outcomes: Counter[str] = Counter()
    orphans: set[int] = set()
    for _ in range(plan.rounds):
        await asyncio.to_thread(server.start)
        try:
            outcomes += await _one_round(plan, server, streams, texts, ends)
        finally:
            if server.exit_code is None:
                server.kill()
        orphans.update(server.orphans())
        progress()
    return judge(plan, findings, outcomes, ends, orphans)


async def _one_round(
    plan: SigtermPlan,
    server: Server,
    streams: Sequence[StreamClient],
    texts: Sequence[TextClient],
    ends: list[tuple[int, float]],
) -> Counter[str]:
    """Return how the streams of one round ended. The exit code and duration of the server are added to `ends`."""
    stop = asyncio.Event()
    talks = [asyncio.create_task(_until_the_end(stream, stop)) for stream in streams]
    reads = [asyncio.create_task(text.drain(stop)) for text in texts]
    live = [asyncio.create_task(stream.is_live.wait()) for stream in streams]
    for first in zip(live, talks, strict=True):
        await asyncio.wait(first, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        first[0].cancel()
    await asyncio.sleep(plan.work)
    stop.set()
    begun = time.monotonic()
    server.send(signal.SIGTERM)
    code = await asyncio.to_thread(server.wait)
    ends.append((code, time.monotonic() - begun))
    outcomes: Counter[str] = Counter(await asyncio.gather(*talks))
    await asyncio.gather(*reads)
    return outcomes


async def _until_the_end(stream: StreamClient, stop: asyncio.Event) -> Outcome:
    """Run series after series until a connection ends otherwise; a slow machine may reject one earlier."""
    never = asyncio.Event()
    while (outcome := await stream.converse(never)) == "finished" or (outcome == "refused" and not stop.is_set()):
        await asyncio.sleep(RETRY_SECONDS if outcome == "refused" else 0)
    return outcome


def judge(
    plan: SigtermPlan, findings: Findings, outcomes: Counter[str], ends: list[tuple[int, float]], orphans: set[int]
) -> Verdict:
    """Check the requirements on clients and servers."""
    slowest = max(seconds for _, seconds in ends)
    verdict = Verdict(
        {
            "rounds": len(ends),
            "streams": plan.streams,
            "outcomes": dict(outcomes),
            **findings.to_document(),
            "exit_codes": sorted({code for code, _ in ends}),
            "slowest_end_seconds": round(slowest, 3),
        }
    )
    verdict.require("no mistake in any answer or resumption", not findings.mistakes)
    # A stream that has just ended starts its next series while the server closes, and is rejected.
    ended = outcomes["drained"] + outcomes["refused"]
    verdict.require("every stream drained, each time", ended == outcomes.total() == plan.rounds * plan.streams)
    # A rejected stream had nothing to resume.
    resumed = findings.counts["resumed"] + outcomes["refused"]
    verdict.require("every stream resumed, each time", resumed >= (plan.rounds - 1) * plan.streams)
    verdict.require("no text was lost", findings.counts["texts lost"] == 0)
    verdict.require("exit code 0, each time", all(code == 0 for code, _ in ends))
    verdict.require("ended within the grace time", slowest <= plan.grace + FLUSH_SECONDS + EXIT_SECONDS)
    verdict.require("no orphan", not orphans)
    return verdict
