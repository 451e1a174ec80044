"""Training a language model: it learns, it resumes bit for bit with every recipe, its average is what is saved."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rfa.fitting.interrupts import Stopped
from rfa.model.checkpoint import load_run
from rfa.model.language import LanguageModel
from rfa.training.language import Trainer, train_language, validation_loss
from rfa.training.language_config import LanguageRun, TrainingConfig, find_config, load_variants
from rfa.training.optimiser import Optimiser
from rfa.training.tensorboard import write_events
from rfa.training.warm_start import start_from
from tests.training.language_runs import MODEL, TRAINING, rows, write_config
from tests.training.stopping import stop_at


@pytest.fixture(autouse=True)
def without_plots(request, monkeypatch):
    """Draw the losses of one run only."""
    if request.function is not test_both_modes_learn:
        monkeypatch.setattr("rfa.training.language.plot_metrics", lambda out: None)


def test_both_modes_learn(data, tmp_path):
    record = train_language(write_config(tmp_path, steps=40, validate_every=10), data, tmp_path / "run", device="cpu")
    first, *_, last = rows(tmp_path / "run")
    assert set(last["valid"]) == {"attention", "recurrent"}
    for mode, loss in last["valid"].items():
        assert loss < first["valid"][mode] - 0.3, mode
    assert record["tokens"] == 40 * 4 * 32
    assert set(record["data"]) == {"train.txt", "valid.txt"}
    assert load_run(tmp_path / "run").config.d_model == 24
    from matplotlib.image import imread

    assert imread(tmp_path / "run/metrics.png").std() > 0.05  # something was drawn


RECIPES = {
    "plain": {"modes": ["attention"]},
    "all": {"optimiser": "muon", "schedule": "wsd", "ema": 0.9},
}


@pytest.mark.parametrize("recipe", [pytest.param("plain", marks=pytest.mark.slow), "all"])
def test_resume_equals_uninterrupted(recipe, data, tmp_path, monkeypatch):
    """A run that a signal stops is saved at that step, between two validations, and ends as if it had not been."""
    config, corpus = write_config(tmp_path, **RECIPES[recipe]), data / "corpus"
    train_language(config, data, tmp_path / "whole", corpus_dir=corpus, device="cpu")
    stop_at(8, Trainer, monkeypatch)
    with pytest.raises(
        Stopped, match="received SIGTERM: stopped and saved at step 8 of 12; run the same command to continue"
    ):
        train_language(config, data, tmp_path / "cut", corpus_dir=corpus, device="cpu")
    assert json.loads((tmp_path / "cut/progress.json").read_text())["step"] == 8
    assert not (tmp_path / "cut/train.json").exists()
    train_language(config, data, tmp_path / "cut", corpus_dir=corpus, device="cpu")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def assert_same_run(whole, cut):
    """Weights, and all that the metrics say but the seconds."""
    weights = [load_run(folder).state_dict() for folder in (whole, cut)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    metrics = [[{**row, "seconds": 0} for row in rows(folder)] for folder in (whole, cut)]
    assert metrics[0] == metrics[1]


@pytest.mark.slow  # the tests above have the law, tests/training/test_corpus.py has the rows
def test_a_run_on_one_file_of_rows_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    lines = [json.dumps({"body": f"the cat sat on the mat {i} times and the dog on the log"}) for i in range(400)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    config, data = write_config(tmp_path, precision="bf16", modes=["attention"]), tmp_path / "rows.jsonl"
    record = train_language(config, data, tmp_path / "whole", device="cpu", field="body")
    assert set(record["data"]) == {"rows.jsonl"}
    stop_at(8, Trainer, monkeypatch)
    with pytest.raises(Stopped):
        train_language(config, data, tmp_path / "cut", device="cpu", field="body")
    train_language(config, data, tmp_path / "cut", device="cpu", field="body")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_losses_are_written_for_tensorboard_where_it_is_installed(tmp_path, monkeypatch):
    found = []

    class Writer:
        def __init__(self, folder):
            assert folder == tmp_path / "tensorboard"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add_scalar(self, *values):
            found.append(values)

    row = {"step": 3, "train": {"attention": 2.0}, "valid": {"attention": 2.5}}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    write_events(tmp_path, row)
    assert not found
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    write_events(tmp_path, row)
    assert found == [("train/attention", 2.0, 3), ("valid/attention", 2.5, 3)]


def test_a_finished_run_is_left_as_it_is(data, tmp_path):
    config, out = write_config(tmp_path, modes=["attention"]), tmp_path / "run"
    record = train_language(config, data, out, corpus_dir=data / "corpus", device="cpu")
    before = {path: path.read_bytes() for path in out.iterdir()}
    assert train_language(config, data, out, corpus_dir=data / "corpus", device="cpu") == json.loads(json.dumps(record))
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    (out / "train.json").unlink()  # it ended before the record was written
    again = train_language(config, data, out, corpus_dir=data / "corpus", device="cpu")
    assert again["validation_loss"] == record["validation_loss"] and again["tokens"] == record["tokens"]


def test_a_finished_run_goes_on_with_more_steps(data, tmp_path):
    config, out = write_config(tmp_path, modes=["attention"], schedule="wsd"), tmp_path / "run"
    train_language(config, data, out, corpus_dir=data / "corpus", device="cpu")
    record = train_language(config, data, out, corpus_dir=data / "corpus", steps=18, device="cpu")
    assert [row["step"] for row in rows(out)] == [6, 12, 18]
    assert (record["tokens"], record["extended_at"]) == (18 * 4 * 32, [12])
    assert record["config"]["training"]["steps"] == 18
    assert record["validation_loss"] == rows(out)[-1]["valid"]
    with pytest.raises(ValueError, match=r"another config \(it differs in steps\); choose another --out"):
        train_language(config, data, out, corpus_dir=data / "corpus", steps=12, device="cpu")


def test_a_run_is_refused_other_text(data, tmp_path):
    other, out, config = tmp_path / "text", tmp_path / "run", write_config(tmp_path, modes=["attention"])
    other.mkdir()
    for split in ("train", "valid"):
        (other / f"{split}.txt").write_text("when shall we three meet again, in thunder, lightning, or in rain? " * 300)
    train_language(config, data, out, device="cpu")
    before = (out / "tokenizer.json").read_bytes()
    with pytest.raises(ValueError, match="a run that was trained on files other than those in"):
        train_language(config, other, out, device="cpu")
    with pytest.raises(ValueError, match="started with different text"):
        train_language(config, other, out, steps=24, device="cpu")
    assert (out / "tokenizer.json").read_bytes() == before


def test_the_average_is_validated_and_saved(data, tmp_path, monkeypatch):
    trained = []

    def step(self, step, original=Optimiser.step):
        original(self, step)
        trained.append(self.module.embedding.weight.detach().double().numpy().copy())

    monkeypatch.setattr(Optimiser, "step", step)
    config = write_config(tmp_path, modes=["attention"], ema=0.5, steps=4)
    train_language(config, data, tmp_path / "run", corpus_dir=data / "corpus", device="cpu")
    saved = load_run(tmp_path / "run")
    expected = sum(share * weights for share, weights in zip((1 / 8, 1 / 8, 1 / 4, 1 / 2), trained, strict=True))
    error = abs(saved.embedding.weight.detach().double().numpy() - expected).max()
    assert error <= 4 * 3 * 2**-24 * abs(expected).max()  # float32 rounds three times a step
    assert abs(trained[-1] - expected).max() > 100 * error
    tokens = np.load(data / "corpus/valid.npy")
    assert rows(tmp_path / "run")[-1]["valid"]["attention"] == validation_loss(saved, tokens, 32, "attention", 65_536)


def test_a_time_limit_ends_the_schedule(data, tmp_path, monkeypatch):
    rates, own = [], Optimiser.step
    monkeypatch.setattr(Optimiser, "step", lambda self, step: (rates.append(step), own(self, step)))
    ticks = iter(range(10_000))
    monkeypatch.setattr("rfa.training.language.time", SimpleNamespace(perf_counter=lambda: 3.0 * next(ticks)))
    config = write_config(tmp_path, modes=["attention"])
    record = train_language(config, data, tmp_path / "run", device="cpu", minutes=0.25)
    assert rates == pytest.approx([12 * k / 5 for k in range(5)])  # five steps of 3 s
    assert record["tokens"] == 5 * 4 * 32
    with pytest.raises(ValueError, match="minutes must be > 0"):
        TrainingConfig.from_dict({**TRAINING, "minutes": 0})


def test_a_model_with_more_parts_starts_from_an_earlier_one(data, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    train_language(write_config(tmp_path, steps=6), data, first, device="cpu")
    document = json.loads(Path(write_config(tmp_path, steps=1)).read_text())
    document["model"] |= {"own_readout": True, "output_gate": True}
    config = tmp_path / "more.json"
    config.write_text(json.dumps(document))
    earlier, tokens = load_run(first), torch.arange(64).reshape(2, 32) % 270
    model = LanguageModel(LanguageRun.from_file(config).model)
    start_from(model, earlier)
    for mode in ("attention", "recurrent"):
        model.mode = earlier.mode = mode
        # One product of float32 is rounded differently, because the gate is divided out of the weights.
        torch.testing.assert_close(model(tokens).logits, earlier(tokens).logits, rtol=1e-5, atol=1e-5)
    (data / "more.txt").write_text("another text, which would have another tokenizer. " * 500)
    record = train_language(str(config), data / "more.txt", second, device="cpu", begin_from=first)
    assert (second / "tokenizer.json").read_text() == (first / "tokenizer.json").read_text()
    assert set(record["from"]) == {"model.safetensors"}
    start_from(LanguageModel(replace(model.config, inner=3)), earlier)
    with pytest.raises(ValueError, match="n_layers=2 cannot start from a model with n_layers=3"):
        start_from(earlier, LanguageModel(replace(earlier.config, n_layers=3)))


def test_a_text_too_small_for_its_vocabulary_is_refused_before_training(data, tmp_path):
    path = Path(write_config(tmp_path))
    path.write_text(path.read_text().replace("270", "512"))
    with pytest.raises(ValueError, match=r"tiny: vocab_size is 512, but the training text has (\d+) tokens") as error:
        train_language(str(path), data, tmp_path / "run", device="cpu")
    enough = re.search(r"has (\d+) tokens", str(error.value))[1]
    path.write_text(path.read_text().replace("512", enough))
    train_language(str(path), data, tmp_path / "run", device="cpu")  # the folder is free for what the message asks for


def test_divergence_stops_with_the_checkpoint_intact(data, tmp_path, monkeypatch):
    train_language(write_config(tmp_path, steps=6), data, tmp_path / "run", device="cpu")
    config = write_config(tmp_path)
    before = (tmp_path / "run/model.safetensors").read_bytes()
    (tmp_path / "run/request.json").unlink()
    monkeypatch.setattr(
        "rfa.training.language.cross_entropy",
        lambda model, *_: next(model.parameters()).sum() * float("nan"),
    )
    with pytest.raises(FloatingPointError, match="at step 6"):
        train_language(config, data, tmp_path / "run", device="cpu")
    assert (tmp_path / "run/model.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["books", "books_rope", "small", "paper"])
def test_packaged_configs_are_valid(name):
    run = LanguageRun.from_file(find_config(name))
    assert run.training.steps > 0


@pytest.mark.parametrize("size", ["small", "paper"])
def test_variants_differ_from_their_size_in_what_they_name(size):
    plain = LanguageRun.from_file(find_config(size))
    for name, variant in load_variants().items():
        run = LanguageRun.from_file(find_config(size), name)
        for section in ("model", "training"):
            base, changed = getattr(plain, section).to_dict(), getattr(run, section).to_dict()
            named = {key: tuple(value) if key == "modes" else value for key, value in variant.get(section, {}).items()}
            assert changed == {**base, **named}, name


def test_an_unknown_variant_lists_the_variants():
    with pytest.raises(ValueError, match=r"no variant 'M9'; the variants are \['B1', .*'M2\.6'"):
        LanguageRun.from_file(find_config("small"), "M9")


def test_a_seed_and_a_variant_are_of_the_run(data, tmp_path):
    config, shared = write_config(tmp_path, steps=2), tmp_path / "corpus"
    runs = {}
    for seed in (1, 2):
        out = tmp_path / f"s{seed}"
        record = train_language(config, data, out, variant="B1", seed=seed, corpus_dir=shared, device="cpu")
        assert (record["variant"], record["config"]["training"]["seed"]) == ("B1", seed)
        assert not (out / "corpus").exists()
        runs[seed] = load_run(out)
    assert runs[1].config.mixer == "softmax"
    assert not torch.equal(runs[1].embedding.weight, runs[2].embedding.weight)


def test_unknown_config_lists_the_configs(tmp_path):
    with pytest.raises(FileNotFoundError, match="books"):
        find_config("nope")
    (tmp_path / "bad.json").write_text(json.dumps({"model": MODEL, "training": TRAINING, "extra": {}}))
    with pytest.raises(ValueError, match="unknown sections \\['extra'\\]"):
        LanguageRun.from_file(tmp_path / "bad.json")
