"""The decode benchmark of a GPU as far as it goes without one: its step is the model's, and its check can fail."""

import pytest
import torch

from rfa.benchmarks.gpu import decode as decode_gpu
from rfa.benchmarks.gpu.decode import ServedSteps, check_decoding, read_by_model
from rfa.benchmarks.kernels.truth import WrongResultError
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig

CONFIG = LanguageModelConfig(vocab_size=96, d_model=32, n_layers=2, n_heads=2, head_dim=8, n_slots=4)


@pytest.fixture
def model():
    return LanguageModel(CONFIG)


def served(model: LanguageModel, batch: int, dtype: torch.dtype = torch.float32) -> ServedSteps:
    return ServedSteps(model, batch, dtype, with_graph=torch.cuda.is_available())


def test_the_step_is_the_models(model: LanguageModel) -> None:
    steps = served(model, 3)
    tokens = torch.randint(CONFIG.vocab_size, (3, 5))
    for position in (0, 1_000_000):
        expected = read_by_model(model, tokens, position)
        assert steps.read(tokens, position).numpy() == pytest.approx(expected.detach().numpy(), abs=1e-4)


def test_what_is_drawn_is_read_next(model: LanguageModel) -> None:
    steps = served(model, 2)
    text = [1]
    for _ in range(3):
        expected = int(read_by_model(model, torch.tensor([text]), 0)[0, -1].argmax())
        assert [row.token for row in steps.draw(decode_gpu.CHOICES["greedy"])] == [expected] * 2
        text.append(expected)


def test_the_check_passes_in_bfloat16_and_catches_a_wrong_model(model: LanguageModel) -> None:
    steps = served(model, 2, torch.bfloat16)
    assert set(check_decoding(model, steps)) == {f"at {position}" for position in decode_gpu.POSITIONS}
    with torch.no_grad():
        model.blocks[1].feed_forward.up.weight.mul_(1.3)
    with pytest.raises(WrongResultError, match="decoding: at 10 has relative error"):
        check_decoding(model, steps)
