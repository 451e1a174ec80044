"""Calibration errors of sources whose error is known, and what is read off a model against its own outputs."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rfa.cli.evaluate import eval_confidence
from rfa.model.checkpoint import save_checkpoint
from rfa.model.language import LanguageModel
from rfa.runtime.bundle.token_confidence import TokenConfidence
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.corpus import file_hashes, train_tokenizer
from rfa.training.evaluate import confidence as token_calibration
from rfa.training.evaluate.confidence import calibration_error, observe, spread_windows, unseen_files

TEXT = "the cat sat on the mat — naïve. " * 60
SIZE = {"d_model": 16, "n_layers": 2, "n_heads": 2, "head_dim": 4, "n_slots": 2}


def source(count, share, seed=0):
    """Stated probabilities, uniform, and tokens right with probability share(stated); windows of 100."""
    generator = np.random.default_rng(seed)
    stated = generator.random(count)
    return stated, generator.random(count) < share(stated), np.arange(count) // 100


def test_error_of_a_calibrated_source_is_its_noise_and_tends_to_zero():
    """A bin of n tokens near p is off by |N(0, p(1-p)/n)|, on average sqrt(2 p(1-p)/(pi n)); bins are tenths of a
    standard deviation of that apart in p, so the middle of each will do."""
    found = {}
    for count in (15_000, 240_000):
        p, n = (np.arange(15) + 0.5) / 15, count / 15
        noise = np.sqrt(2 * p * (1 - p) / (math.pi * n)).mean()
        found[count] = calibration_error(*source(count, lambda stated: stated))
        # A sum of 15 half-normals varies by 0.76/sqrt(15) of its mean; the floor is a mean of 20 such sums.
        assert found[count]["ece"] == pytest.approx(noise, rel=4 * 0.2)
        assert found[count]["floor"] == pytest.approx(noise, rel=4 * 0.2 / math.sqrt(20))
    assert found[240_000]["ece"] < found[15_000]["ece"] / 2


def test_error_of_a_miscalibrated_source_is_its_exact_value():
    """Right with probability p²: E|p - p²| = 1/6 for uniform p, and the gap has one sign, so bins lose nothing."""
    stated, is_right, window = source(60_000, np.square)
    found = calibration_error(stated, is_right, window)
    # All bins' gaps are above zero: the error is the difference of two means, of standard error sqrt(2/15/n) or so.
    assert found["ece"] == pytest.approx(stated.mean() - is_right.mean(), abs=1e-3)
    assert found["ece"] == pytest.approx(1 / 6, abs=4 * math.sqrt(0.2 / 60_000))
    low, high = found["interval"]
    assert low < 1 / 6 < high
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(2 / 15 / 60_000), rel=0.15)


def test_an_interval_knows_that_windows_are_the_independent_unit():
    """All tokens of a window right or wrong together: 600 facts, not 60,000."""
    generator = np.random.default_rng(0)
    stated = np.full(60_000, 0.5) + 1e-6 * generator.random(60_000)
    window = np.arange(60_000) // 100
    is_right = (generator.random(600) < 0.8)[window]
    low, high = calibration_error(stated, is_right, window)["interval"]
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(0.16 / 600), rel=0.15)


def test_windows_are_spread_and_do_not_overlap(monkeypatch):
    monkeypatch.setattr(token_calibration, "WINDOW", 10)
    windows = spread_windows(np.arange(1001, dtype=np.uint16), 35)
    assert windows.tolist() == [list(range(start, start + 11)) for start in (0, 490, 990)]
    with pytest.raises(ValueError, match="the text has 20 tokens, but two windows need 21"):
        spread_windows(np.arange(20), 100)
    with pytest.raises(ValueError, match="--limit 19 is less than two windows; it must be at least 20"):
        spread_windows(np.arange(1001), 19)


@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_what_is_observed_is_what_the_model_gives(mode):
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(50, **SIZE)).eval()
    torch.nn.init.normal_(model.embedding.weight, std=0.4)
    windows = np.random.default_rng(0).integers(0, 50, (3, 21))
    confidence = TokenConfidence(1.5)
    seen = observe(model, windows, mode, confidence)
    with torch.no_grad():
        output = model(torch.from_numpy(windows[:, :-1]))
    plain, scaled = (torch.softmax(output.logits / t, -1).reshape(60, 50).double().numpy() for t in (1.0, 1.5))
    target, top = windows[:, 1:].ravel(), plain.argmax(-1)
    rows = np.arange(60)
    assert seen.stated["softmax"]["top"] == pytest.approx(plain.max(-1), rel=1e-4)
    assert seen.stated["served"]["top"] == pytest.approx(scaled.max(-1), rel=1e-4)
    assert (seen.is_right["top"] == (top == target)).all()
    assert seen.nats == pytest.approx(-np.log(plain[rows, target]), rel=1e-4)
    assert (seen.window == rows // 20).all() and (seen.place == rows % 20).all()


def test_a_sampled_token_is_one_of_the_models_distribution():
    """Where all tokens are equally likely, a sample is the one that came in one case of V, said with 1/V."""
    model = LanguageModel(LanguageModelConfig(4, **SIZE)).eval()
    torch.nn.init.zeros_(model.embedding.weight)
    windows = np.random.default_rng(0).integers(0, 4, (40, 101))
    seen = observe(model, windows, "attention", TokenConfidence(1.0))
    assert seen.stated["served"]["sampled"] == pytest.approx(np.full(4000, 0.25))
    assert seen.is_right["sampled"].mean() == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 4000))


def test_a_text_of_the_training_is_refused(tmp_path):
    (tmp_path / "test.txt").write_text(TEXT, encoding="utf-8")
    hashes = file_hashes([tmp_path / "test.txt"])
    manifest = SimpleNamespace(provenance={"training": {"data": {"book.txt": hashes["test.txt"]}}})
    with pytest.raises(ValueError, match=r"test\.txt: bundle 'tiny' was trained or calibrated on this text"):
        unseen_files(SimpleNamespace(name="tiny", manifest=manifest), tmp_path)


def test_the_command_writes_both_modes_and_the_picture(tmp_path, monkeypatch, capsys):
    generator = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "slept"]
    (tmp_path / "test.txt").write_text(" ".join(generator.choice(words, 200)), encoding="utf-8")
    tokenizer = train_tokenizer([tmp_path / "test.txt"], 270)
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(tokenizer.get_vocab_size(), **SIZE))
    save_checkpoint(tmp_path / "run", "language", model)
    tokenizer.save(str(tmp_path / "run" / "tokenizer.json"))
    bundle = SimpleNamespace(
        name="tiny",
        digest="0" * 64,
        calibration={"temperature": {"attention": 1.0, "recurrent": 1.0}},
        manifest=SimpleNamespace(provenance={"training": {"data": {}}}),
        read=lambda name: tokenizer.to_str().encode(),
    )
    monkeypatch.setattr(token_calibration, "open_bundle", lambda path: bundle)
    monkeypatch.setattr(token_calibration, "WINDOW", 32)
    out, plot = tmp_path / "results" / "found.json", tmp_path / "figures" / "found.png"
    eval_confidence(str(tmp_path / "run"), tmp_path, out=out, plot=plot)
    document = json.loads(out.read_text())
    assert set(document["modes"]) == {"attention", "recurrent"}
    assert [row["name"] for row in document["bars"]] == [
        f"{mode}, {rule}: ECE" for mode in ("attention", "recurrent") for rule in ("top", "sampled")
    ]
    assert document["data"]["test"] == file_hashes([tmp_path / "test.txt"])
    assert "recurrent  sampled" in capsys.readouterr().out
    assert plot.stat().st_size > 10_000
