"""The runtime for a GPU, on a CPU in float32: golden outputs, padding, graphs, and manners behind the engine.

What it has in common with the others is in test_runtime_laws.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rfa.model.attention.pages import PAGE_KEYS
from rfa.runtime.bundle.bundle import Bundle, BundleError, open_bundle
from rfa.runtime.bundle.golden import loosen
from rfa.runtime.errors import CapacityError, UnsupportedError
from rfa.runtime.golden import reproduce
from rfa.runtime.gpu.golden import AttentionSession, check_golden_on, supported_cases
from rfa.runtime.gpu.language import TorchLanguageRuntime
from rfa.runtime.text.language import CpuLanguage, LanguageRuntime
from rfa.service.encoding import dumps
from rfa.service.engine.engine import Engine
from rfa.service.engine.models import Models
from rfa.service.engine.text.generated import Generation
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.errors import Overloaded
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings
from tests.runtime.text.exact import TEXT
from tests.service.models import model_info

MAX_ROWS = 8


@pytest.fixture(scope="module")
def on_torch(bundle: Bundle) -> TorchLanguageRuntime:
    return TorchLanguageRuntime(bundle, device="cpu", streams=32, max_rows=MAX_ROWS)


@pytest.fixture
def runtime(on_torch: TorchLanguageRuntime) -> Any:
    before = on_torch.pool.in_use
    yield on_torch
    assert on_torch.pool.in_use == before, "the test left streams behind"


# Golden outputs.


def test_the_golden_outputs_are_reproduced(runtime: TorchLanguageRuntime, bundle: Bundle) -> None:
    own = {"values": [bundle.language.inner]}
    cases = [case for case in bundle.golden["cases"] if case["inputs"].get("passes", own)["values"] == own["values"]]
    values = sum(len(found["values"]) for case in cases for found in case["outputs"].values())
    assert check_golden_on(runtime, bundle) == values > 1000


def rounded(bundle: Bundle) -> TorchLanguageRuntime:
    return TorchLanguageRuntime(bundle, device="cpu", streams=2, max_rows=2, dtype=torch.bfloat16)


def test_rounded_matrices_have_space_in_the_golden_outputs_and_wrong_ones_have_not(bundle: Bundle) -> None:
    runtime = rounded(bundle)
    check_golden_on(runtime, bundle)
    runtime._decoder.embedding = runtime._decoder.embedding.flip(1)
    with pytest.raises(BundleError, match=r"golden\.json on this device: case"):
        check_golden_on(runtime, bundle)


def test_what_rounding_would_hide_is_found_without_it(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = dict(bundle.weights())
    name = "blocks.2.feed_forward.up.weight"
    weights[name] = weights[name] * np.float32(1.01)
    monkeypatch.setattr(bundle, "weights", lambda: weights)
    runtime = rounded(bundle)
    supported = bundle.golden | {"cases": supported_cases(bundle.golden["cases"], runtime.passes.most)}
    wide = loosen(supported, runtime.rounding)
    reproduce(runtime, bundle, AttentionSession(runtime), where="this device", golden=wide)
    with pytest.raises(BundleError, match=r"golden\.json on this device in float32: case"):
        check_golden_on(runtime, bundle)


# A step of padded rows, and as a graph.


class Calls(TorchDispatchMode):
    """The operators that are called, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not function.is_view:
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_step_can_be_captured_in_a_graph(runtime: TorchLanguageRuntime, is_filtered: bool) -> None:
    """It waits for no number, whose value a graph could not know, and calls the same operators every time."""
    calls = []
    for _ in range(2):
        with Calls() as seen:
            runtime._runners[MAX_ROWS]._compute(is_filtered=is_filtered)
        calls.append(seen.names)
    waiting = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default", "bincount")
    assert not [name for name in calls[0] if any(part in name for part in waiting)]
    assert calls[0] == calls[1]


# Behind the engine.


@asynccontextmanager
async def engine(runtime: TorchLanguageRuntime, **options: Any) -> AsyncIterator[Engine]:
    made = Engine(
        Models({runtime.name: runtime}, {}, []), Settings(bundles=(), max_batch_rows=MAX_ROWS, **options), Metrics()
    )
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


def options(seed: int, **given: Any) -> GenerateOptions:
    requested = {
        "prompt": TEXT[: 5 + 17 * seed], "max_new_tokens": 5 + seed, "is_sampled": True, "temperature": 0.9,
        "latent_noise": 0.3 * (seed % 3), "top_n_tokens": 2, "return_latents": True, "samples": 1 + seed % 3, **given,
    }  # fmt: skip
    return GenerateOptions(seed=seed, **requested)


def events(generation: Generation) -> bytes:
    """All that is told of every token, digit for digit."""
    return dumps([continuation.events for continuation in generation.texts])


HOW: list[dict[str, Any]] = [
    {"do_sample": False, "top_n_tokens": 3},
    {"temperature": 1.0},
    {"temperature": 1.5, "top_k": 50},
    {"temperature": 0.7, "top_p": 0.9, "latent_noise": 0.5},
    {"do_sample": False},
    {"top_p": 0.3},
    {"temperature": 100.0, "top_k": 5, "n": 2},
    {"temperature": 1.0, "top_n_tokens": 5, "return_latents": True},
]


@pytest.mark.anyio
@pytest.mark.parametrize("other", [pytest.param("onnx", marks=pytest.mark.slow), "compiled"])  # these two agree
async def test_texts_are_those_of_a_server_without_a_gpu(
    runtime: TorchLanguageRuntime, bundle: Bundle, connect: Any, other: str
) -> None:
    """The same seeds draw the same tokens; where a uniform lies between two, an ulp of the logits decides."""
    seeded = [
        {"inputs": TEXT[: 5 + 7 * seed], "parameters": {"max_new_tokens": 8 + seed, "seed": seed, **how}}
        for seed, how in enumerate(HOW)
    ]
    reported = []
    for served in (runtime, without_gpu(bundle, other)):
        models = Models({served.name: served}, {}, [model_info(served.name, "lm", "0" * 64)])
        async with connect(models, max_batch_rows=MAX_ROWS) as client:
            replies = await asyncio.gather(*(client.post("/generate", json=one) for one in seeded))
        assert [reply.status_code for reply in replies] == [200] * len(seeded)
        reported.append([reply.json()["details"] for reply in replies])
    differing = 0
    for found, expected in zip(*reported, strict=True):
        if [token["id"] for token in found["tokens"]] != [token["id"] for token in expected["tokens"]]:
            differing += 1
            continue
        for name in ("logprob", "confidence"):
            # Runtimes agree to 1e-5 of the largest logit (`rfa.export.comparison`), and none is beyond 50.
            ours, theirs = ([token[name] for token in details["tokens"]] for details in (found, expected))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2 * 5e-4)
        tops = ([[top["id"] for top in row] for row in details["top_tokens"] or []] for details in (found, expected))
        assert len({str(top) for top in tops}) == 1
    assert differing <= 1


def without_gpu(bundle: Bundle, name: str) -> CpuLanguage:
    if name == "onnx":
        return LanguageRuntime(bundle, streams=16, max_rows=MAX_ROWS)
    from rfa.runtime.text.compiled_language import CompiledLanguageRuntime

    return CompiledLanguageRuntime(bundle, streams=16)


@pytest.mark.anyio
async def test_a_request_for_which_memory_does_not_suffice_is_reported_to_come_again(
    runtime: TorchLanguageRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    async with engine(runtime) as made:
        expected = events(await made.generate(None, options(2)).result())
        monkeypatch.setattr(runtime._decoder, "extend", full)
        jobs = [made.generate(None, options(2, mode=mode)) for mode in ("recurrent", "attention")]
        found, refused = await asyncio.gather(*(job.result() for job in jobs), return_exceptions=True)
    assert events(found) == expected  # type: ignore[arg-type]
    assert isinstance(refused, Overloaded) and refused.retry_after_seconds == 1


def test_a_window_is_refused_by_name(books_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(books_bundle)
    monkeypatch.setattr(bundle, "_family", bundle.language.model_copy(update={"window": 4}))
    with pytest.raises(
        UnsupportedError, match=r"bundle 'books' uses exact attention to the last 4 tokens.*RFA_DEVICE=cpu"
    ):
        TorchLanguageRuntime(bundle, device="cpu", streams=1)


def test_attention_has_space_by_whole_pages(bundle: Bundle) -> None:
    runtime = TorchLanguageRuntime(bundle, device="cpu", streams=1, max_rows=1, attention_tokens=4 * PAGE_KEYS)
    assert runtime.fits(2 * PAGE_KEYS, 2, 0) and runtime.fits(1, 4, 0)
    assert not runtime.fits(2 * PAGE_KEYS + 1, 2, 0) and not runtime.fits(1, 5, 0)
    # Three full pages are there once.
    assert runtime.fits(3 * PAGE_KEYS + 1, 1, 0) and not runtime.fits(3 * PAGE_KEYS + 1, 2, 3 * PAGE_KEYS)
    assert runtime.fits(3 * PAGE_KEYS, 2, 2 * PAGE_KEYS) and not runtime.fits(3 * PAGE_KEYS, 2, PAGE_KEYS)
    first = runtime.start("attention", capacity=PAGE_KEYS + 1, forks=1)
    with pytest.raises(CapacityError, match="currently"):
        runtime.start("attention")
    twin = first.fork()
    for context in (first, twin):
        context.release()
    assert runtime.pages.in_use == 0
    with pytest.raises(UnsupportedError, match="the GPU has no memory left for attention"):
        TorchLanguageRuntime(bundle, device="cpu", streams=1, max_rows=1, attention_tokens=0)
