"""The engine without HTTP in a process of its own, driven by lines of JSON.

    python -m rfa.benchmarks.load.engine_alone

in   {"scenario", "name", "bundles", "streams"}
out  {"prepared": true}
in   {"warmup_seconds", "seconds"}
out  {"tokens_per_second"}, and the next measurement may follow
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from rfa.benchmarks.load.scenario import TextLoad, scenario_from
from rfa.benchmarks.load.truth import TextCase, open_models, text_engine, write_cases
from rfa.service.engine.engine import Engine
from rfa.service.engine.text.generated import TokenEvent


async def measure(
    engine: Engine, load: TextLoad, cases: list[TextCase], streams: int, warmup: float, seconds: float
) -> float:
    """Tokens a second of `streams` generations at a time, each token read as the HTTP route reads it.

    The loops start spread over the warm-up, as those of the load generator do.
    """
    begun = time.monotonic() + warmup
    end = begun + seconds
    tokens = 0

    async def keep_generating(turn: Iterator[TextCase], delay: float) -> None:
        nonlocal tokens
        await asyncio.sleep(delay)
        while time.monotonic() < end:
            async for event in engine.generate(load.model, next(turn).options).events():
                # The last token comes with the finished generation.
                tokens += begun <= time.monotonic() < end and (isinstance(event, TokenEvent) or event.last is not None)

    turn = itertools.cycle(cases)
    await asyncio.gather(*(keep_generating(turn, warmup * number / streams) for number in range(streams)))
    return tokens / seconds


async def _serve(order: dict[str, object]) -> None:
    scenario = scenario_from(str(order["name"]), order["scenario"])
    bundles = order["bundles"] if isinstance(order["bundles"], list) else []
    streams = scenario.text.streams
    engine = text_engine(open_models([Path(bundle) for bundle in bundles]), scenario.text, streams)
    try:
        cases = await write_cases(engine, scenario.text, range(scenario.text.cases))
        _say({"prepared": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            wanted = json.loads(line)
            rate = await measure(engine, scenario.text, cases, streams, wanted["warmup_seconds"], wanted["seconds"])
            _say({"tokens_per_second": rate})
    finally:
        engine.close()


def _say(document: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_serve(json.loads(sys.stdin.readline())))
