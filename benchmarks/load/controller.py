"""Run a scenario: start generator processes, sample the server's cost, and add up the results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rfa.benchmarks.load.generator import Share, truth_count
from rfa.benchmarks.load.scenario import Scenario, to_table
from rfa.benchmarks.load.server import Target, Usage
from rfa.benchmarks.load.tally import Tally, Window

# Seconds between the order and the start, so that every generator has read it.
LEAD_SECONDS = 0.5
LONGEST_LINE = 1 << 28
STOP_SECONDS = 10.0


class GeneratorError(RuntimeError):
    """A generator process ended before its result."""


@dataclass(frozen=True)
class Run:
    """The measurements of one run."""

    scenario: Scenario
    tally: Tally
    generator_cpu: list[float]
    server: dict[str, float | int] | None


class Generators:
    """The generator processes of a scenario, with prepared expected results."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process], target: Target) -> None:
        self._processes = processes
        self._target = target

    async def run(self, scenario: Scenario, title: str) -> Run:
        """Offer a load once and add up the tallies."""
        await self._tell({"run": to_table(scenario)})
        await asyncio.gather(*(read(process) for process in self._processes))
        window = Window(time.monotonic() + LEAD_SECONDS, scenario.warmup_seconds, scenario.seconds)
        await self._tell({"start": window.start})
        usage = Usage(self._target.pid)
        watchers = [asyncio.ensure_future(usage.watch()), asyncio.ensure_future(_show_time(window, title))]
        try:
            lines = await asyncio.gather(*(read(process) for process in self._processes))
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
        results = [line["result"] for line in lines]
        return Run(
            scenario,
            Tally.from_documents(window, [result["tally"] for result in results]),
            [round(result["cpu_share"], 3) for result in results],
            usage.between(window.measured_from, window.end),
        )

    async def _tell(self, document: dict[str, Any]) -> None:
        for process in self._processes:
            await write(process, document)


@asynccontextmanager
async def generators(
    scenario: Scenario, target: Target, bundles: Sequence[Path], cores: Sequence[int] | None = None
) -> AsyncIterator[Generators]:
    """Start the generator processes, on these cores if given. Each prepares the expected results of its share."""
    processes: list[asyncio.subprocess.Process] = []
    try:
        for index in range(scenario.generators):
            process = await spawn("rfa.benchmarks.load.generator", cores)
            processes.append(process)
            await write(
                process,
                {
                    "name": scenario.name,
                    "scenario": to_table(scenario),
                    "url": target.url,
                    "bundles": [str(bundle) for bundle in bundles],
                    "index": index,
                    "of": scenario.generators,
                },
            )
        total = sum(truth_count(scenario, Share(index, scenario.generators)) for index in range(scenario.generators))
        with tqdm(total=total, desc="compute the right answers", unit="series", disable=not total) as bar:
            await asyncio.gather(*(_prepared(process, bar) for process in processes))
        yield Generators(processes, target)
    finally:
        await asyncio.gather(*(stop(process) for process in processes))


async def _prepared(process: asyncio.subprocess.Process, bar: Any) -> None:
    while "prepared" not in (line := await read(process)):
        bar.update(line["progress"])


async def spawn(module: str, cores: Sequence[int] | None) -> asyncio.subprocess.Process:
    """Start a process of this package that reads and writes lines of JSON."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if cores is not None:
        os.sched_setaffinity(process.pid, cores)
    return process


async def read(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """Read the next line of a process."""
    line = await process.stdout.readline() if process.stdout is not None else b""
    if not line:
        raise GeneratorError(f"a load generator ended early, with exit code {await process.wait()}")
    document: dict[str, Any] = json.loads(line)
    return document


async def write(process: asyncio.subprocess.Process, document: dict[str, Any]) -> None:
    """Send a line to a process. Whether the process has ended is detected by reading."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(json.dumps(document).encode() + b"\n")
            await process.stdin.drain()


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a process by closing its input, and kill it after a timeout."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _show_time(window: Window, title: str) -> None:
    total = round(window.warmup_seconds + window.seconds)
    form = "{l_bar}{bar}| {n_fmt}/{total_fmt} s"
    with tqdm(total=total, desc=title, bar_format=form) as bar:
        while (elapsed := time.monotonic() - window.start) < total:
            bar.update(max(0, int(elapsed) - bar.n))
            await asyncio.sleep(0.5)
        bar.update(total - bar.n)
