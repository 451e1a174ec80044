"""Prompts of many requests read together: whole pieces within a budget, in order, and each fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rfa.service.engine.served import Served
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.errors import EngineFailure, InvalidRequest, Overloaded
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
