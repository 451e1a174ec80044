"""Training a language model: it learns, it resumes bit for bit, its schedule is torch's OneCycle."""

import json

import pytest
import torch

from model.checkpoint import load_model
from training.language import (
    LanguageRun,
    find_config,
    load_variants,
    parameter_groups,
    schedule,
    train_language,
)

MODEL = {"vocab_size": 270, "d_model": 16, "n_layers": 2, "n_heads": 2, "head_dim": 4, "n_slots": 2}
TRAINING = {"steps": 12, "batch": 4, "context": 32, "learning_rate": 0.01, "validate_every": 6, "precision": "fp32"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    text = "the cat sat on the mat and the dog sat on the log. " * 400
    (folder / "train.txt").write_text(text)
    (folder / "valid.txt").write_text(text[: len(text) // 4])
    return folder


def write_config(folder, **training):
    path = folder / "tiny.json"
    path.write_text(json.dumps({"model": MODEL, "training": {**TRAINING, **training}}))
    return str(path)


def rows(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_both_modes_learn(data, tmp_path):
    record = train_language(write_config(tmp_path, steps=60, validate_every=20), data, tmp_path / "run", device="cpu")
    first, *_, last = rows(tmp_path / "run")
    assert set(last["valid"]) == {"attention", "recurrent"}
    for mode, loss in last["valid"].items():
        assert loss < first["valid"][mode] - 0.3, mode
    assert record["tokens"] == 60 * 4 * 32
    assert set(record["data"]) == {"train.txt", "valid.txt"}
    assert load_model(tmp_path / "run").config.d_model == 16
    from matplotlib.image import imread

    assert imread(tmp_path / "run/metrics.png").std() > 0.05  # something was drawn


def test_resume_equals_uninterrupted(data, tmp_path, monkeypatch):
    config = write_config(tmp_path)
    train_language(config, data, tmp_path / "whole", device="cpu")
    calls = {"n": 0}
    from training.language import Trainer

    original = Trainer.update

    def stops(self, *args):
        calls["n"] += 1
        if calls["n"] == 9:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(Trainer, "update", stops)
    with pytest.raises(KeyboardInterrupt):
        train_language(config, data, tmp_path / "cut", device="cpu")
    monkeypatch.setattr(Trainer, "update", original)
    train_language(config, data, tmp_path / "cut", device="cpu")
    whole, cut = load_model(tmp_path / "whole").state_dict(), load_model(tmp_path / "cut").state_dict()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert rows(tmp_path / "cut")[-1]["valid"] == rows(tmp_path / "whole")[-1]["valid"]


def test_another_config_is_refused_in_the_same_directory(data, tmp_path):
    train_language(write_config(tmp_path, steps=1), data, tmp_path / "run", device="cpu")
    with pytest.raises(ValueError, match="another config"):
        train_language(write_config(tmp_path, steps=2), data, tmp_path / "run", device="cpu")


def test_divergence_stops_with_the_checkpoint_intact(data, tmp_path, monkeypatch):
    train_language(write_config(tmp_path, steps=6), data, tmp_path / "run", device="cpu")
    config = write_config(tmp_path)
    before = (tmp_path / "run/model.safetensors").read_bytes()
    (tmp_path / "run/request.json").unlink()
    monkeypatch.setattr(
        "training.language.cross_entropy",
        lambda model, *_: next(model.parameters()).sum() * float("nan"),
    )
    with pytest.raises(FloatingPointError, match="at step 6"):
        train_language(config, data, tmp_path / "run", device="cpu")
    assert (tmp_path / "run/model.safetensors").read_bytes() == before


def test_schedule_is_one_cycle():
    steps, peak = 200, 1e-3
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=peak)
    oracle = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, peak, total_steps=steps, pct_start=0.05, cycle_momentum=False
    )
    for step in range(steps):
        assert peak * schedule(step, steps, 0.05) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9)
        optimiser.step()
        if step < steps - 1:
            oracle.step()


def test_sde_scalars_have_their_own_group():
    run = LanguageRun.from_file(find_config("books"))
    from model.language import LanguageModel

    model = LanguageModel(run.model)
    groups = parameter_groups(model, run.training)
    sde = groups[-1]
    assert sde["betas"][0] == 0.0 and sde["eps"] == 1e-7 and sde["peak"] == 5e-4
    assert {id(p) for p in sde["params"]} == {id(p) for n, p in model.named_parameters() if ".dynamics." in n}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


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


def test_an_unknown_variant_lists_the_known():
    with pytest.raises(ValueError, match=r"no variant 'M9'; known are \['B1', .*'M2\.6'"):
        LanguageRun.from_file(find_config("small"), "M9")


def test_a_seed_and_a_variant_are_of_the_run(data, tmp_path):
    config, shared = write_config(tmp_path, steps=2), tmp_path / "corpus"
    runs = {}
    for seed in (1, 2):
        out = tmp_path / f"s{seed}"
        record = train_language(config, data, out, variant="B1", seed=seed, corpus_dir=shared, device="cpu")
        assert (record["variant"], record["config"]["training"]["seed"]) == ("B1", seed)
        assert not (out / "corpus").exists()
        runs[seed] = load_model(out)
    assert runs[1].config.mixer == "softmax"
    assert not torch.equal(runs[1].embedding.weight, runs[2].embedding.weight)


def test_baseline_differs_in_the_mixer_only():
    books, rope = (LanguageRun.from_file(find_config(name)) for name in ("books", "books_rope"))
    assert books.training == rope.training
    assert {**books.model.to_dict(), "mixer": "softmax", "frequencies": "full"} == rope.model.to_dict()


def test_unknown_config_lists_the_known(tmp_path):
    with pytest.raises(FileNotFoundError, match="books"):
        find_config("nope")
    (tmp_path / "bad.json").write_text(json.dumps({"model": MODEL, "training": TRAINING, "extra": {}}))
    with pytest.raises(ValueError, match="unknown sections \\['extra'\\]"):
        LanguageRun.from_file(tmp_path / "bad.json")
