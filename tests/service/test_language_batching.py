"""A text does not depend on its neighbours, and its seat of the pool is free again however it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.text.compiled_language import CompiledLanguageRuntime
from rfa.runtime.text.language import CpuLanguage, LanguageRuntime
from rfa.service.encoding import dumps
from rfa.service.engine.engine import Engine
from rfa.service.engine.models import Models
from rfa.service.engine.text.generated import Generation
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings
from tests.waiting import until

PROMPTS = ("It was the", "She said: “no”", "", "A long time ago, in a house by the sea, there lived", "…")


@pytest.fixture(scope="module", params=[pytest.param("onnx", marks=pytest.mark.slow), "compiled"])
def runtime(request: pytest.FixtureRequest, books_bundle: Path) -> CpuLanguage:
    bundle = open_bundle(books_bundle)
    if request.param == "onnx":
        return LanguageRuntime(bundle, streams=64, max_rows=24)
    return CompiledLanguageRuntime(bundle, streams=64)


@pytest.fixture
def engine(runtime: CpuLanguage) -> Iterator[Engine]:
    made = Engine(Models({runtime.name: runtime}, {}, []), Settings(bundles=()), Metrics())
    yield made
    made.close()


def options(seed: int, **given: Any) -> GenerateOptions:
    requested = {
        "prompt": PROMPTS[seed % len(PROMPTS)], "max_new_tokens": 6 + seed % 5, "is_sampled": True, "temperature": 0.9,
        "top_p": 0.9 if seed % 2 else None, "latent_noise": 0.3 * (seed % 3), "top_n_tokens": 2, "return_latents": True,
        **given,
    }  # fmt: skip
    return GenerateOptions(seed=seed, **requested)


def numbers(generation: Generation) -> bytes:
    """All that is told of every token, digit for digit."""
    return dumps([continuation.events for continuation in generation.texts])


@pytest.mark.anyio
async def test_a_text_is_the_same_alone_and_in_any_batch(engine: Engine, runtime: CpuLanguage) -> None:
    async def run(seed: int) -> Generation:
        generation: Generation = await engine.generate(None, options(seed, samples=1 + seed % 3)).result()
        return generation

    seeds = range(20)
    alone = [numbers(await run(seed)) for seed in seeds]
    together = await asyncio.gather(*(run(seed) for seed in seeds))
    assert [numbers(generation) for generation in together] == alone
    assert runtime.pool.in_use == 0


@pytest.mark.anyio
async def test_slots_are_free_after_cancels_and_errors(engine: Engine, runtime: CpuLanguage) -> None:
    async def leave(job: GenerateJob, events: int) -> None:
        stream = job.events()
        for _ in range(events):
            await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    for round_number in range(3):
        jobs = [engine.generate(None, options(seed, is_streamed=True, samples=2)) for seed in range(12)]
        await asyncio.gather(*(leave(job, (index + round_number) % 5) for index, job in enumerate(jobs)))
    await until(lambda: not engine._scheduler.running)
    assert runtime.pool.in_use == 0
    assert not runtime.pool.arrays["means"].any()
