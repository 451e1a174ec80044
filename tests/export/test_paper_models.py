"""The papers' own models as bundles: exact attention over a cache, and the recurrence where they have slots."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rfa.export import comparison
from rfa.export.comparison import compare_with_torch
from rfa.export.language_export import bundle_weights, export_language
from rfa.export.language_graphs import language_graphs, refusal
from rfa.model.decoder import Decoder
from rfa.model.language import LanguageModel
from rfa.runtime.bundle.bundle import BundleError, check_golden, open_bundle
from rfa.runtime.bundle.families.check import check_calibration
from rfa.runtime.bundle.families.language import LanguageConfig
from rfa.runtime.text.compiled_language import model_refusal
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.language_config import load_variants
from tests.small_language import SIZE, write_run

ATTENTION = "attention over a cache, compared with the parallel pass of torch"
VARIANTS = load_variants()


def passed(bundle: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What was compared with torch, over few steps, once all of it agrees."""
    monkeypatch.setattr(comparison, "STEPS", comparison.PREFIX + comparison.CONTINUATION)
    report = list(compare_with_torch(bundle))
    assert all(entry.passed for entry in report), report
    return {entry.what.split(":")[0] for entry in report}


def test_a_bundle_without_slots_says_that_it_has_one_mode(
    attention_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(attention_bundle)
    assert bundle.language.modes == ("attention",)
    assert set(bundle.manifest.graphs) == {"attention"} and bundle.manifest.state == ()
    assert bundle.constants() is None
    assert not [name for name in bundle.weights() if name.startswith("initial.") or "slot" in name]
    assert set(bundle.calibration["modes"]) == set(bundle.manifest.calibration["temperature"]) == {"attention"}
    assert set(bundle.golden["continuation"]) == {"attention"}
    assert check_golden(bundle) > 500
    assert passed(bundle, monkeypatch) == {ATTENTION}


def test_a_calibration_is_of_the_modes_of_the_model(attention_bundle: Path, books_bundle: Path) -> None:
    alone, both = open_bundle(attention_bundle), open_bundle(books_bundle)
    with pytest.raises(BundleError, match=r"modes are \['attention'\], but must be \['attention', 'recurrent'\]"):
        check_calibration(alone.calibration, both.language, both.manifest)
    with pytest.raises(BundleError, match=r"modes are \['attention', 'recurrent'\], but must be \['attention'\]"):
        check_calibration(both.calibration, alone.language, alone.manifest)


@pytest.mark.parametrize("name", ["tensor", "polar", "unrolled-K1", "stack-K2"])
def test_what_experiments_compare_with_is_no_bundle(name: str) -> None:
    config = LanguageModelConfig.from_dict({"vocab_size": 11, **SIZE, **VARIANTS[name]["model"]})
    with pytest.raises(ValueError, match=f"this model cannot be exported: the mixer {config.mixer!r}"):
        language_graphs(LanguageModel(config))


# The table of docs/guides/bundles.md.

HEAD = "| variants | `decode` | runtimes for memory slots | restrictions |\n| --- | --- | --- | --- |\n"


def row(name: str) -> tuple[str, str, str]:
    """What a bundle of a variant can do, and why not the rest, asked of those who would have to do it."""
    config = LanguageModelConfig.from_dict({"vocab_size": 11, **SIZE, **VARIANTS[name]["model"]})
    reason = refusal(config)
    if reason is not None:
        return "no bundle", "", reason
    family = LanguageConfig.model_validate(config.to_dict())
    assert family.modes == config.modes
    assert set(bundle_weights(LanguageModel(config))) == set(family.weights({}))
    compiled, runtimes, reasons = model_refusal(family), ["ONNX Runtime"], []
    try:
        Decoder(LanguageModel(config), torch.float32)
        runtimes.append("the GPU")
    except ValueError as error:
        assert family.gpu_refusal is not None, error
        reasons.append(f"the GPU: it has {family.gpu_refusal}")
    else:
        assert family.gpu_refusal is None
    if config.mixer == "softmax":
        reasons.append("it computes no evidence: `log_precision` is 0, and the variance of a latent sample is 1")
    if "recurrent" not in family.modes:
        return "`attention`", "", "; ".join(["it has no memory slots", *reasons])
    if compiled is None:
        runtimes.insert(0, "compiled code")
    else:
        reasons.append(f"compiled code: {compiled}")
    if VARIANTS[name].get("training", {}).get("modes") == ["recurrent"]:
        reasons.append("attention is available, but was not trained")
    return "`recurrent`, `attention`", ", ".join(runtimes), "; ".join(reasons)


def table() -> str:
    """One line for all variants of which the same is to be said, in the order of variants.json."""
    lines: dict[tuple[str, str, str], list[str]] = {}
    for name in VARIANTS:
        lines.setdefault(row(name), []).append(f"`{name}`")
    return HEAD + "".join(f"| {', '.join(names)} | {' | '.join(cells)} |\n" for cells, names in lines.items())


def test_the_guide_says_what_a_bundle_can_hold() -> None:
    """`RFA_UPDATE_DOCS=1` writes the table anew."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "bundles.md"
    before, found, after = re.split(
        r"(?<=<!-- variants -->\n)(.*?)(?=<!-- end of variants -->)", page.read_text(), flags=re.S
    )
    expected = f"\n{table()}\n"
    if os.environ.get("RFA_UPDATE_DOCS") == "1":
        page.write_text(before + expected + after)
    else:
        assert found == expected


# One for each form of the weights and of the formulas.
FORMS = [
    "B1", "B2", "B3", "B4", "AFA", "RT", "RT-geodesic", "M2-even", "M2-linear", "M2-drift", "M2-ahead",
    "M1", "M2", "M2.1", "M2.2", "M2.3", "M2.4", "M2.5", "M2.6", "M2-mu", "M2-gate", "slots-value", "slots-plain",
    "slots-W16",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_a_variant_as_a_bundle_is_its_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", VARIANTS[name]["model"])
    bundle = export_language(run, tmp_path / "bundle", window=32)
    assert check_golden(bundle) > 500
    assert ATTENTION in passed(bundle, monkeypatch)


@pytest.mark.slow
def test_commands_take_a_model_of_the_papers(tmp_path: Path) -> None:
    """M2 from its run to a text: `rfa export`, `rfa verify`, `rfa info`, `rfa generate`."""
    run = write_run(tmp_path / "run", VARIANTS["M2"]["model"])

    def rfa(*arguments: str, is_refused: bool = False) -> str:
        command = [sys.executable, "-m", "rfa", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == is_refused, done.stderr
        return done.stderr if is_refused else done.stdout

    def rfa_json(*arguments: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(rfa(*arguments, "--json").splitlines()[-1])
        return document

    path = str(tmp_path / "m2")
    rfa_json("export", str(run), "--out", path)
    assert rfa_json("verify", path)["passed"] is True
    assert rfa_json("info", path)["modes"] == ["attention"]
    text = "generate", "It was the", "--bundle", path, "--seed", "3", "--max-new-tokens", "8"
    assert rfa_json(*text)["generated_text"] == rfa_json(*text, "--decode", "attention")["generated_text"]
    refused = rfa(*text, "--decode", "recurrent", is_refused=True)
    assert "'m2' supports only \"attention\"" in refused
