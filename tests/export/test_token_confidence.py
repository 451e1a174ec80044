"""The confidence of a token: one formula where it is fitted and where it is served, and bundles of before it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from export.bundle import Bundle, BundleError
from export.decoder_constants import write_again
from export.language_calibration import fit_table
from export.recalibrate import recalibrate
from export.token_confidence import TokenConfidence
from service.engine.generation import _Step
from service.engine.language_runtime import BundleLanguage
from service.engine.sampling import log_normaliser
from tests.export.conftest import write_run


def served(logits: np.ndarray, token: int, confidence: TokenConfidence) -> float:
    """As a step of the service gives it."""
    calibrated = float(log_normaliser(logits / confidence.temperature))
    advance, latent = None, np.zeros((1, 2), np.float32)
    return _Step(advance, latent, logits, 0.0, confidence, calibrated, 1.0, True).confidence(token)  # type: ignore[arg-type]


def test_the_service_gives_what_was_fitted() -> None:
    """Softmax by torch in float64, the table's line by hand."""
    stated, actual = [0.0, 0.1, 0.4, 1.0], [0.0, 0.05, 0.45, 1.0]
    confidence = TokenConfidence(1.7, stated, actual)
    logits = 3 * np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    probabilities = torch.softmax(torch.from_numpy(logits).double() / 1.7, -1).numpy()
    pieces = set()
    for row in range(40):
        for token in range(30):
            p = probabilities[row, token]
            k = 0 if p < 0.1 else 1 if p < 0.4 else 2
            pieces.add(k)
            line = actual[k] + (p - stated[k]) * (actual[k + 1] - actual[k]) / (stated[k + 1] - stated[k])
            # Logits of up to 10 are rounded to 5e-7, their exponentials to as much of themselves.
            assert served(logits[row], token, confidence) == pytest.approx(line, rel=5e-6)
    assert pieces == {0, 1, 2}


def test_a_certain_token_is_not_more_than_certain() -> None:
    logits = np.array([80.0, 0.0, -3.0], np.float32)
    confidence = TokenConfidence(0.7)
    assert served(logits, 0, confidence) == 1.0
    assert confidence(1e-7) == 1.0


def test_a_bundle_of_before_the_table_keeps_its_confidence() -> None:
    document = {"temperature": {"attention": 1.25, "recurrent": 0.9}}
    for mode, temperature in document["temperature"].items():
        confidence = TokenConfidence.of(document, mode)
        logits = np.random.default_rng(0).normal(size=20).astype(np.float32)
        expected = torch.softmax(torch.from_numpy(logits).double() / temperature, -1)
        assert served(logits, 3, confidence) == pytest.approx(float(expected[3]), rel=1e-6)


def test_a_table_says_how_often_tokens_are_right() -> None:
    """Right with probability p³; 4,000 tokens a point know a share to 0.008, and chords of p³ lie 8e-4 above it."""
    generator = np.random.default_rng(0)
    probability = generator.random(120_000)
    table = fit_table(probability, generator.random(120_000) < probability**3)
    confidence = TokenConfidence(1.0, **table)
    places = np.linspace(0.01, 0.99, 99)
    assert np.abs(confidence(np.log(places)) - places**3).max() < 4 * 0.0085
    assert (confidence(-np.inf), confidence(0.0)) == (0.0, 1.0)


@pytest.mark.parametrize(
    "probability, is_right",
    [
        (np.full(90, 0.25), np.arange(90) % 3 == 0),  # one point
        (np.linspace(0.9, 0.1, 90), np.linspace(0.9, 0.1, 90) < 0.5),  # the likelier, the wronger
        (np.repeat([0.0, 1.0], 45), np.repeat([False, True], 45)),  # certain, and right
        (np.array([0.5, 0.6]), np.array([True, False])),  # fewer tokens than points
    ],
)
def test_a_table_is_monotone_whatever_it_is_fitted_on(probability: np.ndarray, is_right: np.ndarray) -> None:
    table = fit_table(probability, is_right)
    stated, actual = np.array(table["stated"]), np.array(table["actual"])
    assert (np.diff(stated) > 0).all() and (np.diff(actual) >= 0).all()
    assert (stated[0], stated[-1], actual[0], actual[-1]) == (0, 1, 0, 1)


def test_an_exported_bundle_serves_its_table(language_bundle: Bundle) -> None:
    model = BundleLanguage(language_bundle)
    for mode in ("recurrent", "attention"):
        table = language_bundle.calibration["confidence"][mode]
        assert len(table["stated"]) > 10
        confidence = model.confidence(mode)  # type: ignore[arg-type]
        assert confidence.temperature == np.float32(language_bundle.calibration["temperature"][mode])
        assert confidence(np.log(table["stated"][1:])) == pytest.approx(table["actual"][1:], abs=1e-12)


def test_an_older_bundle_is_calibrated_anew_and_nothing_else_changes(
    language_bundle: Bundle, language_run: Path, tmp_path: Path
) -> None:
    old = {"temperature": {"attention": 1.0, "recurrent": 1.0}, "summary": {"ece_top": {}}}
    constants = language_bundle.read("decoder.safetensors")
    older = write_again(language_bundle, tmp_path / "older", constants, old)
    assert older.manifest.calibration == {"ece_top": {}}
    recalibrate(older.path, language_run, window=32)
    for path in language_bundle.path.iterdir():
        assert (older.path / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_bundle_is_not_calibrated_by_another_run(language_bundle: Bundle, tmp_path: Path) -> None:
    before = json.loads((language_bundle.path / "manifest.json").read_text())
    other = write_run(tmp_path / "other", seed=1)
    with pytest.raises(BundleError, match="was not exported from other: tokenizer or weights differ"):
        recalibrate(language_bundle.path, other, window=32)
    assert json.loads((language_bundle.path / "manifest.json").read_text()) == before
