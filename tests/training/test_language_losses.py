"""Losses of the language model: the share of each mode, its rows and passes, and the compiled loss."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rfa.model.language import LanguageModel
from rfa.training.language import Trainer, cross_entropy, train_language
from rfa.training.language_config import LanguageRun, TrainingConfig, find_config
from rfa.training.language_losses import compiled_cross_entropy
from tests.training.language_runs import TRAINING, rows, scaled_error, write_config


def test_the_recurrent_mode_joins_when_it_is_due(data, tmp_path, monkeypatch):
    from rfa.training.language import Trainer

    trained, original = [], Trainer.update

    def watched(self, *args):
        gates = self.model.blocks[0].mixer.gates.weight
        before, losses = gates.detach().clone(), original(self, *args)
        trained.append((sorted(losses), torch.equal(before, gates)))
        return losses

    monkeypatch.setattr(Trainer, "update", watched)
    config = write_config(tmp_path, steps=6, validate_every=3, recurrent_from=0.5)
    record = train_language(config, data, tmp_path / "run", device="cpu")
    both = ["attention", "recurrent"]
    assert [sorted(row["train"]) for row in rows(tmp_path / "run")] == [["attention"], both]
    assert (tmp_path / "run" / "metrics.png").is_file()
    assert trained == [(["attention"], True)] * 3 + [(both, False)] * 3
    assert sorted(record["validation_loss"]) == both
    with pytest.raises(ValueError, match="recurrent_from requires both modes"):
        train_language(write_config(tmp_path, recurrent_from=0.5, modes=["recurrent"]), data, tmp_path / "bad")


def test_the_modes_losses_are_weighed_by_the_recurrent_share(data, tmp_path):
    def gates_and_queries(name, **options):
        """Gradients that only the recurrent mode has, and that both have."""
        config = write_config(tmp_path, steps=1, precision="fp32", **options)
        trainer = Trainer(LanguageRun.from_file(Path(config)), None, tmp_path / name, torch.device("cpu"))
        trainer.optimiser.step = lambda *_: None
        tokens = torch.arange(33)[None] % 200
        trainer.update(tokens[:, :-1], tokens[:, 1:], cross_entropy)
        mixer = trainer.model.blocks[0].mixer
        return mixer.gates.weight.grad, mixer.query.weight.grad

    mixed = gates_and_queries("mixed", recurrent_share=0.75)
    attention = gates_and_queries("attention", modes=["attention"])
    recurrent = gates_and_queries("recurrent", modes=["recurrent"])
    torch.testing.assert_close(mixed[0], 0.75 * recurrent[0])
    torch.testing.assert_close(mixed[1], 0.25 * attention[1] + 0.75 * recurrent[1])
    with pytest.raises(ValueError, match=r"recurrent_share must be in .*1\.0"):
        TrainingConfig.from_dict({**TRAINING, "recurrent_share": 1.0})


def test_each_mode_trains_on_its_own_rows_in_windows_of_its_own(data, tmp_path):
    seen = {}

    def loss(model, inputs, targets, mode):
        seen[mode] = inputs
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        return next(model.parameters()).sum()

    batch = torch.arange(4 * 33).reshape(4, 33)
    for own_rows, share in ((False, 0.5), (True, 0.5), (True, 0.9)):
        recipe = {"own_rows": own_rows, "recurrent_share": share, "attention_context": 8}
        run = LanguageRun.from_file(Path(write_config(tmp_path, **recipe)))
        trainer = Trainer(run, SimpleNamespace(), tmp_path / "none", torch.device("cpu"))
        trainer.update(batch[:, :-1], batch[:, 1:], loss)
        recurrent = 4 if not own_rows else 2 if share == 0.5 else 3
        assert torch.equal(seen["recurrent"], batch[:recurrent, :-1])
        rest = batch[recurrent if own_rows else 0 :, :-1]
        assert torch.equal(seen["attention"], rest.reshape(-1, 8))
    for wrong, message in (({"attention_context": 5}, "must divide context 32"), ({"own_rows": True, "batch": 1}, "2")):
        with pytest.raises(ValueError, match=message):
            TrainingConfig.from_dict({**TRAINING, **wrong})


def test_steps_vary_the_passes(data, tmp_path):
    seen = []

    def loss(model, inputs, targets, mode):
        seen.append((model.passes, *(block.mixer.passes for block in model.blocks)))
        return next(model.parameters()).sum()

    batch = torch.arange(4 * 33).reshape(4, 33)
    for varies, expected in ((True, [1, 2, 3, 1]), (False, [3, 3, 3, 3])):
        document = json.loads(Path(write_config(tmp_path, vary_passes=varies, modes=["recurrent"])).read_text())
        document["model"]["inner"] = 3
        config = tmp_path / "passes.json"
        config.write_text(json.dumps(document))
        trainer = Trainer(LanguageRun.from_file(config), SimpleNamespace(), tmp_path / "none", torch.device("cpu"))
        for _ in range(4):
            trainer.update(batch[:, :-1], batch[:, 1:], loss)
        assert seen == [(passes,) * 3 for passes in expected]
        seen.clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own doings
@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_the_compiled_loss_has_the_gradients_of_the_eager_one(mode):
    """Under autocast, as training runs it: together no further from float32 than twice what the eager code is.

    A gradient of two elements is a sum with cancellation, and may be rounded much more or less than others. Each of
    them must only differ from a gradient without one of its terms, which is off by its own size.
    """
    config = LanguageRun.from_file(find_config("books")).model
    config = replace(config, vocab_size=64, d_model=32, n_layers=2, n_heads=2, head_dim=8, n_slots=4)
    tokens = torch.arange(2 * 33).reshape(2, 33) * 7 % 64

    def gradients(loss_of, is_half):
        torch.manual_seed(0)
        model = LanguageModel(config)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            loss_of(model, tokens[:, :-1], tokens[:, 1:], mode).backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    exact, eager = gradients(cross_entropy, False), gradients(cross_entropy, True)
    compiled = gradients(compiled_cross_entropy(), True)
    assert compiled.keys() == exact.keys()
    errors = {name: scaled_error(compiled[name], expected) for name, expected in exact.items()}
    of_eager = {name: scaled_error(eager[name], expected) for name, expected in exact.items()}
    assert math.hypot(*errors.values()) <= 2 * math.hypot(*of_eager.values())
    for name, error in errors.items():
        assert error <= max(2 * of_eager[name], 0.25), name


def test_without_a_compiler_attention_is_eager(data, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("torch.compile", lambda *_: pytest.fail("there is nothing to compile with"))
    with pytest.warns(UserWarning, match="without a C.. compiler"):
        train_language(write_config(tmp_path, steps=1, compile=True), data, tmp_path / "run", device="cpu")
