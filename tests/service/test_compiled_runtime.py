"""Texts in compiled code: prompts, golden outputs, and the choice of a runtime.

What it has in common with the others is in test_runtime_laws.py.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, BundleError, open_bundle
from rfa.runtime.errors import UnsupportedError
from rfa.runtime.golden import reproduce
from rfa.runtime.text.compiled_language import CompiledLanguageRuntime
from rfa.runtime.text.language import LanguageRuntime
from rfa.runtime.text.loading import load_on_cpu
from rfa.service.engine.device import language_loader
from rfa.service.engine.models import load_models
from rfa.service.settings import ConfigurationError, Settings
from tests.runtime.text.exact import begun, prompt_of, stepped
from tests.service.conftest import Connect


@pytest.fixture(scope="module")
def onnx(bundle: Bundle) -> LanguageRuntime:
    return LanguageRuntime(bundle, streams=8, max_rows=2)


@pytest.fixture(scope="module")
def runtime(bundle: Bundle) -> CompiledLanguageRuntime:
    return CompiledLanguageRuntime(bundle, streams=8)


# Prompts, and attention.


def test_attention_is_the_graph_of_the_bundle(runtime: CompiledLanguageRuntime, onnx: LanguageRuntime) -> None:
    tokens = prompt_of(runtime)
    outputs = [stepped(side, begun(side, tokens[:9], "attention"), tokens[9:12]) for side in (runtime, onnx)]
    for found, requested in zip(*outputs, strict=True):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, requested, strict=True))


# Golden outputs.


def test_the_golden_outputs_are_reproduced(runtime: CompiledLanguageRuntime, bundle: Bundle) -> None:
    values = sum(len(found["values"]) for case in bundle.golden["cases"] for found in case["outputs"].values())
    assert reproduce(runtime, bundle, runtime.attention, where="here") == values > 1000
    assert runtime.pool.in_use == 0


@pytest.mark.parametrize("change", ["constant", "weight"])
def test_golden_outputs_of_other_numbers_are_refused(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change == "constant":
        constants = dict(bundle.constants() or {})
        constants["gamma2"] = constants["gamma2"] * np.float32(1.01)
        monkeypatch.setattr(bundle, "constants", lambda: constants)
    else:
        weights = dict(bundle.weights())
        weights["blocks.2.feed_forward.up.weight"] = weights["blocks.2.feed_forward.up.weight"] * np.float32(1.01)
        monkeypatch.setattr(bundle, "weights", lambda: weights)
    with pytest.raises(BundleError, match=r"golden\.json on the compiled runtime: case 0, prefill"):
        load_on_cpu(bundle, "auto", 4, 2)


# Which runtime it is.


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ("auto", "compiled"),
        pytest.param("compiled", "compiled", marks=pytest.mark.slow),
        pytest.param("onnx", "onnx", marks=pytest.mark.slow),  # loaded by the test of a bundle without constants, too
    ],
)
def test_a_choice_is_what_is_loaded_and_reported(books_bundle: Path, choice: Any, kind: str) -> None:
    models = load_models(Settings(bundles=(books_bundle,), text_runtime=choice, max_running=1, max_batch_rows=2))
    (language,), facts = models.languages.values(), models.facts[-1]
    assert language.runtime == facts.runtime == kind
    assert isinstance(language, CompiledLanguageRuntime if kind == "compiled" else LanguageRuntime)


def test_a_bundle_without_constants_runs_as_before_unless_compiled_code_is_asked_for(
    books_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = open_bundle(books_bundle)
    monkeypatch.setattr(bundle, "_constants", None)  # as it was written before there were constants
    with caplog.at_level(logging.INFO, logger="rfa.engine"):
        assert isinstance(load_on_cpu(bundle, "auto", 2, 1), LanguageRuntime)
    assert "bundle 'books' uses ONNX Runtime" in caplog.text and CONSTANTS_FILE in caplog.text
    with pytest.raises(UnsupportedError, match=r"compiled does not support bundle 'books'.*decoder\.safetensors"):
        load_on_cpu(bundle, "compiled", 2, 1)


def test_a_runtime_of_the_cpu_is_refused_with_a_gpu() -> None:
    with pytest.raises(ConfigurationError, match=r"RFA_TEXT_RUNTIME=compiled .*RFA_DEVICE=cuda"):
        language_loader(Settings(bundles=(), device="cuda", text_runtime="compiled"))


@pytest.mark.anyio
async def test_info_tells_the_runtime(connect: Connect, books_bundle: Path, linear_bundle: Path) -> None:
    models = load_models(Settings(bundles=(books_bundle, linear_bundle), max_running=1, max_batch_rows=1))
    async with connect(models) as client:
        reported = (await client.get("/info")).json()
    assert {model["name"]: model["runtime"] for model in reported["models"]} == dict.fromkeys(
        ("auto", "auto-joint", "books", "linear"), "compiled"
    )


@pytest.mark.parametrize(("given", "reason"), [({"innovation": "value"}, "'value'"), ({"window": 4}, "window=4")])
def test_compiled_code_takes_no_bundle_that_it_would_compute_wrongly(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(bundle, "_family", bundle.language.model_copy(update=given))
    with pytest.raises(ValueError, match=f"cannot be run by the compiled runtime: .*{reason}"):
        CompiledLanguageRuntime(bundle, streams=1)
