"""The laws of a stream, on every runtime of texts; the one for a GPU runs on a CPU, in float32."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.errors import InvalidInput
from rfa.runtime.gpu.language import TorchLanguageRuntime
from rfa.runtime.gpu.pages import PagedContext
from rfa.runtime.gpu.pool import DevicePool
from rfa.runtime.pool import StaleSlot
from rfa.runtime.text.language import Language, LanguageRuntime
from rfa.runtime.text.logit_adjustments import AdjustedLogits, SamplingRules
from rfa.runtime.text.sampling import Choice, DrawnToken, Draws, drawn_tokens
from rfa.runtime.text.scores import score_tokens
from tests.runtime.text.exact import (
    EPS,
    ExactModel,
    begun,
    check_company,
    crowd,
    largest_errors,
    prompt_of,
    read_on,
    silence,
    stepped,
)

RUNTIMES = ("onnx", "compiled", "torch")
STREAMS, MAX_ROWS = 40, 8
STEPS = 16
FAR = 1_000_000


@pytest.fixture(scope="module")
def bundle(books_bundle: Path) -> Bundle:
    return open_bundle(books_bundle)


def load(bundle: Bundle, name: str) -> Language:
    if name == "torch":
        return TorchLanguageRuntime(bundle, device="cpu", streams=STREAMS, max_rows=MAX_ROWS)
    if name == "onnx":
        return LanguageRuntime(bundle, streams=STREAMS, max_rows=MAX_ROWS)
    from rfa.runtime.text.compiled_language import CompiledLanguageRuntime

    return CompiledLanguageRuntime(bundle, streams=STREAMS)


@pytest.fixture(scope="module", params=RUNTIMES)
def made(request: pytest.FixtureRequest, bundle: Bundle) -> Language:
    return load(bundle, request.param)


@pytest.fixture(scope="module")
def other(bundle: Bundle) -> Language:
    """ONNX Runtime beside a runtime that is held against it."""
    return load(bundle, "onnx")


@pytest.fixture
def runtime(made: Language) -> Any:
    yield made
    assert made.pool.in_use == 0, "the test left streams behind"
    assert not any(rows.any() for rows in rows_of(made))


def rows_of(runtime: Language) -> list[np.ndarray]:
    """What the pool keeps for its seats, whether they have an owner or not."""
    pool = runtime.pool
    on_device = [part[:, : pool.initial_row].numpy() for part in pool.slots] if isinstance(pool, DevicePool) else []
    return [*pool.arrays.values(), *on_device]


# A text that is scored.


@pytest.mark.parametrize("mode", ["recurrent", "attention"])
@pytest.mark.parametrize("seed", range(3))
def test_scores_have_the_bits_of_decoding_however_the_text_is_cut(runtime: Any, mode: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, len(runtime.vocabulary), 24).tolist()
    whole, cut = begun(runtime, [], mode), begun(runtime, [], mode)
    outputs = stepped(runtime, whole, tokens)
    cuts = [0, *sorted(draw.choice(np.arange(1, 24), 4, replace=False).tolist()), 24]
    logits = np.concatenate([runtime.logits_of(cut, tokens[a:b])[0] for a, b in itertools.pairwise(cuts)])
    assert logits.tobytes() == b"".join(output.logits.tobytes() for output in outputs)
    if mode == "recurrent":
        assert runtime.pack(whole) == runtime.pack(cut)
    temperature = runtime.confidence(mode).temperature
    scores = score_tokens(logits, tokens, temperature, 3)
    for row, output in enumerate(outputs):
        chosen = Choice(adjusted=Forced(tokens[row]), top=3)  # type: ignore[arg-type]
        (drawn,) = drawn_tokens(*output, Draws([chosen], temperature))
        assert (drawn.log_probability, drawn.calibrated) == (scores.log_probability[row], scores.calibrated[row])
        assert drawn.top is not None and drawn.top.tokens.tolist() == scores.top_tokens[row].tolist()
        assert drawn.top.log_probabilities.tolist() == scores.top_log_probabilities[row].tolist()
    whole.release()
    cut.release()


class Forced:
    """Logits that leave one token."""

    def __init__(self, token: int) -> None:
        self._token = token

    def of(self, logits: np.ndarray) -> np.ndarray:
        only = np.full_like(logits, -np.inf)
        only[self._token] = 0
        return only


# A stream among others, and between its owners.


@pytest.mark.parametrize("count", range(2, MAX_ROWS + 1))
def test_a_stream_has_the_same_bits_alone_and_among_others(runtime: Any, count: int) -> None:
    alone, together = crowd(runtime, count), crowd(runtime, count)
    draw = np.random.default_rng(1)
    for _ in range(4):
        tokens = draw.integers(0, len(runtime.vocabulary), count).tolist()
        noise = draw.standard_normal((count, *runtime.latent_shape), dtype=np.float32)
        check_company(runtime, alone, together, draw.permutation(count).tolist(), tokens, noise)
    for context in (*alone, *together):
        context.release()


def reported(drawn: DrawnToken) -> Any:
    """All that is told of a row, comparable digit for digit."""
    top = drawn.top and (drawn.top.tokens.tolist(), drawn.top.log_probabilities.tolist())
    latent = None if drawn.latent is None else drawn.latent.tobytes()
    return drawn.token, drawn.log_probability, drawn.calibrated, drawn.is_finite, top, latent


@pytest.mark.parametrize("mode", ["recurrent", "attention"])
def test_a_row_is_drawn_alone_and_among_others_as_from_its_logits(runtime: Any, mode: Any) -> None:
    """Greedy, sampled, with and without alternatives and latents, and with changed logits, all in one batch."""
    rules = SamplingRules(repetition_penalty=1.5, logit_bias={5: 3.0})
    adjusted = AdjustedLogits(rules, len(runtime.vocabulary), prompt_of(runtime))
    choices = [
        *(Choice(), Choice(0.8, uniform=0.3, top=2), Choice(top=3), Choice(with_latent=True)),
        *(
            Choice(1.3, 40, 0.9, uniform=0.95),
            Choice(100.0, uniform=0.5),
            Choice(1.0, top_p=0.3, uniform=0.7, with_latent=True),
        ),
        Choice(0.9, uniform=0.6, top=1, with_latent=True, min_p=0.01, adjusted=adjusted),
    ]
    count = len(choices)
    calibration, draw, text = runtime.confidence(mode).temperature, np.random.default_rng(2), prompt_of(runtime)
    contexts = [begun(runtime, text[row : row + 3 + row], mode) for row in range(count)]
    for step in range(4):
        tokens = draw.integers(0, len(runtime.vocabulary), count).tolist()
        noise = draw.standard_normal((count, *runtime.latent_shape), dtype=np.float32)
        logits, log_precision, latent = runtime.step(contexts, tokens, noise)[0]
        requested = drawn_tokens(logits, log_precision, latent, Draws(choices, calibration))
        together, advances = runtime.draw(contexts, tokens, noise, Draws(choices, calibration))
        for row, choice in enumerate(choices):
            (single,), _ = runtime.draw(
                contexts[row : row + 1], [tokens[row]], noise[row : row + 1], Draws([choice], calibration)
            )
            found, expected = reported(single), reported(requested[row])
            assert found == reported(together[row])
            assert found[0] == expected[0] and found[3:4] == expected[3:4] and found[5] == expected[5]
            # The exponentials of either are two and a half units of the last place from the truth, at most.
            np.testing.assert_allclose(found[1:3], expected[1:3], rtol=0, atol=5 * EPS)
            assert (found[4] is None) == (expected[4] is None) == (choice.top == 0)
            if found[4] is not None:
                assert found[4][0] == expected[4][0] and len(found[4][0]) == choice.top
                np.testing.assert_allclose(found[4][1], expected[4][1], rtol=0, atol=5 * EPS)
        for advance in advances:
            assert advance.is_finite()
            advance.commit()
        assert step or len({row.token for row in together}) > 1
    for context in contexts:
        context.release()


def test_a_step_that_is_not_committed_did_not_happen(runtime: Any) -> None:
    context = begun(runtime, [1, 2, 3])
    packed = runtime.pack(context)
    first, _ = runtime.step([context], [4], silence(runtime))
    read_on(runtime, context, [9, 9])
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
        ("means", (1, 0, 0, 0), np.inf),
        ("means", (1, 0, 0, 127), np.inf),
        ("means", (3, 2, 15, 3), -np.inf),
        ("means", (3, 2, 15, 127), np.nan),
        ("precisions", (2, 1, 3), np.nan),
    ],
)
def test_a_poisoned_row_is_alone_with_it(runtime: Any, field: str, place: tuple[int, ...], value: float) -> None:
    healthy, infected = crowd(runtime, 4), crowd(runtime, 4)
    state = infected[2].read()
    state[field][place] = value
    infected[2].write(state)
    states = [context.read() for context in infected]
    noise = silence(runtime, 4)
    expected, requested = runtime.step(healthy, [3, 4, 5, 6], noise)
    found, advances = runtime.step(infected, [3, 4, 5, 6], noise)
    assert [advance.is_finite() for advance in advances] == [True, True, False, True]
    for row, context in enumerate(infected):
        for name, now in context.read().items():
            np.testing.assert_array_equal(now, states[row][name])
        if row == 2:
            continue
        assert all(a[row].tobytes() == b[row].tobytes() for a, b in zip(found, expected, strict=True))
        advances[row].commit()
        requested[row].commit()
        assert runtime.pack(context) == runtime.pack(healthy[row])
    for context in (*healthy, *infected):
        context.release()


def test_a_poisoned_prompt_is_reported(runtime: Any) -> None:
    context = begun(runtime, [1])
    state = context.read()
    state["means"][0, 0, 0, 0] = np.nan
    context.write(state)
    assert not read_on(runtime, context, [2, 3]).is_finite()
    context.release()
    cache = begun(runtime, [1, 2], "attention")
    if isinstance(cache, PagedContext):
        cache.pool.keys[0, cache.rows(0, 1)] = np.nan
    else:
        cache.keys[0, 0, 0, 0] = np.nan
    assert not read_on(runtime, cache, [2, 3]).is_finite()


def test_a_slot_is_empty_between_its_owners(runtime: Any) -> None:
    context = begun(runtime, [1, 2, 3])
    row = context.slot.row
    context.release()
    assert not any(rows.any() for rows in rows_of(runtime))
    with pytest.raises(StaleSlot):
        runtime.step([context], [1], silence(runtime))
    fresh = begun(runtime, [])
    assert fresh.slot.row == row
    np.testing.assert_array_equal(fresh.read()["means"], runtime.initial["means"])
    fresh.release()


@pytest.mark.parametrize("mode", ["recurrent", "attention"])
def test_a_fork_goes_its_own_way(runtime: Any, mode: Any) -> None:
    first = begun(runtime, prompt_of(runtime)[:70], mode)
    second = first.fork()
    outputs = [stepped(runtime, context, [5, 6])[-1] for context in (first, second)]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(*outputs, strict=True))
    # The first one's tokens would take the place of the second one's, had they one memory.
    stepped(runtime, second, [7])
    stepped(runtime, first, [1] * 3)
    (other,) = stepped(runtime, second, [8])
    again = begun(runtime, prompt_of(runtime)[:70], mode)
    expected = stepped(runtime, again, [5, 6, 7, 8])[-1]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(other, expected, strict=True))
    for context in (first, second, again):
        context.release()


# States.


def moved(runtime: Any, context: Any) -> Any:
    """The stream as its bytes give it back."""
    packed = runtime.pack(context)
    context.release()
    return runtime.unpack(packed)


def test_a_state_goes_on_bit_for_bit_between_tokens_and_between_pieces_of_a_prompt(runtime: Any) -> None:
    tokens = prompt_of(runtime)
    whole, parts = begun(runtime, tokens[:8]), begun(runtime, tokens[:8])
    for piece in (1, 6, 1, 0, 0, 0):
        end = whole.position + piece
        if piece:
            parts = moved(runtime, parts)
            for context in (whole, parts):
                read_on(runtime, context, tokens[end - piece : end]).commit()
        parts = moved(runtime, parts)
        (expected,), (found,) = (stepped(runtime, context, [tokens[end]]) for context in (whole, parts))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))
    assert runtime.pack(parts) == runtime.pack(whole)
    whole.release()
    parts.release()


def test_other_bytes_are_refused(runtime: Any) -> None:
    context = begun(runtime, [1, 2])
    packed = runtime.pack(context)
    context.release()
    for broken in (packed[:-4], packed + b"0000", packed[:-4] + b"\x00\x00\xc0\x7f", b"\xff" * 8 + packed[8:]):
        with pytest.raises(InvalidInput) as refusal:
            runtime.unpack(broken)
        assert refusal.value.code == "state_invalid"
    with pytest.raises(TypeError):
        runtime.pack(begun(runtime, [], "attention"))


# Beside ONNX Runtime, by the model in float64.


@pytest.mark.parametrize("from_onnx", [False, True])
@pytest.mark.parametrize("made", ["compiled", "torch"], indirect=True)
def test_a_state_goes_on_on_the_other_runtime(
    runtime: Any, other: Any, books_bundle: Path, monkeypatch: pytest.MonkeyPatch, from_onnx: bool
) -> None:
    tokens, half = prompt_of(runtime)[:STEPS], STEPS // 2
    exact = ExactModel(books_bundle, monkeypatch).outputs(tokens, half, 0, "recurrent", silence(runtime))
    before, after = (other, runtime) if from_onnx else (runtime, other)
    first = begun(before, tokens[:half])
    packed = before.pack(first)
    assert len(packed) == before.context_bytes == after.context_bytes
    second = after.unpack(packed)
    assert after.pack(second) == packed
    reference = begun(other, tokens[:half])
    allowed = largest_errors(stepped(other, reference, tokens[half:]), exact)
    found = largest_errors(stepped(after, second, tokens[half:]), exact)
    assert all(found[name] <= 2 * allowed[name] + EPS for name in found), (found, allowed)
    for context in (first, second, reference):
        context.release()


# In attention mode compiled texts run on the graph itself: `test_attention_is_the_graph_of_the_bundle`.
@pytest.mark.parametrize(
    ("made", "mode", "position"),
    [
        ("compiled", "recurrent", 0),
        ("compiled", "recurrent", FAR),
        ("torch", "recurrent", 0),
        ("torch", "recurrent", FAR),
        ("torch", "attention", 0),
    ],
    indirect=["made"],
)
def test_outputs_are_as_good_as_those_of_onnx_runtime(
    runtime: Any, other: Any, books_bundle: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, position: int
) -> None:
    tokens, read = prompt_of(runtime)[:STEPS], 8
    noise = 0.5 * np.random.default_rng(0).standard_normal((1, *runtime.latent_shape)).astype(np.float32)
    exact = ExactModel(books_bundle, monkeypatch)
    expected = exact.outputs(tokens, read, position, mode, noise)
    contexts = [begun(side, tokens[:read], mode, position) for side in (runtime, other)]
    ours, theirs = (
        largest_errors(stepped(side, context, tokens[read:], noise), expected)
        for side, context in zip((runtime, other), contexts, strict=True)
    )
    if mode == "recurrent":
        # The mean: the largest error is that of one slot, where a gate is steep, and whose it is is luck.
        for found, context in zip((ours, theirs), contexts, strict=True):
            for (name, part), requested in zip(context.read().items(), exact.state, strict=True):
                found[name] = float(np.abs(part - requested).mean() / np.abs(requested).max())
    for context in contexts:
        context.release()
    assert all(ours[name] <= 2 * theirs[name] for name in ("means", "precisions") if name in ours), (ours, theirs)
    assert all(ours[name] <= 2 * theirs[name] + EPS for name in ours), (ours, theirs)
