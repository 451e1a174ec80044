"""The runtime for a GPU, on a CPU in float32: the numbers of ONNX Runtime, and the manners."""

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

from export.bundle import Bundle, BundleError, open_bundle
from model import decoder
from model.recurrence.slots_reference import SlotReadout
from service.engine.engine import Engine, Models
from service.engine.generation import GenerateOptions, Generation
from service.engine.language_runtime import LanguageRuntime, SlotContext
from service.engine.language_state import LanguageState
from service.engine.pool import StaleSlot
from service.engine.torch_golden import check_golden_on
from service.engine.torch_language_runtime import DeviceCache, TorchLanguageRuntime
from service.errors import EngineFailure, InvalidRequest, Overloaded
from service.metrics import Metrics
from service.settings import Settings
from tests.service.exact import EPS, TEXT, ExactModel, begun, crowd, largest_errors, prompt_of, silence, stepped

STEPS = 24
FAR = 1_000_000
MAX_ROWS = 8


@pytest.fixture(scope="module")
def bundle(books_bundle: Path) -> Bundle:
    return open_bundle(books_bundle)


@pytest.fixture(scope="module")
def onnx(bundle: Bundle) -> LanguageRuntime:
    return LanguageRuntime(bundle, streams=16, max_rows=4)


@pytest.fixture(scope="module")
def on_torch(bundle: Bundle) -> TorchLanguageRuntime:
    return TorchLanguageRuntime(bundle, device="cpu", streams=32, max_rows=MAX_ROWS)


@pytest.fixture
def runtime(on_torch: TorchLanguageRuntime) -> Any:
    before = on_torch.pool.in_use
    yield on_torch
    assert on_torch.pool.in_use == before, "the test left streams behind"


# The numbers of ONNX Runtime.


@pytest.mark.parametrize(("mode", "position"), [("recurrent", 0), ("recurrent", FAR), ("attention", 0)])
def test_outputs_are_as_good_as_those_of_onnx_runtime(
    runtime: TorchLanguageRuntime,
    onnx: LanguageRuntime,
    books_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: Any,
    position: int,
) -> None:
    tokens, read = prompt_of(runtime)[:STEPS], 8
    noise = 0.5 * np.random.default_rng(0).standard_normal((1, *runtime.latent_shape)).astype(np.float32)
    exact = ExactModel(books_bundle, monkeypatch)
    expected = exact.outputs(tokens, read, position, mode, noise)
    contexts = [begun(side, tokens[:read], mode, position) for side in (runtime, onnx)]
    ours, theirs = (
        largest_errors(stepped(side, context, tokens[read:], noise), expected)
        for side, context in zip((runtime, onnx), contexts, strict=True)
    )
    assert all(ours[name] <= 2 * theirs[name] + EPS for name in ours), (ours, theirs)
    if mode == "recurrent":
        for part, other, wanted in zip(*(context.read() for context in contexts), exact.state, strict=True):
            scale = np.abs(wanted).max()
            error, allowed = (float(np.abs(found - wanted).max() / scale) for found in (part, other))
            assert error <= 2 * allowed + EPS
    for context in contexts:
        context.release()


def test_the_golden_outputs_are_reproduced(runtime: TorchLanguageRuntime, bundle: Bundle) -> None:
    values = sum(len(found["values"]) for case in bundle.golden["cases"] for found in case["outputs"].values())
    assert check_golden_on(runtime, bundle) == values > 1000


def test_golden_outputs_of_other_weights_are_not_reproduced(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = dict(bundle.weights())
    name = "blocks.2.feed_forward.up.weight"
    weights[name] = weights[name] * np.float32(1.01)
    monkeypatch.setattr(bundle, "weights", lambda: weights)
    changed = TorchLanguageRuntime(bundle, device="cpu", streams=2, max_rows=2)
    with pytest.raises(BundleError, match=r"golden\.json on this device: case 0, prefill"):
        check_golden_on(changed, bundle)
    assert changed.pool.in_use == 0


def test_rounded_matrices_have_room_in_the_golden_outputs_and_wrong_ones_have_not(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounded() -> TorchLanguageRuntime:
        return TorchLanguageRuntime(bundle, device="cpu", streams=2, max_rows=2, dtype=torch.bfloat16)

    check_golden_on(rounded(), bundle)
    weights = dict(bundle.weights())
    name = "blocks.1.mixer.output.weight"
    weights[name] = weights[name][:, ::-1].copy()
    monkeypatch.setattr(bundle, "weights", lambda: weights)
    with pytest.raises(BundleError, match=r"golden\.json on this device"):
        check_golden_on(rounded(), bundle)


# A stream among others.


@pytest.mark.parametrize("count", range(2, MAX_ROWS + 1))
def test_a_stream_has_the_same_bits_alone_and_among_others(runtime: TorchLanguageRuntime, count: int) -> None:
    alone, together = crowd(runtime, count), crowd(runtime, count)
    draw = np.random.default_rng(1)
    for _ in range(4):
        tokens = draw.integers(0, len(runtime.vocabulary), count).tolist()
        noise = draw.standard_normal((count, *runtime.latent_shape), dtype=np.float32)
        order = draw.permutation(count).tolist()
        output, advances = runtime.step([together[i] for i in order], [tokens[i] for i in order], noise[order])
        for row, index in enumerate(order):
            single, (advance,) = runtime.step([alone[index]], [tokens[index]], noise[index : index + 1])
            for found, wanted in zip(output, single, strict=True):
                assert found[row].tobytes() == wanted[0].tobytes()
            advance.commit()
            advances[row].commit()
            assert runtime.pack(alone[index]) == runtime.pack(together[index])
    for context in (*alone, *together):
        context.release()


def test_padding_touches_no_row_but_its_own(runtime: TorchLanguageRuntime) -> None:
    contexts = crowd(runtime, 3)
    pool = runtime._slots
    assert runtime.batch_sizes.padded(3) > 3, "nothing is padded"
    before = [part.clone() for part in pool.slots]
    runtime.step(contexts, [5, 6, 7], silence(runtime, 3))
    written = [*pool.spare([context.slot for context in contexts]), *pool.padding_rows]
    kept = np.setdiff1d(np.arange(before[0].shape[1]), written)
    for part, earlier in zip(pool.slots, before, strict=True):
        assert torch.equal(part[:, kept], earlier[:, kept])
        changed = (part != earlier).flatten(2).any(2).any(0).nonzero()[:, 0].tolist()
        assert set(pool.spare([context.slot for context in contexts]).tolist()) <= set(changed)
    for context in contexts:
        context.release()


def test_a_step_that_is_not_committed_did_not_happen(runtime: TorchLanguageRuntime) -> None:
    context = begun(runtime, [1, 2, 3])
    packed = runtime.pack(context)
    first, _ = runtime.step([context], [4], silence(runtime))
    runtime.prefill(context, [9, 9])
    assert runtime.pack(context) == packed
    again, (advance,) = runtime.step([context], [4], silence(runtime))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
    advance.commit()
    assert runtime.pack(context) != packed and context.position == 4
    context.release()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_poisoned_row_is_alone_with_it(runtime: TorchLanguageRuntime, value: float) -> None:
    healthy, infected = crowd(runtime, 4), crowd(runtime, 4)
    means, precisions = infected[2].read()
    means[1, 0, 0, 0] = value
    infected[2].write(means, precisions)
    states = [context.read() for context in infected]
    noise = silence(runtime, 4)
    expected, wanted = runtime.step(healthy, [3, 4, 5, 6], noise)
    found, advances = runtime.step(infected, [3, 4, 5, 6], noise)
    assert [advance.is_finite() for advance in advances] == [True, True, False, True]
    for row, context in enumerate(infected):
        for now, before in zip(context.read(), states[row], strict=True):
            np.testing.assert_array_equal(now, before)
        if row == 2:
            continue
        assert all(a[row].tobytes() == b[row].tobytes() for a, b in zip(found, expected, strict=True))
        advances[row].commit()
        wanted[row].commit()
        assert runtime.pack(context) == runtime.pack(healthy[row])
    for context in (*healthy, *infected):
        context.release()
    assert all(bool(part[:, : runtime._slots.initial_row].eq(0).all()) for part in runtime._slots.slots)


def test_a_poisoned_prompt_is_reported(runtime: TorchLanguageRuntime) -> None:
    context = begun(runtime, [1])
    means, precisions = context.read()
    means[0, 0, 0, 0] = np.nan
    context.write(means, precisions)
    assert not runtime.prefill(context, [2, 3]).is_finite()
    context.release()
    cache = begun(runtime, [1, 2], "attention")
    cache.keys[0, 0, 0, 0] = np.nan
    assert not runtime.prefill(cache, [2, 3]).is_finite()


def test_a_slot_is_empty_between_its_owners(runtime: TorchLanguageRuntime) -> None:
    context = begun(runtime, [1, 2, 3])
    row = context.slot.row
    context.release()
    assert all(not part[:, 2 * row : 2 * row + 2].any() for part in runtime._slots.slots)
    with pytest.raises(StaleSlot):
        runtime.step([context], [1], silence(runtime))
    fresh = begun(runtime, [])
    assert fresh.slot.row == row
    np.testing.assert_array_equal(fresh.read()[0], runtime.initial_means)
    fresh.release()


@pytest.mark.parametrize("mode", ["recurrent", "attention"])
def test_a_fork_goes_its_own_way(runtime: TorchLanguageRuntime, mode: Any) -> None:
    first = begun(runtime, prompt_of(runtime)[:70], mode)
    second = first.fork()
    outputs = [stepped(runtime, context, [5, 6])[-1] for context in (first, second)]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*outputs, strict=True))
    stepped(runtime, first, [1] * 3)
    other = stepped(runtime, second, [7])[-1]
    again = begun(runtime, prompt_of(runtime)[:70], mode)
    stepped(runtime, again, [5, 6])
    assert all(a.tobytes() == b.tobytes() for a, b in zip(other, stepped(runtime, again, [7])[-1], strict=True))
    for context in (first, second, again):
        context.release()


class Calls(TorchDispatchMode):
    """The operators that are called, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not function.is_view:
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_step_can_be_captured_in_a_graph(runtime: TorchLanguageRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for no number, whose value a graph could not know, and calls the same operators every time."""
    readout = SlotReadout(torch.zeros(MAX_ROWS, *runtime.latent_shape), *torch.ones(2, MAX_ROWS, 1))
    calls = []
    for fused in (False, False, True):
        if fused:  # as on a GPU, where one kernel takes the slots of a layer
            monkeypatch.setattr(decoder, "step_pooled", lambda *_: readout)
        with Calls() as seen:
            runtime._runners[MAX_ROWS]._compute()
        calls.append(seen.names)
    waiting = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default", "bincount")
    assert not [name for name in calls[0] if any(part in name for part in waiting)]
    assert calls[0] == calls[1]
    layers = runtime.initial_means.shape[0]
    # RMSNorm is one kernel on a GPU and six operators here.
    kernels = len(calls[2]) - 5 * (2 * layers + 1)
    assert kernels <= 30 * layers + 50, kernels


# States.


def test_a_state_goes_on_bit_for_bit(runtime: TorchLanguageRuntime) -> None:
    tokens = prompt_of(runtime)
    whole = begun(runtime, tokens[:8])
    parts = begun(runtime, tokens[:8])
    for token in tokens[8:16]:
        (expected,) = stepped(runtime, whole, [token])
        packed = runtime.pack(parts)
        parts.release()
        parts = runtime.unpack(packed)
        (found,) = stepped(runtime, parts, [token])
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))
    assert runtime.pack(parts) == runtime.pack(whole)
    whole.release()
    parts.release()


@pytest.mark.parametrize("from_torch", [True, False])
def test_a_state_goes_on_on_the_other_runtime(
    runtime: TorchLanguageRuntime,
    onnx: LanguageRuntime,
    books_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    from_torch: bool,
) -> None:
    tokens, half = prompt_of(runtime)[:STEPS], STEPS // 2
    exact = ExactModel(books_bundle, monkeypatch).outputs(tokens, half, 0, "recurrent", silence(runtime))
    before, after = (runtime, onnx) if from_torch else (onnx, runtime)
    first = begun(before, tokens[:half])
    packed = before.pack(first)
    assert len(packed) == before.context_bytes == after.context_bytes
    second = after.unpack(packed)
    assert after.pack(second) == packed
    reference = begun(onnx, tokens[:half])
    allowed = largest_errors(stepped(onnx, reference, tokens[half:]), exact)
    found = largest_errors(stepped(after, second, tokens[half:]), exact)
    assert all(found[name] <= 2 * allowed[name] + EPS for name in found), (found, allowed)
    for context in (first, second, reference):
        context.release()


def test_other_bytes_are_refused(runtime: TorchLanguageRuntime) -> None:
    context = begun(runtime, [1, 2])
    packed = runtime.pack(context)
    context.release()
    for broken in (packed[:-4], packed + b"0000", packed[:-4] + b"\x00\x00\xc0\x7f", b"\xff" * 8 + packed[8:]):
        with pytest.raises(InvalidRequest) as refusal:
            runtime.unpack(broken)
        assert refusal.value.code == "state_invalid"
    with pytest.raises(TypeError):
        runtime.pack(begun(runtime, [], "attention"))


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
    wanted = {
        "prompt": TEXT[: 5 + 17 * seed], "max_new_tokens": 5 + seed, "is_sampled": True, "temperature": 0.9,
        "latent_noise": 0.3 * (seed % 3), "top_n_tokens": 2, "return_latents": True, "samples": 1 + seed % 3, **given,
    }  # fmt: skip
    return GenerateOptions(seed=seed, **wanted)


def events(generation: Generation) -> list[Any]:
    return [continuation.events for continuation in generation.continuations]


@pytest.mark.anyio
async def test_a_text_is_the_same_alone_and_in_any_batch(runtime: TorchLanguageRuntime) -> None:
    async with engine(runtime, workers=2) as made:
        wanted = [*map(options, range(5)), options(5, decode="attention")]
        alone = [events(await made.generate(None, one).result()) for one in wanted]
        together = await asyncio.gather(*(made.generate(None, one).result() for one in wanted))
    assert [events(generation) for generation in together] == alone


@pytest.mark.anyio
async def test_a_text_in_two_requests_is_the_text_of_one(runtime: TorchLanguageRuntime) -> None:
    async with engine(runtime) as made:
        whole = await made.generate(None, options(3, samples=1, max_new_tokens=9)).result()
        first = await made.generate(None, options(3, samples=1, max_new_tokens=4, returns_state=True)).result()
        state = LanguageState.unpack(first.state.pack(), len(runtime.vocabulary))
        rest = options(3, samples=1, max_new_tokens=5, prompt="", resumed=state)
        second = await made.generate(None, rest).result()
    told = [
        [(event.token, event.top_tokens, event.latent) for part in parts for event in part.continuations[0].events]
        for parts in ((whole,), (first, second))
    ]
    assert told[0] == told[1]


@pytest.mark.anyio
async def test_a_broken_row_ends_its_own_request(
    runtime: TorchLanguageRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [options(seed, samples=1, max_new_tokens=8) for seed in range(3)]
    async with engine(runtime) as made:
        alone = [events(await made.generate(None, one).result()) for one in wanted]
        real, breaks = runtime.step, [True]

        def break_once(contexts: Any, tokens: Any, noise: Any) -> Any:
            if len(contexts) == len(wanted) and breaks:
                breaks.clear()
                row = int(runtime._slots.current([contexts[1].slot])[0])
                runtime._slots.slots.means[:, row] = torch.nan
            return real(contexts, tokens, noise)

        monkeypatch.setattr(runtime, "step", break_once)
        jobs = [made.generate(None, one) for one in wanted]
        ends = await asyncio.gather(*(job.result() for job in jobs), return_exceptions=True)
    failures = [end for end in ends if isinstance(end, BaseException)]
    assert [type(failure) for failure in failures] == [EngineFailure]
    assert all(events(end) == expected for end, expected in zip(ends, alone, strict=True) if end not in failures)


@pytest.mark.anyio
async def test_a_request_for_which_memory_does_not_suffice_is_told_to_come_again(
    runtime: TorchLanguageRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    async with engine(runtime) as made:
        expected = events(await made.generate(None, options(2)).result())
        monkeypatch.setattr(runtime._decoder, "extend", full)
        jobs = [made.generate(None, options(2, decode=mode)) for mode in ("recurrent", "attention")]
        found, refused = await asyncio.gather(*(job.result() for job in jobs), return_exceptions=True)
    assert events(found) == expected
    assert isinstance(refused, Overloaded) and refused.retry_after_seconds == 1


def test_contexts_are_what_the_runtime_says(runtime: TorchLanguageRuntime) -> None:
    slot, cache = begun(runtime, []), begun(runtime, [], "attention")
    assert isinstance(slot, SlotContext) and isinstance(cache, DeviceCache)
    assert runtime.pool.bytes_per_slot >= 2 * (runtime.context_bytes - 8)
    slot.release()
    cache.release()
