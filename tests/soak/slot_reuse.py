"""Reuse slots of the state pool a million times, and check that no data of an earlier user remain.

    python -m tests.soak.slot_reuse --count 1000000

Live streams, requests and texts run through the served engine. They end normally, are abandoned, rejected, fail, or
make a whole batch raise (`tests.soak.visits`). Every answer is compared, to the last bit, with that of an unshared
filter. Every slot is marked with its user (`tests.soak.watched`). Long live streams run all the time. After every phase
all slots must be free and zero.

Then the detectors are tested on two deliberately broken engines: without padding the long streams must change, and
without zeroing of slots the marks must be found.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import random
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import uvloop
from tqdm import tqdm

from rfa.measured import RESULTS, origin, write_result
from rfa.runtime.batching import BatchSizes
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.graph_steps import ROW_COUNTS, GraphSteps
from rfa.runtime.pool import StatePool
from rfa.runtime.text.language import LanguageRuntime
from rfa.service.engine.engine import Engine
from rfa.service.engine.models import Models
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings
from tests.soak.courses import Truth, make_course, truth_of
from tests.soak.visits import Findings, TextTruth, Visitor, World, follow_needle, tokens_of
from tests.soak.watched import WatchedFilter, dirty_bytes
from tests.waiting import TooLate, until

RESULT = RESULTS / "slot-reuse.json"
FILTERS = ("linear", "oscillator")
LANGUAGE = "books"
PHASES = 20
VISITORS = 96
NEEDLES = 4  # long live streams per filter
NEEDLE_LENGTH = 150
COURSES, COURSE_LENGTH = 32, 16
TEXTS = 12
BROKEN_COUNT = 4_000  # users of the deliberately broken engines


@dataclass(frozen=True)
class Outcome:
    """Results of a run. `left` counts slots in use, and bytes that are not zero, after the phases."""

    acquired: int
    findings: Findings
    leaks: dict[str, int]
    left: dict[str, int]

    @property
    def is_clean(self) -> bool:
        """Return whether no user received data of another."""
        return not (self.findings.wrong.total() or sum(self.leaks.values()) or sum(self.left.values()))


@functools.cache
class Unpadded(BatchSizes):
    """Batches without padding: the numbers of a row then depend on the other rows."""

    def padded(self, rows: int) -> int:
        return rows


def _runtime(name: str, is_padded: bool) -> FilterRuntime:
    runtime = FilterRuntime(open_bundle(BUNDLE_ROOT / name))
    if not is_padded and isinstance(runtime.steps, GraphSteps):
        runtime.steps.sizes = Unpadded(ROW_COUNTS)
    return runtime


@functools.cache
def _truths(name: str, is_padded: bool, seed: int, count: int, length: int) -> list[Truth]:
    runtime, draw = _runtime(name, is_padded), np.random.default_rng([seed, length])
    return [truth_of(runtime, make_course(draw, length, runtime.observation_size)) for _ in range(count)]


class Reuse:
    """An engine with expected answers and phases.

    Args:
        is_padded: Whether batches of the filters are padded.
        has_texts: Whether texts are generated too.
    """

    def __init__(self, seed: int, *, is_padded: bool = True, has_texts: bool = False) -> None:
        self._rng = random.Random(seed)
        self.filters = {name: WatchedFilter(_runtime(name, is_padded)) for name in FILTERS}
        language = LanguageRuntime(open_bundle(BUNDLE_ROOT / LANGUAGE), streams=256, max_rows=8) if has_texts else None
        self.languages = {LANGUAGE: language} if language else {}
        self._metrics = Metrics()
        settings = Settings(bundles=(), workers=2, max_running=64, max_streams=256, max_batch_rows=8)
        self._engine = Engine(Models(self.languages, cast(Any, self.filters), []), settings, self._metrics)
        self._world = World(
            self._engine,
            [truth for name in FILTERS for truth in _truths(name, is_padded, seed, COURSES, COURSE_LENGTH)],
            [truth for name in FILTERS for truth in _truths(name, is_padded, seed, NEEDLES, NEEDLE_LENGTH)],
            [],
            Findings(),
        )

    @property
    def acquired(self) -> int:
        """Return the number of filter slots acquired so far."""
        return sum(watched.acquired for watched in self.filters.values())

    async def run(self, count: int, phases: int, bar: tqdm[Any] | None = None) -> Outcome:
        """Run visits until so many slots were acquired. After each phase all slots must be free."""
        if self.languages:
            self._world = replace(self._world, texts=await self._texts())
        left = {"slots": 0, "bytes": 0}
        try:
            for phase in range(1, phases + 1):
                await self._phase(count * phase // phases, bar)
                await self._settle()
                left["slots"] += sum(pool.in_use for pool in self._pools())
                left["bytes"] += sum(dirty_bytes(pool) for pool in self._pools())
        finally:
            await asyncio.to_thread(self._engine.close)
        leaks: dict[str, int] = {}
        for watched in self.filters.values():
            for kind, number in watched.leaks.items():
                leaks[kind] = leaks.get(kind, 0) + number
        return Outcome(self.acquired, self._world.findings, leaks, left)

    async def _texts(self) -> list[TextTruth]:
        texts = []
        for seed in range(TEXTS):
            options = GenerateOptions(
                prompt=("It was the", "", "She said: “no”")[seed % 3],
                max_new_tokens=2 + seed % 4,
                seed=seed,
                is_sampled=True,
                latent_noise=0.3 * (seed % 2),
                samples=1 + seed % 2,
            )
            texts.append(TextTruth(options, tokens_of(await self._engine.generate(None, options).result())))
        return texts

    async def _phase(self, target: int, bar: tqdm[Any] | None) -> None:
        def goes_on() -> bool:
            return self.acquired < target

        async def keep_visiting() -> None:
            visitor = Visitor(self._world, random.Random(self._rng.getrandbits(64)))
            while goes_on():
                await visitor.visit()
                if bar is not None:
                    bar.update(self.acquired - bar.n)

        needles = (follow_needle(self._world, truth, goes_on) for truth in self._world.needles)
        await asyncio.gather(*needles, *(keep_visiting() for _ in range(VISITORS)))

    async def _settle(self) -> None:
        """Wait until no job is left. Cancelled jobs leave after their quantum."""
        with suppress(TooLate):  # remaining jobs are found by their slots
            await until(lambda: not self._is_busy())

    def _is_busy(self) -> bool:
        names = ("rfa_num_requests_running", "rfa_num_requests_waiting", "rfa_num_streams")
        return any(self._metrics.registry.get_sample_value(name) for name in names)

    def _pools(self) -> list[StatePool]:
        return [watched.pool for watched in self.filters.values() if watched.pool is not None] + [
            language.pool for language in self.languages.values()
        ]


def soak(count: int, seed: int, phases: int = PHASES, *, progress: bool = False, **options: bool) -> Outcome:
    """Run once, on a separate event loop. See `Reuse` for the options."""
    with (
        tqdm(total=count, desc="owners", disable=not progress, mininterval=1) as bar,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        reuse = Reuse(seed, **options)
        return runner.run(reuse.run(count, phases, bar if progress else None))


def without_zeroing() -> AbstractContextManager[object]:
    """Do not zero released slots."""

    def leave(pool: StatePool, row: int) -> None:
        pass

    return mock.patch.object(StatePool, "_clear", leave)


def report(outcome: Outcome, unpadded: Outcome, unzeroed: Outcome, seconds: float, seed: int) -> dict[str, Any]:
    """Return the document to store."""
    findings = outcome.findings
    return {
        **origin("python -m tests.soak.slot_reuse"),
        "seed": seed,
        "seconds": round(seconds, 1),
        "acquired": outcome.acquired,
        "visits": dict(findings.ends.most_common()),
        "answers_compared": dict(findings.answers),
        "wrong": findings.wrong.total(),
        "wrong_by_kind": {kind: number for kind, number in findings.wrong.items() if number},
        "leaks": sum(outcome.leaks.values()),
        "left_after_phases": outcome.left,
        "without_padding": {
            "needle_answers": unpadded.findings.answers["needle"],
            "needle_answers_that_differ": unpadded.findings.wrong["needle"],
        },
        "without_zeroing": {"acquired": unzeroed.acquired, "leaks": sum(unzeroed.leaks.values())},
    }


def main() -> int:
    """Run, test the detectors and store the results. Return 1 after a leak or if a detector fails."""
    parser = argparse.ArgumentParser(
        description="Reuse slots of the state pool many times, and look for data of earlier users."
    )
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--phases", type=int, default=PHASES, help="after each all slots must be free")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    logging.getLogger("rfa").setLevel(logging.CRITICAL)  # thousands of failures are deliberate
    begun = time.monotonic()
    outcome = soak(arguments.count, arguments.seed, phases=arguments.phases, has_texts=True, progress=True)
    seconds = time.monotonic() - begun
    unpadded = soak(BROKEN_COUNT, arguments.seed, phases=1, is_padded=False)
    with without_zeroing():
        unzeroed = soak(BROKEN_COUNT, arguments.seed, phases=1)
    document = report(outcome, unpadded, unzeroed, seconds, arguments.seed)
    write_result(arguments.out, document)
    sees = document["without_padding"]["needle_answers_that_differ"] > 0 and document["without_zeroing"]["leaks"] > 0
    print(
        f"{outcome.acquired} owners, {document['wrong']} wrong answers of {outcome.findings.answers.total()}, "
        f"{document['leaks']} leaks; the detectors {'see' if sees else 'are blind'}"
    )
    return 0 if outcome.is_clean and sees else 1


if __name__ == "__main__":
    raise SystemExit(main())
