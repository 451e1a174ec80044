"""Scores of a language model on cases with a closed form."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from rfa.model.checkpoint import save_checkpoint
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.evaluate import language
from rfa.training.evaluate.language import evaluate_model, evaluate_passes, token_bytes, window_losses
from tests.tiny_run import TEXT, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"))


def test_token_bytes_add_up_to_the_text(run):
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    ids = tokenizer.encode(TEXT).ids
    assert token_bytes(tokenizer)[ids].sum() == len(TEXT.encode())


def test_scores_of_a_uniform_model(run, tmp_path):
    """With a zero embedding every token is equally likely: ln V nats in both modes at any length."""
    model = LanguageModel(LanguageModelConfig(280, d_model=16, n_layers=1, n_heads=2, head_dim=4, n_slots=2))
    torch.nn.init.zeros_(model.embedding.weight)
    save_checkpoint(tmp_path, "language", model)
    (tmp_path / "tokenizer.json").write_bytes((run / "tokenizer.json").read_bytes())
    for row in evaluate_model(tmp_path, [run / "text.txt"], lengths=(16, 64)):
        assert row.nats_per_token == pytest.approx(math.log(280), rel=1e-6)
        assert row.perplexity == pytest.approx(280, rel=1e-5)
        assert row.tokens % 64 == 0


def test_each_number_of_passes_has_the_score_of_that_model(run, tmp_path, monkeypatch):
    config = LanguageModelConfig(280, d_model=16, n_layers=1, n_heads=2, head_dim=4, n_slots=2, inner=2)
    torch.manual_seed(1)
    model, one = LanguageModel(config), LanguageModel(replace(config, inner=1))
    one.load_state_dict(model.state_dict())
    for name, saved in (("two", model), ("one", one)):
        (tmp_path / name).mkdir()
        save_checkpoint(tmp_path / name, "language", saved)
        (tmp_path / name / "tokenizer.json").write_bytes((run / "tokenizer.json").read_bytes())
    monkeypatch.setattr(language, "ROUNDS", 2)
    files = [run / "text.txt"]
    first, second = evaluate_passes(tmp_path / "two", files, length=64)
    (only,) = evaluate_passes(tmp_path / "one", files, length=64)
    assert [first.passes, second.passes, only.passes] == [1, 2, 1]
    assert first.score == only.score != second.score
    assert second.score == evaluate_model(tmp_path / "two", files, lengths=(64,))[1]
    assert all(cost > 0 for row in (first, second, only) for cost in (row.prompt_us, row.step_us))


def test_passes_need_memory_slots(run, tmp_path):
    config = LanguageModelConfig(280, d_model=16, n_layers=1, n_heads=2, head_dim=4, n_slots=0)
    save_checkpoint(tmp_path, "language", LanguageModel(config))
    with pytest.raises(ValueError, match="has no recurrent mode, so it has no reweighting passes"):
        evaluate_passes(tmp_path, [run / "text.txt"])


def test_windows_start_from_nothing(run):
    from rfa.model.loading import load_model

    model = load_model(run)
    tokens = np.asarray(Tokenizer.from_file(str(run / "tokenizer.json")).encode(TEXT).ids)
    for mode in ("attention", "recurrent"):
        short = window_losses(model, tokens[:65], 16, mode)
        assert short.shape == (4, 16)
        alone = window_losses(model, tokens[16:33], 16, mode)
        assert short[1] == pytest.approx(alone[0], abs=1e-5)
        assert window_losses(model, tokens[:65], 64, mode)[0, :16] == pytest.approx(short[0], abs=1e-5)


def test_too_short_a_text_is_refused(run):
    with pytest.raises(ValueError, match="longest context needs 4097"):
        evaluate_model(run, [run / "text.txt"])
