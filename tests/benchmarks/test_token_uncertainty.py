"""Signals of a model against its own steps, and gains against sources of which it is known what they add."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rfa.benchmarks.language import uncertainty
from rfa.benchmarks.language.evidence import evidence_of
from rfa.benchmarks.language.uncertainty import Watched, gains, main, mixture_part, path_cost
from rfa.model.checkpoint import save_checkpoint
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.corpus import train_tokenizer
from rfa.training.evaluate import confidence

SIZE = {"d_model": 16, "n_layers": 2, "n_heads": 2, "head_dim": 4, "n_slots": 3}
LENGTH = 12


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = LanguageModel(LanguageModelConfig(50, **SIZE)).eval().requires_grad_(False)
    torch.nn.init.normal_(made.embedding.weight, std=0.4)
    return made


TOKENS = torch.from_numpy(np.random.default_rng(0).integers(0, 50, LENGTH))


def seen(model, mode, paths=4):
    return evidence_of(model, TOKENS, mode, paths=paths, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_the_mean_path_and_its_evidence_are_those_of_the_model(model, mode):
    model.mode = mode
    output, found = model(TOKENS[None]), seen(model, mode)
    # Sums in another order: a few units of the last place of numbers of size ten.
    assert found.logits.numpy() == pytest.approx(output.logits[0].numpy(), abs=1e-4)
    assert found.signals["precision"].numpy() == pytest.approx(output.log_precision[0].numpy(), abs=1e-4)
    heads = found.signals["evidence"]
    assert heads.shape == (LENGTH, SIZE["n_layers"] * SIZE["n_heads"])
    assert heads[:, -2:].mean(-1).numpy() == pytest.approx(found.signals["precision"].numpy(), abs=1e-5)
    gamma2 = model.blocks[-1].mixer.dynamics().gamma2
    assert found.signals["latent_variance"].numpy() == pytest.approx(
        torch.log(1 / heads[:, -2:].exp() + gamma2).numpy(), abs=1e-5
    )


def test_the_state_is_that_of_the_steps(model):
    found, state = seen(model, "recurrent").signals, model.init_state(1)
    for i in range(LENGTH):
        _, state = model.step(TOKENS[i : i + 1], state)
        expected = (1 / state.precisions[0]).mean(-1).log().flatten()
        assert found["state"][i].numpy() == pytest.approx(expected.numpy(), abs=1e-4)


@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_many_paths_are_the_models_own_latent_samples(model, mode):
    """The mixture of 4,000 paths at the last place, against as many steps with noise one: each probability within 5
    standard errors of the difference of two means."""
    count = 4000
    ours = seen(model, mode, paths=count).mixture[-1].exp()
    noise = torch.randn(count, SIZE["n_heads"], 2 * SIZE["head_dim"], generator=torch.Generator().manual_seed(1))
    if mode == "recurrent":
        _, state = model.prefill(TOKENS[None, :-1].expand(count, -1), model.init_state(count))
        output, _ = model.step(TOKENS[-1:].expand(count), state, noise)
    else:
        output, _, _ = model.extend(TOKENS[None].expand(count, -1), model.init_cache(count, LENGTH), noise)
    samples = torch.softmax(output.logits, -1)
    error = samples.std(0) * math.sqrt(2 / count)
    assert ((samples.mean(0) - ours).abs() < 5 * error + 1e-6).all()


def test_the_variance_of_a_logit_is_that_of_small_samples(model):
    """To first order: samples of a thousandth of the spread have a millionth of the variance, ± sqrt(2/n) of it, five
    times."""
    count, scale = 2000, 1e-2
    found = seen(model, "attention")
    noise = scale * torch.randn(
        count, SIZE["n_heads"], 2 * SIZE["head_dim"], generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        output, _, _ = model.extend(TOKENS[None].expand(count, -1), model.init_cache(count, LENGTH), noise)
    top = torch.log_softmax(output.logits.double(), -1)[:, found.logits[-1].argmax()]
    expected = math.log(top.var().item() / scale**2)
    assert found.signals["logit_variance"][-1].item() == pytest.approx(expected, abs=5 * math.sqrt(2 / count) + 0.02)


def source(seed, count=40_000):
    """Right by the odds of the softmax plus those of "told"; "noise" tells nothing; the loss is likewise made."""
    generator = np.random.default_rng(seed)
    log_probability = -generator.exponential(size=count) - 0.05
    odds = log_probability - np.log(-np.expm1(log_probability))
    told, noise = generator.normal(size=(2, count, 1))
    is_right = generator.random(count) < 1 / (1 + np.exp(-(odds + told[:, 0])))
    nats = -2 * log_probability + told[:, 0] + generator.normal(size=count)
    softmax = {"log_probability": log_probability, "log_odds": odds, "entropy": -log_probability}
    by_path = {"mean, as it is": nats, "mean, scaled": nats, "mixture, as it is": nats - 0.1, "mixture, scaled": nats}
    return Watched(softmax, {"told": told, "noise": noise}, is_right, by_path, np.arange(count) // 100)


def test_a_gain_is_what_a_signal_adds_and_noise_adds_nothing():
    fit, test = source(0), source(1)
    found = gains(fit, test, np.arange(40_000) // 20_000)["softmax"]
    told, noise = found["gains"]["told"], found["gains"]["noise"]
    # Of the loss: var(told) = 1 of 4 + 1 + 1, whose standard error is a few thousandths.
    assert told["explained"]["value"] == pytest.approx(1 / 6, abs=0.02)
    assert found["explained"] == pytest.approx(4 / 6, abs=0.02)
    for key in ("log_loss", "brier", "auroc", "explained"):
        low, high = told[key]["interval"]
        assert 0 < low < told[key]["value"] < high
        low, high = noise[key]["interval"]
        assert low - 2e-4 < 0 < high + 2e-4, key  # 2e-4: its three weights are fitted on 40,000 tokens
    # Log loss in nats: the true odds' against those of the softmax alone, refitted.
    assert np.mean(told["log_loss_by_book"]) == pytest.approx(told["log_loss"]["value"])


def test_what_the_mixture_saves():
    found = mixture_part(source(0), {"mean": 1.0, "mixture": 1.0})
    assert found["saved"]["as it is"]["value"] == pytest.approx(0.1)
    assert found["saved"]["scaled"]["value"] == 0


def test_cost_of_a_path_by_hand():
    """2 heads of 8 reals on 16: output 256, up and down 2,048, head 50 · 16; a layer has three projections more, and
    gates of 2 · 2 · 3."""
    config = LanguageModelConfig(50, **SIZE)
    assert path_cost(config) == pytest.approx((256 + 2048 + 800) / (2 * (4 * 256 + 192 + 2048) + 800))


def test_the_command_writes_both_modes(tmp_path, monkeypatch, capsys):
    generator = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "slept"]
    for split in ("valid", "test"):
        (tmp_path / f"{split}.txt").write_text(" ".join(generator.choice(words, 400)), encoding="utf-8")
    tokenizer = train_tokenizer([tmp_path / "valid.txt"], 270)
    torch.manual_seed(0)
    save_checkpoint(
        tmp_path / "run", "language", LanguageModel(LanguageModelConfig(tokenizer.get_vocab_size(), **SIZE))
    )
    bundle = SimpleNamespace(
        name="tiny",
        digest="0" * 64,
        manifest=SimpleNamespace(provenance={"training": {"data": {}}}),
        read=lambda name: tokenizer.to_str().encode(),
    )
    monkeypatch.setattr(uncertainty, "open_bundle", lambda path: bundle)
    monkeypatch.setattr(confidence, "WINDOW", 32)
    monkeypatch.setattr(uncertainty, "PATHS", 2)
    monkeypatch.setattr(uncertainty, "watch", with_some_right(uncertainty.watch))
    out = tmp_path / "found.json"
    arguments = [str(tmp_path / "run"), "--data", str(tmp_path), "--out", str(out), "--limit", "256"]
    monkeypatch.setattr("sys.argv", ["uncertainty", *arguments])
    main()
    document = json.loads(out.read_text())
    assert set(document["modes"]) == {"attention", "recurrent"}
    assert set(document["modes"]["recurrent"]["baselines"]) == {"entropy", "softmax"}
    assert "recurrent, mixture" in capsys.readouterr().out


def with_some_right(original):
    """A model that knows nothing is never right by itself: every third guess is called right."""

    def watched(*arguments):
        found = original(*arguments)
        found.is_right[::3] = True
        return found

    return watched
