"""The cache of prompt beginnings: the same bits, less to read, for one client, within its bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.service.engine.text.prefix_cache import ENTRY_BYTES, EVERY, EntryCache
from tests.service.models import FakeLanguage, fake_models

pytestmark = pytest.mark.anyio
FIRST, SECOND = "a-key-of-sixteen-or-more", "another-key-of-sixteen"


async def completion(client: httpx.AsyncClient, prompt: Any, **options: Any) -> Any:
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "logprobs": 2, **options}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["logprobs"]


def tokens_read(model: FakeLanguage) -> int:
    count = sum(map(sum, model.read))
    model.read.clear()
    return count


async def test_a_prompt_is_read_once(connect: Any) -> None:
    model = FakeLanguage()
    prompt = "x" * 700 + "|"
    async with connect(fake_models(model)) as client:
        first = await completion(client, prompt)
        assert tokens_read(model) == 700
        again = await completion(client, prompt)
        assert tokens_read(model) == 0
        longer = await completion(client, prompt + "th")
        assert tokens_read(model) == 702 - 2 * EVERY
        other = await completion(client, "x" * 300 + "y" * 300 + "|")
        assert tokens_read(model) == 600 - EVERY
        await completion(client, list(model.vocabulary.encode("x" * 600)))
        assert tokens_read(model) == 599 - 2 * EVERY
        await completion(client, prompt, decode="attention")
        assert tokens_read(model) == 700
        scored = await completion(client, prompt, echo=True)
        metrics = (await client.get("/metrics")).text
    assert first == again and longer["token_logprobs"][:2] == first["token_logprobs"][2:]
    assert [name[-4:] for name in (scored["tokens"], other["tokens"])] == [first["tokens"]] * 2
    assert 'rfa_prefix_cache_queries_total{model_name="recite"} 3301.0' in metrics
    assert f'rfa_prefix_cache_hits_total{{model_name="recite"}} {700 + 5 * EVERY}.0' in metrics


async def test_clients_do_not_share_and_zero_disables(connect: Any) -> None:
    model = FakeLanguage()
    async with connect(fake_models(model), api_keys=f"{FIRST},{SECOND}") as client:
        for key, read in (
            ("a-key-of-sixteen-or-more", 300),
            ("another-key-of-sixteen", 300),
            ("a-key-of-sixteen-or-more", 0),
        ):
            client.headers["Authorization"] = f"Bearer {key}"
            await completion(client, "x" * 300 + "|")
            assert tokens_read(model) == read
    async with connect(fake_models(model), prefix_cache_bytes=0) as client:
        for _ in range(2):
            await completion(client, "x" * 300 + "|")
            assert tokens_read(model) == 300


def test_the_entries_used_last_stay_within_the_limit() -> None:
    cache = EntryCache(3 * (100 + ENTRY_BYTES))
    for name in b"abc":
        cache.put(bytes([name]), bytes(100))
    assert cache.get(b"a") is not None
    cache.put(b"d", bytes(100))
    assert [cache.get(bytes([name])) is not None for name in b"abcd"] == [True, False, True, True]
    assert cache.size == 3 * (100 + ENTRY_BYTES)
    cache.put(b"large", bytes(3000))
    assert cache.get(b"large") is None and cache.size == 3 * (100 + ENTRY_BYTES)


# ONNX Runtime takes three times as long, and the cache knows nothing of runtimes.
@pytest.mark.parametrize("name", ["compiled", pytest.param("onnx", marks=pytest.mark.slow)])
async def test_a_bundle_has_the_same_bits_with_the_cache(connect: Any, books_bundle: Path, name: Any) -> None:
    from rfa.runtime.text.loading import load_on_cpu

    model: Any = load_on_cpu(open_bundle(books_bundle), name, 64, 24)
    draw = np.random.default_rng(0)
    text = draw.integers(1, 4096, 900).tolist()
    prompts = [text, text[:520], text, text[:512] + text[600:700], text[:300], [*text[:300], 7], text]
    async with connect(fake_models(model), prefix_cache_bytes=0) as client:
        expected = [await completion(client, prompt) for prompt in prompts]
    async with connect(fake_models(model)) as client:
        found = [await completion(client, prompt) for prompt in prompts]
        together = await asyncio.gather(*(completion(client, prompt) for prompt in prompts))
    assert found == expected == list(together)
