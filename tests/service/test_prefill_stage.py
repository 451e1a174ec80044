"""Prompts of many requests read together: whole pieces within a budget, in order, and each fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rfa.service.engine.served import Served
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.errors import EngineFailure, InternalError, InvalidRequest, Overloaded
from rfa.service.memory import MemoryBudget
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings
from tests.service.models import FakeLanguage, Seen, SeenMore, fake_models

pytestmark = pytest.mark.anyio
BUDGET, ROWS = 10, 4


def stage_of(model: FakeLanguage) -> Any:
    metrics = Metrics()
    settings = Settings(bundles=(), max_prompt_tokens=40)
    served = Served.build(fake_models(model), settings, metrics, DriftMeter(0, metrics))
    return served.prefill[model.name, "attention"][0]


def job_of(stage: Any, model: FakeLanguage, length: int, **given: Any) -> GenerateJob:
    """Of a prompt of so many tokens, one byte each."""
    prompt = tuple(ord("a") + index % 26 for index in range(length))
    options = GenerateOptions(prompt=prompt, max_new_tokens=3, seed=0, mode="attention", **given)
    return GenerateJob(stage, model, options)  # type: ignore[arg-type]


async def test_whole_pieces_of_many_prompts_are_read_together() -> None:
    model = FakeLanguage(prefill_tokens=BUDGET, prefill_rows=ROWS)
    stage = stage_of(model)
    assert stage.max_rows == ROWS
    jobs = [job_of(stage, model, length) for length in (4, 24, 3, 1)]
    stage.run(jobs)  # 3 tokens, then no room for 10, then 2, then nothing to be read
    assert model.read == [[3, 2]]
    assert [bool(job.streams) for job in jobs] == [True, False, True, True]
    stage.run(jobs[1:2])
    stage.run([jobs[1], job_of(stage, model, 7)])
    stage.run(jobs[1:2])
    assert model.read[1:] == [[10], [10], [3]]
    assert jobs[1].streams and jobs[1].streams[0].context.position == 23


async def test_a_prompt_that_fails_ends_alone() -> None:
    class Picky(FakeLanguage):
        def start(
            self, mode: str, *, capacity: int = 1, forks: int = 0, common: int = 0, passes: int | None = None
        ) -> Seen:
            if capacity > 20:
                raise Overloaded("no room", retry_after_seconds=1)
            return super().start(mode, capacity=capacity, forks=forks, common=common)

        def prefill(self, contexts: Sequence[Seen], pieces: Sequence[Sequence[int]]) -> list[SeenMore]:
            advances = super().prefill(contexts, pieces)
            return [
                SeenMore(one.context, one.tokens, np.nan if len(piece) == 5 else one.noise)
                for one, piece in zip(advances, pieces, strict=True)
            ]

    model = Picky(prefill_tokens=100, prefill_rows=ROWS)
    stage = stage_of(model)
    lengths = {"fine": 3, "too long": 41, "no room": 30, "broken": 6, "fine, too": 8}
    jobs = {name: job_of(stage, model, length) for name, length in lengths.items()}
    stage.run(list(jobs.values()))
    assert model.read == [[2, 5, 7]]
    ends = {name: job.outcome()[1] if job.done else None for name, job in jobs.items()}
    assert {name: type(end) for name, end in ends.items()} == {
        "fine": type(None), "too long": InvalidRequest, "no room": Overloaded, "broken": EngineFailure,
        "fine, too": type(None),
    }  # fmt: skip
    assert jobs["fine"].streams and jobs["fine, too"].streams


async def test_a_batch_that_failed_may_come_again() -> None:
    """As the scheduler does, one by one: what is done is not done twice."""

    class Failing(FakeLanguage):
        def prefill(self, contexts: Sequence[Seen], pieces: Sequence[Sequence[int]]) -> list[SeenMore]:
            if len(contexts) > 1:
                raise RuntimeError("out of memory")
            return super().prefill(contexts, pieces)

    model = Failing(prefill_tokens=100, prefill_rows=ROWS)
    stage = stage_of(model)
    jobs = [job_of(stage, model, length) for length in (5, 41, 9)]
    with pytest.raises(RuntimeError, match="out of memory"):
        stage.run(jobs)
    assert [job.done for job in jobs] == [False, True, False]
    for job in jobs:
        stage.run([job])
    assert model.read == [[4], [8]]
    assert isinstance(jobs[1].outcome()[1], InvalidRequest)


async def test_a_context_is_asked_for_space_for_its_text_and_for_its_forks() -> None:
    asked = []

    class Noting(FakeLanguage):
        def start(
            self, mode: str, *, capacity: int = 1, forks: int = 0, common: int = 0, passes: int | None = None
        ) -> Seen:
            asked.append((capacity, forks, common))
            return super().start(mode, capacity=capacity, forks=forks, common=common)

    model = Noting()
    stage = stage_of(model)
    stage.run([job_of(stage, model, 12, samples=3)])
    assert asked == [(15, 2, 11)]


async def test_space_that_no_token_will_have_is_given_back() -> None:
    """Of a long prompt each byte was taken for one."""
    model = FakeLanguage(cache_bytes=100)
    stage = stage_of(model)
    options = GenerateOptions(prompt="|" + 11 * "a", max_new_tokens=3, seed=0, mode="attention", samples=2)
    lease = MemoryBudget(100_000).take(1_000 + 2 * 100 * 50)
    job = GenerateJob(stage, model, options, None, lease, 50)  # type: ignore[arg-type]
    stage.run([job])
    assert job.streams and lease.size == 1_000 + 2 * 100 * (12 + 3)


async def test_what_never_fits_is_refused_and_not_asked_to_come_again() -> None:

    class Small(FakeLanguage):
        def fits(self, capacity: int, streams: int, common: int) -> bool:
            assert (capacity, common) == (15, 11)
            return streams <= 4

    model = Small()
    stage = stage_of(model)
    fits, too_much = (job_of(stage, model, 12, samples=samples) for samples in (4, 5))
    stage.run([fits])
    stage.run([too_much])
    assert fits.streams and not too_much.streams
    refusal = too_much.outcome()[1]
    assert isinstance(refusal, InvalidRequest) and refusal.code == "context_too_long"
    assert "27 tokens" in str(refusal)


@dataclass
class Forked(Seen):
    """A context whose second fork fails."""

    forks: list[Seen] = field(default_factory=list)

    def fork(self) -> Seen:
        if self.forks:
            raise RuntimeError("out of memory")
        self.forks.append(super().fork())
        return self.forks[-1]


async def test_forks_before_one_that_fails_are_given_back() -> None:
    context = Forked()

    class Full(FakeLanguage):
        def start(
            self, mode: str, *, capacity: int = 1, forks: int = 0, common: int = 0, passes: int | None = None
        ) -> Seen:
            return context

    model = Full()
    stage = stage_of(model)
    job = job_of(stage, model, 12, samples=4)
    stage.run([job])
    assert isinstance(job.outcome()[1], InternalError) and not job.streams
    job.release()  # each once, or the fake complains
    assert context.is_released and [fork.is_released for fork in context.forks] == [True]
