"""Reweighting passes of texts: each stream of a batch has its own number, on the runtimes of a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.export.language_export import bundle_weights, constants_file
from rfa.model.checkpoint import load_run
from rfa.model.language import LanguageModel
from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, check_golden, open_bundle
from rfa.runtime.bundle.golden import run_golden
from rfa.runtime.errors import InvalidInput
from rfa.runtime.golden import reproduce
from rfa.runtime.gpu.golden import check_golden_on
from rfa.runtime.gpu.language import TorchLanguageRuntime
from rfa.runtime.passes import PassesRange
from rfa.runtime.text.compiled_language import CompiledLanguageRuntime
from rfa.runtime.text.language import Language, LanguageRuntime
from tests.runtime.text.exact import EPS, ExactModel, begun, check_company, largest_errors, prompt_of, silence, stepped
from tests.small_language import PASSES, write_run

NUMBERS = (1, 2, 3)


@pytest.fixture(scope="module")
def bundle(passes_bundle: Path) -> Bundle:
    return open_bundle(passes_bundle)


@pytest.fixture(scope="module")
def onnx(bundle: Bundle) -> LanguageRuntime:
    return LanguageRuntime(bundle, streams=16, max_rows=6)


@pytest.fixture(scope="module", params=["onnx", "compiled"])
def made(request: pytest.FixtureRequest, bundle: Bundle, onnx: LanguageRuntime) -> Language:
    return onnx if request.param == "onnx" else CompiledLanguageRuntime(bundle, streams=16)


@pytest.fixture
def runtime(made: Language) -> Any:
    yield made
    assert made.pool.in_use == 0


@pytest.mark.parametrize("passes", NUMBERS)
def test_outputs_are_those_of_the_model_with_as_many(
    runtime: Any, onnx: LanguageRuntime, passes_bundle: Path, monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    tokens = prompt_of(runtime)[:40]
    exact = ExactModel(passes_bundle, monkeypatch)
    exact.model.passes = passes
    expected = exact.outputs(tokens, 20, 0, "recurrent", silence(runtime))
    errors = []
    for side in (runtime, onnx):
        context = begun(side, tokens[:20], passes=passes)
        errors.append(largest_errors(stepped(side, context, tokens[20:]), expected))
        context.release()
    found, allowed = errors
    assert all(found[name] <= 2 * allowed[name] + 4 * EPS < 1e-4 for name in found), (found, allowed)
    exact.model.passes = passes % 3 + 1
    others = largest_errors(exact.outputs(tokens, 20, 0, "recurrent", silence(runtime)), expected)
    assert others["logits"] > 1e-3


def test_rows_with_different_numbers_share_a_batch(runtime: Any) -> None:
    tokens, draw = prompt_of(runtime), np.random.default_rng(1)
    alone, together = (
        [begun(runtime, tokens[row : row + 3 + row], position=1000 * row, passes=row % 3 + 1) for row in range(6)]
        for _ in range(2)
    )
    for _ in range(3):
        chosen = draw.integers(0, len(runtime.vocabulary), 6).tolist()
        noise = draw.standard_normal((6, *runtime.latent_shape), dtype=np.float32)
        check_company(runtime, alone, together, draw.permutation(6).tolist(), chosen, noise)
    for context in (*alone, *together):
        context.release()


def test_a_state_is_continued_with_another_number(runtime: Any) -> None:
    tokens = prompt_of(runtime)
    first = begun(runtime, tokens[:10], passes=3)
    packed = runtime.pack(first)
    second = first.fork()
    assert second.passes == 3
    second.passes = 1
    third, usual = runtime.unpack(packed, 1), runtime.unpack(packed)
    assert usual.passes == 3
    outputs = [stepped(runtime, context, tokens[10:14])[-1] for context in (first, second, third)]
    assert outputs[1].logits.tobytes() == outputs[2].logits.tobytes() != outputs[0].logits.tobytes()
    for context in (first, second, third, usual):
        context.release()


def test_one_pass_has_the_bits_of_a_model_with_one(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model with one has the same weights and constants, so that its bundle differs in configuration and graphs."""
    model = load_run(write_run(tmp_path / "run", {**PASSES, "inner": 1}))
    assert isinstance(model, LanguageModel)
    assert constants_file(model) == bundle.read(CONSTANTS_FILE)
    weights = bundle_weights(model)
    assert weights.keys() == bundle.weights().keys()
    assert all(np.array_equal(weights[name], array) for name, array in bundle.weights().items())
    usual = open_bundle(bundle.path)
    monkeypatch.setattr(usual, "_family", bundle.language.model_copy(update={"inner": 1}))
    assert usual.language.passes == (1, 1)
    found = []
    for one in (usual, bundle):
        runtime = CompiledLanguageRuntime(one, streams=2)
        context = begun(runtime, prompt_of(runtime)[:10], passes=1)
        logits = [output.logits.tobytes() for output in stepped(runtime, context, prompt_of(runtime)[10:30])]
        found.append((logits, runtime.pack(context)))
    assert found[0] == found[1]


def test_golden_outputs_have_every_number(made: Language, bundle: Bundle) -> None:
    values = sum(len(found["values"]) for case in bundle.golden["cases"] for found in case["outputs"].values())
    if made.runtime == "onnx":
        sessions = {name: bundle.session(name) for name in bundle.manifest.graphs}
        assert run_golden(bundle.golden, sessions, bundle.weights()) == values
    else:
        assert reproduce(made, bundle, made.attention, where="here") == values  # type: ignore[arg-type, attr-defined]


def test_a_gpu_supports_the_number_of_the_model_only(bundle: Bundle, onnx: LanguageRuntime) -> None:
    runtime = TorchLanguageRuntime(bundle, device="cpu", streams=4, max_rows=2)
    assert (runtime.passes, onnx.passes) == (PassesRange(3, 3), PassesRange(1, 3))
    assert 500 < check_golden_on(runtime, bundle) < check_golden(bundle)
    with pytest.raises(InvalidInput, match="passes of model 'passes' must be 3, or null"):
        runtime.start("recurrent", passes=1)
    contexts = [begun(side, prompt_of(side)[:10], passes=3) for side in (runtime, onnx)]
    found, expected = (stepped(side, context, [5])[0] for side, context in zip((runtime, onnx), contexts, strict=True))
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-5)
    for context in contexts:
        context.release()


@pytest.mark.parametrize("passes", [0, 4])
def test_other_numbers_are_refused(runtime: Any, passes: int) -> None:
    with pytest.raises(InvalidInput, match="passes of model 'passes' must be between 1 and 3") as refusal:
        runtime.start("recurrent", passes=passes)
    assert (refusal.value.param, refusal.value.code) == ("passes", "out_of_range")
