"""The laws of a stream, on both runtimes for a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.bundle import Bundle, open_bundle
from service.engine.language_runtime import CpuLanguage, LanguageRuntime
from service.engine.pool import StaleSlot
from service.errors import InvalidRequest
from tests.service.exact import begun, crowd, prompt_of, silence, stepped

pytest.importorskip("numba")
from service.engine.compiled_language_runtime import CompiledLanguageRuntime

MAX_ROWS = 8


@pytest.fixture(scope="module")
def bundle(books_bundle: Path) -> Bundle:
    return open_bundle(books_bundle)


@pytest.fixture(scope="module", params=["onnx", "compiled"])
def made(request: pytest.FixtureRequest, bundle: Bundle) -> CpuLanguage:
    if request.param == "onnx":
        return LanguageRuntime(bundle, streams=40, max_rows=MAX_ROWS)
    return CompiledLanguageRuntime(bundle, streams=40)


@pytest.fixture
def runtime(made: CpuLanguage) -> Any:
    yield made
    assert made.pool.in_use == 0, "the test left streams behind"
    assert not made.pool.arrays["means"].any() and not made.pool.arrays["precisions"].any()


@pytest.mark.parametrize("count", range(2, MAX_ROWS + 1))
def test_a_stream_has_the_same_bits_alone_and_among_others(runtime: CpuLanguage, count: int) -> None:
    alone, together = crowd(runtime, count), crowd(runtime, count)
    draw = np.random.default_rng(1)
    for _ in range(3):
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


def test_a_step_that_is_not_committed_did_not_happen(runtime: CpuLanguage) -> None:
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


# A layer that others follow and the last, the key half and the value half; an infinite precision is one that heals.
@pytest.mark.parametrize(
    ("field", "place", "value"),
    [
        ("means", (1, 0, 0, 0), np.nan),
        ("means", (1, 0, 0, 127), np.inf),
        ("means", (3, 2, 15, 3), -np.inf),
        ("means", (3, 2, 15, 127), np.nan),
        ("precisions", (2, 1, 3), np.nan),
    ],
)
def test_a_poisoned_row_is_alone_with_it(
    runtime: CpuLanguage, field: str, place: tuple[int, ...], value: float
) -> None:
    healthy, infected = crowd(runtime, 4), crowd(runtime, 4)
    state = dict(zip(("means", "precisions"), infected[2].read(), strict=True))
    state[field][place] = value
    infected[2].write(**state)
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


def test_a_poisoned_prompt_is_reported(runtime: CpuLanguage) -> None:
    context = begun(runtime, [1])
    means, precisions = context.read()
    means[0, 0, 0, 0] = np.nan
    context.write(means, precisions)
    assert not runtime.prefill(context, [2, 3]).is_finite()
    context.release()
    cache = begun(runtime, [1, 2], "attention")
    cache.keys[0, 0, 0, 0] = np.nan
    assert not runtime.prefill(cache, [2, 3]).is_finite()


def test_a_slot_is_empty_between_its_owners(runtime: CpuLanguage) -> None:
    context = begun(runtime, [1, 2, 3])
    row = context.slot.row
    context.release()
    with pytest.raises(StaleSlot):
        runtime.step([context], [1], silence(runtime))
    fresh = begun(runtime, [])
    assert fresh.slot.row == row
    np.testing.assert_array_equal(fresh.read()[0], runtime.initial_means)
    fresh.release()


@pytest.mark.parametrize("mode", ["recurrent", "attention"])
def test_a_fork_goes_its_own_way(runtime: CpuLanguage, mode: Any) -> None:
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


def test_a_state_goes_on_bit_for_bit_also_between_pieces_of_a_prompt(runtime: CpuLanguage) -> None:
    tokens = prompt_of(runtime)
    whole, parts = begun(runtime, tokens[:8]), begun(runtime, tokens[:8])
    for start, end in ((8, 9), (9, 15), (15, 16)):
        runtime.prefill(whole, tokens[start:end]).commit()
        packed = runtime.pack(parts)
        parts.release()
        parts = runtime.unpack(packed)
        runtime.prefill(parts, tokens[start:end]).commit()
        (expected,), (found,) = stepped(runtime, whole, [tokens[end]]), stepped(runtime, parts, [tokens[end]])
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))
    assert runtime.pack(parts) == runtime.pack(whole)
    whole.release()
    parts.release()


def test_other_bytes_are_refused(runtime: CpuLanguage) -> None:
    context = begun(runtime, [1, 2])
    packed = runtime.pack(context)
    context.release()
    for broken in (packed[:-4], packed + b"0000", packed[:-4] + b"\x00\x00\xc0\x7f", b"\xff" * 8 + packed[8:]):
        with pytest.raises(InvalidRequest) as refusal:
            runtime.unpack(broken)
        assert refusal.value.code == "state_invalid"
    with pytest.raises(TypeError):
        runtime.pack(begun(runtime, [], "attention"))
