"""A generation in two requests, or beside others, is the generation of one, bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rfa.runtime.errors import InvalidInput
from rfa.service.encoding import dumps
from rfa.service.engine.engine import Engine
from rfa.service.engine.models import Models, load_models
from rfa.service.engine.text.generated import Generation
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.engine.text.state import LONGEST_TAIL_BYTES, LanguageState
from rfa.service.errors import InvalidRequest
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings
from tests.service.models import FakeLanguage, fake_models
from tests.waiting import until

pytestmark = pytest.mark.anyio
VOCABULARY_SIZE = 100


@asynccontextmanager
async def engine(models: Models | None = None, **options: Any) -> AsyncIterator[Engine]:
    made = Engine(models or fake_models(), Settings(**{"bundles": (), **options}), Metrics())
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


async def run(made: Engine, **options: Any) -> Generation:
    expected = {"prompt": "", "max_new_tokens": 8, "seed": 7, "temperature": 1.0, "is_sampled": True, **options}
    generation: Generation = await made.generate(None, GenerateOptions(**expected)).result()
    return generation


def tokens(*generations: Generation) -> bytes:
    """Everything that is told of each token but its place in its own reply, digit for digit."""
    events = [event for generation in generations for event in generation.texts[0].events]
    return dumps([(event.token, event.top_tokens, event.latent) for event in events])


def texts(*generations: Generation) -> str:
    return "".join(generation.texts[0].text for generation in generations)


def reopened(generation: Generation) -> LanguageState:
    assert generation.state is not None
    return LanguageState.unpack(generation.state.pack(), 1 << 32)


@given(st.binary(max_size=64), st.data())
def test_any_bytes_are_a_state_or_refused(noise: bytes, data: st.DataObject) -> None:
    sound = LanguageState(1, 2, 3, b"\xe2", "ab", b"context", b"output").pack()
    at = data.draw(st.integers(0, len(sound)))
    payload = sound[:at] + noise
    try:
        state = LanguageState.unpack(payload, VOCABULARY_SIZE)
    except InvalidInput as refusal:
        assert (refusal.param, refusal.code) == ("state", "state_invalid")
    else:
        assert state.pending < VOCABULARY_SIZE and len(state.tail.encode()) <= LONGEST_TAIL_BYTES


async def test_the_next_token_comes_with_the_state() -> None:
    model = FakeLanguage(script="the quick brown fox", sureness=0.5)
    async with engine(fake_models(model)) as made:
        whole = await run(made, prompt="say |", max_new_tokens=12)
        first = await run(made, prompt="say |", max_new_tokens=5, returns_state=True)
        model.batches.clear()
        one = await run(made, max_new_tokens=1, resumed=reopened(first))
        assert model.batches == []
        several = await run(made, max_new_tokens=7, resumed=reopened(first), samples=2)
        assert len(model.batches) == 2 + 6  # each text reads the pending token
        second = await run(made, max_new_tokens=1, resumed=reopened(first), returns_state=True)
        rest = await run(made, max_new_tokens=6, resumed=reopened(second))
    assert tokens(first, several) == tokens(first, second, rest) == tokens(whole)
    assert tokens(one) == tokens(second)


async def test_noise_takes_a_step_of_the_model() -> None:
    async with engine(fake_models(FakeLanguage())) as made:
        state = reopened(await run(made, prompt="say |", max_new_tokens=5, returns_state=True))
        options = {"max_new_tokens": 3, "latent_noise": 1.0, "return_latents": True}
        found, expected = [await run(made, resumed=one, **options) for one in (state, replace(state, output=b""))]
    assert tokens(found) == tokens(expected)


async def test_a_new_prompt_follows_the_text_so_far() -> None:
    model = FakeLanguage(script="abcdef", sureness=0.999999)
    async with engine(fake_models(model)) as made:
        first = await run(made, prompt="x |", max_new_tokens=2, returns_state=True, is_sampled=False)
        second = await run(made, prompt="y |", max_new_tokens=3, resumed=reopened(first), is_sampled=False)
    assert (texts(first), texts(second), second.input_length) == ("ab", "abc", 3)


async def test_a_draining_server_hands_the_state_back() -> None:
    model = FakeLanguage(script="x" * 5000)
    async with engine(fake_models(model)) as made:
        job = made.generate(None, GenerateOptions("|", 4000, 7, is_streamed=True))
        events = job.events()
        await anext(events)
        draining = asyncio.ensure_future(asyncio.to_thread(made.drain, 0))
        generation = [event async for event in events][-1]
        await draining
    assert generation.texts[0].finish_reason == "cancelled"
    count = len(generation.texts[0].events)
    async with engine(fake_models(FakeLanguage(script="x" * 5000))) as other:
        rest = await run(other, is_sampled=False, resumed=reopened(generation), max_new_tokens=3)
        whole = await run(other, prompt="|", is_sampled=False, max_new_tokens=count + 3)
    assert tokens(generation, rest) == tokens(whole)


@pytest.fixture(scope="module", params=[pytest.param("onnx", marks=pytest.mark.slow), "compiled"])
def books(request: pytest.FixtureRequest, books_bundle: Path) -> Models:
    return load_models(Settings(bundles=(books_bundle,), text_runtime=request.param))


async def test_a_state_of_another_shape_is_refused(books: Models) -> None:
    async with engine(books) as made:
        first = await run(made, prompt="It", max_new_tokens=1, returns_state=True)
        state = reopened(first)
        broken = [
            state.context[:-4],
            state.context + b"0000",
            state.context[:-4] + b"\x00\x00\xc0\x7f",  # NaN
            b"\xff" * 8 + state.context[8:],
        ]
        for context in broken:
            damaged = LanguageState(state.seed, 1, state.pending, b"", "", context)
            with pytest.raises(InvalidRequest) as refusal:
                await run(made, resumed=damaged)
            assert refusal.value.code == "state_invalid"
        with pytest.raises(InvalidRequest, match="state"):
            await run(made, resumed=replace(state, output=state.output[:-4]))


async def test_a_bundle_continues_with_the_same_bits(books: Models) -> None:
    options = {"top_n_tokens": 3, "return_latents": True, "returns_state": True}
    async with engine(books) as made:
        whole = await run(made, prompt="It was", max_new_tokens=6, **options)
        first = await run(made, prompt="It was", max_new_tokens=2, **options)
        second = await run(made, max_new_tokens=1, resumed=reopened(first), **options)
        third = await run(made, max_new_tokens=3, resumed=reopened(second), **options)
    assert tokens(first, second, third) == tokens(whole)
    assert third.state == whole.state


# A text does not depend on its neighbours.

PROMPTS = ("It was the", "She said: “no”", "", "A long time ago, in a house by the sea, there lived", "…")


def options(seed: int, **given: Any) -> GenerateOptions:
    requested = {
        "prompt": PROMPTS[seed % len(PROMPTS)], "max_new_tokens": 6 + seed % 5, "is_sampled": True, "temperature": 0.9,
        "top_p": 0.9 if seed % 2 else None, "latent_noise": 0.3 * (seed % 3), "top_n_tokens": 2, "return_latents": True,
        **given,
    }  # fmt: skip
    return GenerateOptions(seed=seed, **requested)


async def test_a_text_is_the_same_alone_and_in_any_batch(books: Models) -> None:
    async with engine(books) as made:

        async def written(seed: int) -> bytes:
            """All that is told of every token, digit for digit."""
            generation = await made.generate(None, options(seed, samples=1 + seed % 3)).result()
            return dumps([continuation.events for continuation in generation.texts])

        alone = [await written(seed) for seed in range(20)]
        assert await asyncio.gather(*map(written, range(20))) == alone
        assert next(iter(books.languages.values())).pool.in_use == 0


async def test_slots_are_free_after_cancels_and_errors(books: Models) -> None:
    async def leave(job: GenerateJob, events: int) -> None:
        stream = job.events()
        for _ in range(events):
            await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    (runtime,) = books.languages.values()
    async with engine(books) as made:
        for round_number in range(3):
            jobs = [made.generate(None, options(seed, is_streamed=True, samples=2)) for seed in range(12)]
            await asyncio.gather(*(leave(job, (index + round_number) % 5) for index, job in enumerate(jobs)))
        await until(lambda: not made._scheduler.running)
    assert runtime.pool.in_use == 0
    assert not runtime.pool.arrays["means"].any()
