"""The graphs of a language bundle against the torch model, and what else the bundle says."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
from tokenizers import Tokenizer

from rfa.export import comparison
from rfa.export.language_calibration import ScoredTokens, fit_temperature, pooled_temperature
from rfa.export.writing import rewrite_bundle
from rfa.model.language import LanguageModel
from rfa.model.loading import load_model
from rfa.runtime.bundle.bundle import Bundle, BundleError, check_golden
from rfa.runtime.bundle.onnx_runtime import ort
from rfa.runtime.bundle.token_confidence import reliability


@pytest.fixture(scope="module")
def model(language_bundle: Bundle) -> LanguageModel:
    """Rebuilt from the bundle."""
    return load_model(language_bundle.path)


@cache
def session_of(bundle: Bundle, graph: str) -> ort.InferenceSession:
    return bundle.session(graph)


def run(bundle: Bundle, graph: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = session_of(bundle, graph)
    names = [node.name for node in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def tokens_of(bundle: Bundle, batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, bundle.config["vocab_size"], (batch, length))


def carry(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"means": outputs["next_means"], "precisions": outputs["next_precisions"]}


def silent(bundle: Bundle, batch: int) -> np.ndarray:
    return np.zeros((batch, bundle.config["n_heads"], 2 * bundle.config["head_dim"]), np.float32)


def test_bundle_is_complete(language_bundle: Bundle, language_run: Path) -> None:
    assert language_bundle.kind == "lm"
    assert set(language_bundle.manifest.graphs) == {"step", "prefill", "attention"}
    assert language_bundle.language.passes == (1, 1)
    assert "passes" not in {tensor.name for tensor in language_bundle.manifest.graphs["step"].inputs}
    assert language_bundle.read("tokenizer.json") == (language_run / "tokenizer.json").read_bytes()
    assert check_golden(language_bundle) > 500
    provenance = language_bundle.manifest.provenance
    assert provenance["training"]["data"] == {"text.txt": "0" * 64}
    assert provenance["export"]["versions"]["torch"] == torch.__version__


def test_weights_are_the_runs_weights(language_bundle: Bundle, language_run: Path) -> None:
    trained = load_model(language_run).state_dict()
    stored = language_bundle.weights()
    assert set(stored) == {*trained, "initial.means", "initial.precisions"}
    for name, tensor in trained.items():
        np.testing.assert_array_equal(stored[name], tensor.numpy())


def test_graphs_hold_no_weights(language_bundle: Bundle) -> None:
    largest = max(array.size for array in language_bundle.weights().values())
    for name, graph in language_bundle.manifest.graphs.items():
        model = onnx.ModelProto.FromString(language_bundle.read(graph.file))
        kept = [tensor for tensor in model.graph.initializer if tensor.data_location != onnx.TensorProto.EXTERNAL]
        sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in kept}
        assert max(sizes.values()) < largest / 50, (name, sizes)


def test_every_graph_agrees_with_torch(language_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps, prompts of several lengths and a cache, as `rfa verify` compares them, over few steps."""
    monkeypatch.setattr(comparison, "STEPS", comparison.PREFIX + comparison.CONTINUATION)
    comparisons = comparison.compare_with_torch(language_bundle)
    assert len(comparisons) > 3 and all(entry.passed for entry in comparisons), comparisons


def test_attention_over_a_cache_agrees_with_the_parallel_pass(language_bundle: Bundle, model: LanguageModel) -> None:
    """Two rows with caches of different length in one call; rows of the cache that hold nothing carry rubbish."""
    ids = tokens_of(language_bundle, 2, 24)
    model.mode = "attention"
    with torch.no_grad():
        parallel = model(torch.from_numpy(ids))
    config = language_bundle.config
    shape = (2, config["n_layers"], config["n_heads"], 29, 2 * config["head_dim"])
    keys, values = np.full(shape, 5.0, np.float32), np.full(shape, -7.0, np.float32)
    done = np.array([9, 15])
    for row in range(2):
        alone = run(
            language_bundle,
            "attention",
            tokens=ids[row : row + 1, : done[row]],
            position=np.array([0]),
            keys=keys[row : row + 1],
            values=values[row : row + 1],
            noise=silent(language_bundle, 1),
        )
        keys[row, :, :, : done[row]] = alone["new_keys"][0]
        values[row, :, :, : done[row]] = alone["new_values"][0]
        np.testing.assert_allclose(alone["logits"][0], parallel.logits[row, done[row] - 1], atol=1e-5, rtol=1e-5)
    both = run(
        language_bundle,
        "attention",
        tokens=np.stack([ids[row, done[row] : done[row] + 3] for row in range(2)]),
        position=done,
        keys=keys,
        values=values,
        noise=silent(language_bundle, 2),
    )
    for row in range(2):
        last = done[row] + 2
        np.testing.assert_allclose(both["logits"][row], parallel.logits[row, last], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(both["log_precision"][row], parallel.log_precision[row, last], atol=1e-5, rtol=1e-5)


def test_tokenizer_files_fit_each_other(language_bundle: Bundle) -> None:
    tokenizer = Tokenizer.from_str(language_bundle.read("tokenizer.json").decode())
    config = json.loads(language_bundle.read("tokenizer_config.json"))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokenizer.token_to_id(config["eos_token"]) is not None
    assert tokenizer.decode(tokenizer.encode("It was — naïve.\n\n").ids) == "It was — naïve.\n\n"


def test_golden_continuation_is_greedy(language_bundle: Bundle, model: LanguageModel) -> None:
    prompt = language_bundle.golden["prompt"]
    for mode in ("recurrent", "attention"):
        model.mode = mode
        ids = list(prompt)
        for expected in language_bundle.golden["continuation"][mode]:
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, -1]
            assert logits.max() - logits[expected] < 1e-4
            ids.append(expected)


def test_calibration_is_stated_per_mode(language_bundle: Bundle) -> None:
    calibration = language_bundle.calibration
    for mode in ("recurrent", "attention"):
        entry = calibration["modes"][mode]
        assert calibration["temperature"][mode] == entry["temperature"]
        # Random weights know nothing of random tokens: the fit must lower the NLL towards ln V.
        assert entry["nll"] < entry["nll_uncalibrated"]
        assert sum(entry["sampled"]["count"]) == calibration["data"]["held_out_tokens"]
        assert language_bundle.manifest.calibration["ece_top"][mode] == entry["top"]["ece"]


def test_temperature_undoes_a_scale() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(20_000, 30)).astype(np.float32)
    gumbel = -np.log(-np.log(generator.random(logits.shape)))
    targets = (logits + gumbel).argmax(-1)
    sharpened = ScoredTokens(logits * np.float32(2.5), targets)
    temperature = fit_temperature(sharpened)
    assert temperature == pytest.approx(2.5, rel=0.05)
    nats = [
        torch.nn.functional.cross_entropy(torch.from_numpy(sharpened.logits).double() / t, torch.from_numpy(targets))
        for t in (temperature, 0.97 * temperature, 1.03 * temperature)
    ]
    assert nats[0] < min(nats[1:])


def test_temperature_without_a_minimum_stays_in_its_range() -> None:
    """Always right: colder is always better. Always wrong: hotter is."""
    logits = np.eye(5, dtype=np.float32)
    assert fit_temperature(ScoredTokens(logits, np.arange(5))) == pytest.approx(1 / 20)
    assert fit_temperature(ScoredTokens(logits, (np.arange(5) + 1) % 5)) == pytest.approx(20)


def test_texts_that_agree_give_their_temperature_and_others_a_smaller_correction() -> None:
    assert pooled_temperature([1.3]) == pytest.approx(1.3)
    assert pooled_temperature([1.3, 1.3, 1.3]) == pytest.approx(1.3)
    assert pooled_temperature([0.9, 1 / 0.9, 0.98, 1 / 0.98]) == pytest.approx(1)
    # One text in three needs a correction: the other two predict that it needs none.
    assert pooled_temperature([1.2, 1.0, 1.0]) == pytest.approx(1)


def test_the_correction_is_the_one_that_predicts_each_text_best_from_the_others() -> None:
    logs = np.random.default_rng(0).normal(0.03, 0.03, 6)
    others = [np.delete(logs, i).mean() for i in range(6)]
    factors = np.linspace(0, 1, 1001)
    best = min(factors, key=lambda c: sum((c * m - t) ** 2 for m, t in zip(others, logs, strict=True)))
    assert 0 < best < 1
    assert math.log(pooled_temperature(np.exp(logs).tolist())) == pytest.approx(best * logs.mean(), abs=1e-4)


def test_reliability_of_a_calibrated_and_an_overconfident_forecaster() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.random(60_000)
    honest = reliability(confidence, generator.random(60_000) < confidence)
    assert honest["ece"] < 0.01
    assert honest["count"] == [4000] * 15
    boastful = reliability(np.full(3000, 0.9), np.arange(3000) % 2 == 0)
    assert boastful["ece"] == pytest.approx(0.4, abs=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_constants_that_are_not_finite_are_refused(language_bundle: Bundle, tmp_path: Path, value: float) -> None:
    constants = {name: array.copy() for name, array in (language_bundle.constants() or {}).items()}
    constants["gamma2"][1, 0] = value
    with pytest.raises(BundleError, match=r"decoder\.safetensors: gamma2 contains a value that is not finite"):
        rewrite_bundle(language_bundle, tmp_path / "broken", safetensors.numpy.save(constants))
    with pytest.raises(BundleError, match=r"decoder\.safetensors: the file cannot be read"):
        rewrite_bundle(language_bundle, tmp_path / "broken", b"rubbish")
