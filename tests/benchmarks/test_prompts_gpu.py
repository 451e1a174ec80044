"""The benchmark of prompts on a GPU as far as it goes without one: what it reads is the model's, and it can fail."""

from __future__ import annotations

import pytest
import torch

from rfa.benchmarks.gpu import prompts as prompts_gpu
from rfa.benchmarks.gpu.prompts import check_prompts
from rfa.benchmarks.kernels.truth import WrongResultError
from rfa.model import ragged
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig

CONFIG = LanguageModelConfig(vocab_size=96, d_model=32, n_layers=2, n_heads=2, head_dim=8, n_slots=4)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    monkeypatch.setattr(prompts_gpu, "CHECKED", (1, 5, 30))
    monkeypatch.setattr(prompts_gpu, "QUANTA", {"three": ([2, 1, 2], 0), "behind": ([2], 9)})
    return LanguageModel(CONFIG)


def test_the_check_passes_and_catches_a_wrong_model(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = check_prompts(model, torch.float32)
    assert set(errors) == {"attention", "recurrent"} and 0 < max(errors.values()) < 1e-5
    check_prompts(model, torch.bfloat16)
    honest = ragged.RaggedDecoder.prefill

    def off(*given: object) -> object:
        output, *slots = honest(*given)  # type: ignore[arg-type]
        return output._replace(logits=output.logits * 1.1), *slots

    monkeypatch.setattr(ragged.RaggedDecoder, "prefill", off)
    with pytest.raises(WrongResultError, match="prompts: recurrent has relative error"):
        check_prompts(model, torch.bfloat16)
