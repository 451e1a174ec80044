"""Expected results, computed from the bundles in this process, one series or prompt at a time.

The language model of the bundle writes the prompts, so that they are in its own language.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rfa.benchmarks.load.check import SeriesTruth, TextTruth, digest, step_digest
from rfa.benchmarks.load.scenario import TextLoad
from rfa.benchmarks.load.series import STEP, Row, make_series
from rfa.service.encoding import dumps
from rfa.service.engine.engine import Engine
from rfa.service.engine.models import Models, load_models
from rfa.service.engine.text.generated import Generation
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings

Progress = Callable[[int], None]
SEEDS_PER_PROMPT = 4
OPENING = "It was"
# Generated tokens per prompt token: enough remain after the text is encoded again.
PROMPT_SURPLUS = 1.5


@dataclass(frozen=True)
class FilterQuestion:
    """Options of a filter request, apart from the observations."""

    levels: tuple[float, ...] = (0.9,)
    horizon: tuple[float, ...] = ()
    samples: int = 0


def open_models(bundles: Sequence[Path]) -> Models:
    """Load the models of these bundles with the checks of the server."""
    return load_models(Settings(bundles=tuple(bundles)))


def series_truths(
    runtime: Any, question: FilterQuestion, indices: Sequence[int], length: int, progress: Progress
) -> list[SeriesTruth]:
    """Return the expected results of the series of the given indices. The index seeds the series and its samples."""
    truths = []
    for index in indices:
        (observations,) = make_series(1, length, runtime.observation_size, seed=index)
        truths.append(_series_truth(runtime, question, observations, index))
        progress(1)
    return truths


def _series_truth(runtime: Any, question: FilterQuestion, observations: list[Row], seed: int) -> SeriesTruth:
    state, total = None, 0.0
    digests, likelihoods = [], np.empty(len(observations))
    for k, observation in enumerate(observations):
        result = runtime.filter(
            [STEP * k],
            [observation],
            noise=None,
            levels=question.levels,
            horizon=question.horizon,
            samples=question.samples,
            seed=seed,
            mode="recurrent",
            smooth=False,
            state=state,
        )
        state = result.state
        total += result.log_likelihood
        likelihoods[k] = total
        digests.append(step_digest(as_sent(result.steps[0])))
    return SeriesTruth(observations, b"".join(digests), likelihoods, seed)


def as_sent(record: Any) -> Any:
    """Convert a record of the engine to what a client reads."""
    return orjson.loads(dumps(record))


@dataclass(frozen=True)
class TextCase:
    """One generation, as a request body and as input of the engine."""

    body: bytes
    options: GenerateOptions


def text_truths(models: Models, load: TextLoad, indices: Sequence[int], progress: Progress) -> list[TextTruth]:
    """Return the expected texts of the generations of the given indices. `SEEDS_PER_PROMPT` neighbours share a
    prompt."""
    return asyncio.run(_text_truths(models, load, indices, progress))


async def _text_truths(models: Models, load: TextLoad, indices: Sequence[int], progress: Progress) -> list[TextTruth]:
    engine = text_engine(models, load)
    truths = []
    try:
        for case in await write_cases(engine, load, indices):
            truths.append(await _text_truth(engine, load, case))
            progress(1)
    finally:
        engine.close()
    return truths


def text_engine(models: Models, load: TextLoad, streams: int = 1) -> Engine:
    """Return an engine on one thread with room for `write_cases` and `streams` generations at a time."""
    tokens = max(load.new_tokens, _prompt_length(load))
    settings = Settings(bundles=(), workers=1, max_running=streams, max_new_tokens=tokens)
    return Engine(models, settings, Metrics())


def _prompt_length(load: TextLoad) -> int:
    return int(PROMPT_SURPLUS * load.prompt_tokens) + 1


async def write_cases(engine: Engine, load: TextLoad, indices: Sequence[int]) -> list[TextCase]:
    """Generate the test cases with the given indices. The index of a case is its random seed."""
    prompts: dict[int, str] = {}
    for index in indices:
        number = index // SEEDS_PER_PROMPT
        if number not in prompts:
            prompts[number] = await _write_prompt(engine, load, number)
    return [_text_case(load, prompts[index // SEEDS_PER_PROMPT], index) for index in indices]


async def _write_prompt(engine: Engine, load: TextLoad, seed: int) -> str:
    options = GenerateOptions(
        prompt=OPENING, max_new_tokens=_prompt_length(load), seed=seed, is_sampled=True, return_full_text=True
    )
    generation: Generation = await engine.generate(load.model, options).result()
    return generation.texts[0].text


def _text_case(load: TextLoad, prompt: str, seed: int) -> TextCase:
    is_sampled = load.temperature > 0
    parameters = {
        "max_new_tokens": load.new_tokens,
        "truncate": load.prompt_tokens,
        "do_sample": is_sampled,
        "temperature": load.temperature,
        "seed": seed,
    }
    body = {"inputs": prompt, "model": load.model, "parameters": parameters, "stream": True}
    options = GenerateOptions(
        prompt=prompt,
        max_new_tokens=load.new_tokens,
        seed=seed,
        temperature=load.temperature if is_sampled else 1.0,
        is_sampled=is_sampled,
        truncate=load.prompt_tokens,
        is_streamed=True,
    )
    return TextCase(orjson.dumps(body), options)


async def _text_truth(engine: Engine, load: TextLoad, case: TextCase) -> TextTruth:
    generation: Generation = await engine.generate(load.model, case.options).result()
    continuation = generation.texts[0]
    return TextTruth(
        case.body,
        tuple(digest(as_sent(event.token)) for event in continuation.events),
        {
            "generated_text": continuation.text,
            "finish_reason": continuation.finish_reason,
            "generated_tokens": len(continuation.events),
            "input_length": generation.input_length,
            "seed": case.options.seed,
        },
    )
