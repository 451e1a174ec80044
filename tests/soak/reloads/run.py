"""The rounds: publish, signal, wait for the word, and see that it is the right one."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.soak.faults.cast import state_key
from tests.soak.faults.detect import leaked
from tests.soak.faults.server import Server
from tests.soak.faults.verdict import Verdict
from tests.soak.reloads.clients import Cast, kept, one_shots, streams, tokens
from tests.soak.reloads.history import History
from tests.soak.reloads.versions import BREAKAGES, NAME, make_versions, publish, truths_of
from tests.waiting import PATIENCE, until

LOOK_SECONDS = 0.02
DECIDED = re.compile(r" reload (?:of .+ )?(committed|refused|aborted):")
RESTS_SECONDS = 0.3


@dataclass(frozen=True)
class Plan:
    """How much of it.

    Attributes:
        refused_every: so many-th round offers a bundle that is broken in the next way.
        mishap_every: in so many-th round a process is killed or, in turn, stopped, in the middle.
        stall_seconds: of the server: it kills a stopped process after twice as long.
    """

    rounds: int = 1000
    refused_every: int = 3
    mishap_every: int = 20
    processes: int = 2
    one_shots: int = 4
    kept: int = 4
    tokens: int = 4
    streams: int = 12
    stall_seconds: float = 4.0
    seed: int = 7


class Log:
    """What a server has written since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size

    def look(self) -> list[str]:
        """Whole lines that are new."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode().splitlines()


def run_reloads(plan: Plan, progress: Callable[[], object]) -> Verdict:
    """Reload so many times, and hold the clients' findings to the bars."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        versions = make_versions(folder)
        truths = truths_of(versions)
        served = folder / "served" / NAME
        # Each version once for its name; the first is served.
        names: dict[str, str] = {}
        for version in ("second", "first"):
            publish(versions[version], served)
            with _server(folder, served, plan) as server:
                names[_bundle_version(server)] = version
        with _server(folder, served, plan) as server:
            cast = Cast(server.port, truths, names, History("first"))
            driver = Driver(plan, server, cast, versions, served, Log(folder / "log"))
            return asyncio.run(driver.run(progress))


def _server(folder: Path, served: Path, plan: Plan) -> Server:
    return Server(
        folder,
        bundles=served,
        processes=plan.processes,
        state_keys=state_key(),
        stall_seconds=plan.stall_seconds,
        text_runtime="onnx",
    )


def _bundle_version(server: Server) -> str:
    return str(httpx.get(f"{server.url}/info", timeout=PATIENCE).json()["bundle_version"])


class Driver:
    """Changes bundles, signals, and does harm."""

    def __init__(
        self, plan: Plan, server: Server, cast: Cast, versions: dict[str, Path], served: Path, log: Log
    ) -> None:
        self._plan = plan
        self._server = server
        self._cast = cast
        self._versions = versions
        self._served = served
        self._log = log
        self._random = random.Random(plan.seed)
        self._outcomes: Counter[str] = Counter()
        self._durations: list[float] = []

    async def run(self, progress: Callable[[], object]) -> Verdict:
        """All rounds under load."""
        cast, plan = self._cast, self._plan
        counts = ((one_shots, plan.one_shots), (kept, plan.kept), (tokens, plan.tokens), (streams, plan.streams))
        clients = [asyncio.create_task(client(cast)) for client, count in counts for _ in range(count)]
        begun = time.monotonic()
        for number in range(1, plan.rounds + 1):
            await self._round(number)
            progress()
        seconds = time.monotonic() - begun
        cast.stop.set()
        await asyncio.gather(*clients)
        left = await asyncio.to_thread(leaked, self._server)
        code = await asyncio.to_thread(self._server.end)
        return self._judge(seconds, left, code)

    async def _round(self, number: int) -> None:
        plan, history = self._plan, self._cast.history
        is_broken = number % plan.refused_every == 0
        is_harmed = number % plan.mishap_every == 0
        (other,) = set(self._versions) - {history.version}
        await asyncio.sleep(self._random.uniform(0, RESTS_SECONDS))
        await asyncio.to_thread(publish, self._versions[other], self._served)
        if is_broken:
            names = list(BREAKAGES)
            await asyncio.to_thread(BREAKAGES[names[number // plan.refused_every % len(names)]], self._served)
        # Chosen before the signal: while bundles are tried, the process that tries them is a child too.
        victim = self._random.choice(self._server.children())
        begun = time.monotonic()
        history.begin(None if is_broken else other, begun)
        self._server.send(signal.SIGHUP)
        harming = asyncio.create_task(self._harm(number, victim)) if is_harmed else None
        outcome = await self._decided()
        self._durations.append(time.monotonic() - begun)
        self._note(number, outcome, is_broken=is_broken, is_harmed=is_harmed)
        if harming is not None:
            await harming

    async def _decided(self) -> str:
        """What the server says of a round, once."""
        decided: list[str] = []

        def is_decided() -> bool:
            decided.extend(found[1] for line in self._log.look() if (found := DECIDED.search(line)))
            return bool(decided)

        await until(is_decided)
        return decided[0]

    def _note(self, number: int, outcome: str, *, is_broken: bool, is_harmed: bool) -> None:
        findings, history = self._cast.findings, self._cast.history
        self._outcomes[outcome] += 1
        expected = {"refused"} if is_broken else {"committed"}
        if outcome not in expected | ({"aborted"} if is_harmed else set()):
            findings.mistake("outcome", f"round {number}: {outcome}")
        if outcome == "committed" and not is_broken:
            history.commit(time.monotonic())
        elif not history.keep():
            findings.mistake("version", f"round {number} was {outcome}, and somebody was answered by its version")

    async def _harm(self, number: int, victim: int) -> None:
        """Kill or stop a process somewhere in the round, and wait until there is another one."""
        await asyncio.sleep(self._random.uniform(0, 1.5 * (sum(self._durations[-5:]) / 5 if self._durations else 1)))
        kind = signal.SIGKILL if number // self._plan.mishap_every % 2 else signal.SIGSTOP
        self._cast.history.harm(time.monotonic())
        os.kill(victim, kind)
        self._cast.findings.counts[f"processes hit by {kind.name}"] += 1
        await asyncio.to_thread(
            self._server.wait_until,
            lambda: victim not in self._server.children() and self._server.is_whole(),
            "does not come back",
        )
        self._cast.history.heal(time.monotonic())

    def _judge(self, seconds: float, left: dict[str, float], code: int) -> Verdict:
        findings, plan = self._cast.findings, self._plan
        ordered = sorted(self._durations)
        verdict = Verdict(
            {
                "rounds": plan.rounds,
                "processes": plan.processes,
                "outcomes": dict(sorted(self._outcomes.items())),
                "seconds": round(seconds, 1),
                "round_seconds": {
                    "p50": round(ordered[len(ordered) // 2], 3),
                    "max": round(ordered[-1], 3),
                },
                **findings.to_document(),
                "leaked": left,
                "exit_code": code,
            }
        )
        kinds = ("one-shot", "kept", "info", "token", "stream")
        verdict.require("one version at a time over all processes", not findings.mistakes["version"])
        verdict.require("nothing goes on with another version", not findings.mistakes["mixture"])
        verdict.require("no connection or stream lost but with its process", not findings.mistakes["lost"])
        verdict.require("no mistake of another kind", not findings.mistakes)
        verdict.require("every third round refused", self._outcomes["refused"] == plan.rounds // plan.refused_every)
        verdict.require("both versions were served", self._outcomes["committed"] > 0)
        verdict.require("all kinds of clients were answered", all(findings.counts[kind] for kind in kinds))
        verdict.require("nothing leaked", not left)
        verdict.require("exit code 0", code == 0)
        verdict.require("no orphan", not self._server.orphans())
        return verdict
