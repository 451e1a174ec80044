"""`verify_bundle`: passes what was exported, fails what differs from the model it carries."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rfa.export import comparison
from rfa.export.comparison import compare_with_torch, difference
from rfa.export.language_export import language_golden
from rfa.export.verify import bundle_info, verify_bundle
from rfa.export.writing import write_bundle
from rfa.runtime.bundle.bundle import Bundle, BundleError, Graph, open_bundle
from rfa.runtime.text.config import LanguageModelConfig


@pytest.mark.slow
def test_exported_bundle_is_verified_in_a_fresh_process(language_bundle: Bundle) -> None:
    report = verify_bundle(language_bundle.path)
    assert report.passed
    assert report.golden_values > 500
    constants = "decoder.safetensors against torch"
    assert {entry.what.split(":")[0] for entry in report.comparisons} == {
        "one step at a time, compared with torch over 1000 steps",
        "prefill, compared with torch step by step",
        "attention over a cache, compared with the parallel pass of torch",
        constants,
    }
    assert all(0 <= entry.error <= 1e-5 for entry in report.comparisons)
    assert all(entry.error > 0 for entry in report.comparisons if not entry.what.startswith(constants))
    assert report.to_dict()["passed"] is True


def test_each_number_of_passes_is_compared_with_the_model(passes_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "STEPS", comparison.PREFIX + comparison.CONTINUATION)
    bundle = open_bundle(passes_bundle)
    assert all(entry.passed for entry in compare_with_torch(bundle))
    found = [case["inputs"]["passes"]["values"] for case in bundle.golden["cases"] if case["graph"] != "attention"]
    assert found == [[3]] * (len(found) - 4) + [[1], [1], [2], [2]]
    assert bundle_info(passes_bundle)["passes"] == [1, 3]
    # A graph that uses the number of another row.
    swapped = comparison._run
    monkeypatch.setattr(
        comparison,
        "_run",
        lambda session, inputs: swapped(
            session, {name: part[::-1].copy() if name == "passes" else part for name, part in inputs.items()}
        ),
    )
    failed = {entry.what.split(":")[0].split(",")[0] for entry in compare_with_torch(bundle) if not entry.passed}
    assert failed == {"one step at a time", "prefill"}


@pytest.mark.parametrize("file", ["model.safetensors", "step.onnx", "tokenizer.json", "manifest.json"])
def test_one_flipped_bit_fails(language_bundle: Bundle, tmp_path: Path, file: str) -> None:
    copy = Path(shutil.copytree(language_bundle.path, tmp_path / "copy"))
    data = bytearray((copy / file).read_bytes())
    data[len(data) // 2] ^= 4
    (copy / file).write_bytes(bytes(data))
    with pytest.raises(BundleError, match=file):
        verify_bundle(copy)


def test_graphs_of_another_model_are_found(
    language_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle that is whole and agrees with its own golden outputs, but whose graph computes another model."""
    manifest = language_bundle.manifest
    graphs = {name: Graph(language_bundle.read(spec.file), spec.initializers) for name, spec in manifest.graphs.items()}
    weights = language_bundle.weights()
    config = {**language_bundle.config, "kernel": "gaussian"}
    forged = write_bundle(
        tmp_path / "forged",
        name="forged",
        kind="lm",
        family=manifest.family,
        config=config,
        weights=weights,
        graphs=graphs,
        calibration=language_bundle.calibration,
        golden=language_golden(
            graphs, weights, LanguageModelConfig(**language_bundle.config), language_bundle.golden["prompt"]
        ),
        metrics={},
        provenance={},
        state=manifest.state,
        extra_files={name: language_bundle.read(name) for name in ("tokenizer.json", "tokenizer_config.json")},
    )
    monkeypatch.setattr(comparison, "STEPS", comparison.PREFIX + comparison.CONTINUATION)
    failed = {entry.what.split(":")[0] for entry in compare_with_torch(forged) if not entry.passed}
    assert failed == {"attention over a cache, compared with the parallel pass of torch"}


def test_info_describes_the_bundle(language_bundle: Bundle) -> None:
    info = bundle_info(language_bundle.path)
    assert info["kind"] == "lm"
    assert info["parameters"] == language_bundle.manifest.metrics["parameters"]
    assert info["bytes"] == sum(info["files"].values())
    assert info["graphs"]["step"]["inputs"][0]["name"] == "token"
    assert info["calibration"] == language_bundle.manifest.calibration


def test_difference_is_relative_to_the_scale() -> None:
    expected = np.array([100.0, -50.0])
    assert difference(expected + 0.001, expected) == pytest.approx(1e-5)
    assert difference(expected / 1000 + 0.001, expected / 1000) == pytest.approx(1e-3)
    assert not difference(np.array([np.nan]), np.array([1.0])) <= 1.0
    assert difference(np.zeros(2), np.zeros(3)) == float("inf")
