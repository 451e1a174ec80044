"""The runtime for a GPU, on one: graphs, bfloat16, memory, and time. Skipped where there is none."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.gpu.golden import check_golden_on
from rfa.runtime.gpu.language import TorchLanguageRuntime
from rfa.runtime.gpu.step import StepRunner
from rfa.runtime.text.language import LanguageRuntime
from rfa.runtime.text.sampling import Choice, Draws
from tests.runtime.text.exact import TEXT, begun, silence

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA")

MAX_ROWS = 8


@pytest.fixture(scope="module")
def runtime(bundle: Bundle) -> TorchLanguageRuntime:
    return TorchLanguageRuntime(bundle, device="cuda", streams=32, max_rows=MAX_ROWS)


@pytest.fixture(scope="module")
def unrounded(bundle: Bundle) -> TorchLanguageRuntime:
    return TorchLanguageRuntime(bundle, device="cuda", streams=32, max_rows=MAX_ROWS, dtype=torch.float32)


def logits_of(runtime: Any, context: Any, tokens: list[int]) -> np.ndarray:
    rows = []
    for token in tokens:
        output, (advance,) = runtime.step([context], [token], silence(runtime))
        assert advance.is_finite()
        advance.commit()
        rows.append(output.logits[0])
    return np.stack(rows)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(logits).double(), dim=-1).numpy()


@pytest.mark.parametrize("size", [1, 4, MAX_ROWS])
def test_a_graph_gives_the_bits_of_its_kernels_launched_one_by_one(runtime: TorchLanguageRuntime, size: int) -> None:
    contexts = [begun(runtime, [5 + index, 6], position=1000 * index) for index in range(size)]
    pool_slots = [context.slot for context in contexts]
    draw = np.random.default_rng(0)
    graph, eager = (
        StepRunner(runtime._decoder, runtime._pool, size, with_graph=with_graph) for with_graph in (True, False)
    )
    for _ in range(3):
        inputs = (
            draw.integers(0, len(runtime.vocabulary), size),
            draw.integers(0, 1_000_000, size),
            runtime._pool.current_rows(pool_slots),
            runtime._pool.next_rows(pool_slots),
            draw.standard_normal((size, *runtime.latent_shape), dtype=np.float32),
        )
        results, states = [], []
        for runner in (graph, eager):
            results.append(runner.run(*inputs))
            states.append([part[:, inputs[3]].cpu().numpy() for part in runtime._pool.slots])
        for found, requested in zip((*results[0], *states[0]), (*results[1], *states[1]), strict=True):
            assert found.tobytes() == requested.tobytes()
        for pool_slot in pool_slots:
            runtime._pool.swap(pool_slot)
    for context in contexts:
        context.release()


@pytest.mark.parametrize("size", [1, MAX_ROWS])
def test_a_graph_of_attention_gives_the_bits_of_its_kernels_launched_one_by_one(
    runtime: TorchLanguageRuntime, size: int
) -> None:
    """Of a step of rows that lie before, at and behind the end of a page, some of them padding."""
    rows = max(1, size - 1)
    tokens = runtime.vocabulary.encode(TEXT * 3)
    reported: list[list[Any]] = []
    for with_graph in (True, False):
        runner = runtime._make_attention_runner(size)
        if not with_graph:
            runner._graphs.clear()
        contexts: list[Any] = [runtime.start("attention", capacity=80) for _ in range(rows)]
        for advance in runtime.prefill(contexts, [tokens[: 60 + row] for row in range(rows)]):
            advance.commit()
        draw, found = np.random.default_rng(0), []
        for _ in range(5):
            noise = draw.standard_normal((rows, *runtime.latent_shape), dtype=np.float32)
            choices = [Choice(0.9, uniform=draw.random(), top=3 * (row % 2), with_latent=True) for row in range(rows)]
            given = draw.integers(0, len(runtime.vocabulary), rows).tolist()
            drawn, finite = runner.draw(contexts, given, noise, Draws(choices, np.float32(1.1)))
            assert finite.all() and all(one.is_finite for one in drawn)
            found.append([(one.token, one.log_probability, one.latent.tobytes()) for one in drawn])
            for context in contexts:
                context.position += 1
        kept = [
            part[:, context.rows(0, context.position)].float() for context in contexts for part in runtime.pages.rows
        ]
        reported.append([found, [part.cpu().numpy().tobytes() for part in kept]])
        for context in contexts:
            context.release()
    assert reported[0] == reported[1]


def test_steps_of_attention_have_their_bits_in_any_company_and_are_those_of_prompts(
    runtime: TorchLanguageRuntime,
) -> None:
    tokens = runtime.vocabulary.encode(TEXT * 3)
    draws = Draws([Choice(with_latent=True)] * 3, np.float32(1))

    def begun_at(lengths: list[int]) -> list[Any]:
        contexts: list[Any] = [runtime.start("attention", capacity=80) for _ in lengths]
        for advance in runtime.prefill(contexts, [tokens[:length] for length in lengths]):
            advance.commit()
        return contexts

    lengths = [63, 10, 70]
    together = begun_at(lengths)
    drawn, advances = runtime.draw(together, [5, 6, 7], silence(runtime, 3), draws)
    for row, length in enumerate(lengths):
        (alone,), (again,) = begun_at([length]), begun_at([length])
        one = Draws(draws.choices[:1], draws.calibration)
        (found,), _ = runtime.draw([alone], [5 + row], silence(runtime), one)
        output, _ = runtime.step([again], [5 + row], silence(runtime))
        assert found.latent.tobytes() == drawn[row].latent.tobytes() == output.latent[0].tobytes()
        assert (found.token, found.log_probability) == (drawn[row].token, drawn[row].log_probability)
        alone.release()
        again.release()
    assert all(advance.is_finite() for advance in advances)
    for context in together:
        context.release()


@pytest.mark.parametrize("counts", [[5], [64], [300], [1024], [3, 70, 1, 200]])
def test_graphs_of_prompts_leave_the_bits_of_prompts_launched_one_by_one(
    runtime: TorchLanguageRuntime, counts: list[int]
) -> None:
    """Slots by `read_prompts`, keys and values by `extend`, which are in no graph."""
    draw = np.random.default_rng(1)
    pieces = [draw.integers(0, len(runtime.vocabulary), count).tolist() for count in counts]
    left: list[list[bytes]] = []
    for in_graph in (True, False):
        recurrent: list[Any] = [runtime.start("recurrent") for _ in counts]
        attention: list[Any] = [runtime.start("attention", capacity=count + 1) for count in counts]
        if in_graph:
            advances = [*runtime.prefill(recurrent, pieces), *runtime.prefill(attention, pieces)]
        else:
            noise = silence(runtime, len(counts))
            advances = [*runtime.read_prompts(recurrent, pieces)[1], *runtime.extend(attention, pieces, noise)[1]]
        assert all(advance.is_finite() for advance in advances)
        for advance in advances:
            advance.commit()
        kept = [part[:, one.rows(0, one.position)].float() for one in attention for part in runtime.pages.rows]
        left.append([*map(runtime.pack, recurrent), *(part.cpu().numpy().tobytes() for part in kept)])
        for context in (*recurrent, *attention):
            context.release()
    assert left[0] == left[1]


def test_a_replayed_step_allocates_nothing(runtime: TorchLanguageRuntime) -> None:
    context = begun(runtime, [1, 2, 3])
    logits_of(runtime, context, [4])
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    logits_of(runtime, context, [5] * 20)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    context.release()


@pytest.mark.parametrize("count", [2, 3, 5, MAX_ROWS])
def test_a_stream_has_the_same_bits_alone_and_among_others(runtime: TorchLanguageRuntime, count: int) -> None:
    alone, together = ([begun(runtime, [7 + i, 8], position=100 * i) for i in range(count)] for _ in range(2))
    for token in range(9, 13):
        output, advances = runtime.step(together, [token + i for i in range(count)], silence(runtime, count))
        for row, context in enumerate(alone):
            assert logits_of(runtime, context, [token + row])[0].tobytes() == output.logits[row].tobytes()
            advances[row].commit()
            assert runtime.pack(context) == runtime.pack(together[row])
    for context in (*alone, *together):
        context.release()


def test_a_state_goes_on_bit_for_bit(runtime: TorchLanguageRuntime) -> None:
    tokens = runtime.vocabulary.encode(TEXT)[:16]
    whole, part = begun(runtime, tokens[:8]), begun(runtime, tokens[:8])
    for token in tokens[8:]:
        packed = runtime.pack(part)
        part.release()
        part = runtime.unpack(packed)
        assert logits_of(runtime, part, [token]).tobytes() == logits_of(runtime, whole, [token]).tobytes()
    whole.release()
    part.release()


def test_the_golden_outputs_are_reproduced_rounded_and_unrounded(
    runtime: TorchLanguageRuntime, unrounded: TorchLanguageRuntime, bundle: Bundle
) -> None:
    assert check_golden_on(unrounded, bundle) == check_golden_on(runtime, bundle) > 1000


def test_a_poisoned_row_is_alone_with_it(runtime: TorchLanguageRuntime) -> None:
    contexts = [begun(runtime, [7 + index, 8]) for index in range(3)]
    state = contexts[1].read()
    state["means"][0, 0, 0, 0] = np.nan
    contexts[1].write(state)
    before = [runtime.pack(context) for context in contexts]
    _, advances = runtime.step(contexts, [4, 5, 6], silence(runtime, 3))
    assert [advance.is_finite() for advance in advances] == [True, False, True]
    assert [runtime.pack(context) for context in contexts] == before
    for context in contexts:
        context.release()


def test_bfloat16_stays_within_its_rounding(runtime: TorchLanguageRuntime, unrounded: TorchLanguageRuntime) -> None:
    tokens = runtime.vocabulary.encode(TEXT)[:24]
    contexts = begun(runtime, tokens[:4]), begun(unrounded, tokens[:4])
    found, exact = (
        logits_of(side, context, tokens[4:]) for side, context in zip((runtime, unrounded), contexts, strict=True)
    )
    assert np.linalg.norm(found - exact) <= runtime.rounding * np.linalg.norm(exact)
    p, q = log_softmax(exact), log_softmax(found)
    assert (np.exp(p) * (p - q)).sum(-1).max() <= 1e-3  # nats per token
    for context in contexts:
        context.release()


@pytest.mark.parametrize("to_gpu", [True, False])
def test_a_state_goes_on_on_the_other_device(unrounded: TorchLanguageRuntime, bundle: Bundle, to_gpu: bool) -> None:
    onnx = LanguageRuntime(bundle, streams=2, max_rows=2)
    before, after = (onnx, unrounded) if to_gpu else (unrounded, onnx)
    tokens = onnx.vocabulary.encode(TEXT)[:24]
    first, reference = begun(before, tokens[:12]), begun(after, tokens[:12])
    second = after.unpack(before.pack(first))
    found, expected = (logits_of(after, context, tokens[12:]) for context in (second, reference))
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()  # the limit of `rfa.export.comparison`
    for context in (first, second, reference):
        context.release()


def test_a_step_costs_the_same_at_any_position(runtime: TorchLanguageRuntime) -> None:
    times: dict[int, list[float]] = {10: [], 1_000_000: []}
    contexts = {position: begun(runtime, [1, 2], position=position) for position in times}
    for turn in range(300):
        for position, context in contexts.items():
            started = time.perf_counter()
            logits_of(runtime, context, [3])
            if turn >= 50:
                times[position].append(time.perf_counter() - started)
            context.position = position
    near, far = (float(np.median(measured)) for measured in times.values())
    assert 0.9 <= far / near <= 1.1, (near, far)
    for context in contexts.values():
        context.release()


def test_bundles_are_loaded_while_others_serve(runtime: TorchLanguageRuntime, bundle: Bundle) -> None:
    stop, failures = threading.Event(), []

    def serve() -> None:
        try:
            while not stop.is_set():
                context = begun(runtime, [1, 2, 3])
                logits_of(runtime, context, [4, 5])
                context.release()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        again = TorchLanguageRuntime(bundle, device="cuda", streams=4, max_rows=4)
        check_golden_on(again, bundle)
    finally:
        stop.set()
        thread.join()
    assert not failures
