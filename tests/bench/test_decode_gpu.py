"""The decode benchmark of a GPU as far as it goes without one: its step is the model's, and its check can fail."""

import pytest
import torch
from typer.testing import CliRunner

from rfa.bench import decode_gpu
from rfa.bench.decode_gpu import Decoding, check_decoding, read_by_model
from rfa.bench.kernel_truth import WrongResultError
from rfa.cli.main import app
from rfa.model.config import LanguageModelConfig
from rfa.model.language import LanguageModel

CONFIG = LanguageModelConfig(vocab_size=96, d_model=32, n_layers=2, n_heads=2, head_dim=8, n_slots=4)


@pytest.fixture
def model():
    return LanguageModel(CONFIG)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_exits_with_2(tmp_path):
    out = tmp_path / "decode_gpu.json"
    result = CliRunner().invoke(app, ["bench", "decode", "--device", "cuda", "--out", str(out)], prog_name="rfa")
    assert result.exit_code == 2
    assert "needs an NVIDIA GPU" in result.stderr
    assert not out.exists()


def test_the_step_is_the_models(model):
    decoding = Decoding(model, 3, torch.float32, with_graph=False)
    tokens = torch.randint(CONFIG.vocab_size, (3, 5))
    for position in (0, 1_000_000):
        expected = read_by_model(model, tokens, position)
        assert decoding.read(tokens, position).numpy() == pytest.approx(expected.numpy(), abs=1e-4)
        assert decoding.positions.tolist() == [position + 5] * 3


def test_a_step_draws_from_the_distribution(model):
    decoding = Decoding(model, 2000, torch.float32, with_graph=False)
    decoding.step()
    # Every stream is in the same state, so what they draw is a sample of one distribution.
    expected = (decoding.logits[0] / decode_gpu.TEMPERATURE).softmax(-1)
    drawn = decoding.tokens.bincount(minlength=CONFIG.vocab_size) / 2000
    assert float((drawn - expected).abs().sum()) < 0.25
    assert decoding.tokens.unique().numel() > CONFIG.vocab_size / 2


def test_the_check_passes_in_bfloat16_and_catches_a_wrong_model(model):
    decoding = Decoding(model, 2, torch.bfloat16, with_graph=False)
    assert set(check_decoding(model, decoding)) == {f"at {position}" for position in decode_gpu.POSITIONS}
    with torch.no_grad():
        model.blocks[1].feed_forward.up.weight.mul_(1.3)
    with pytest.raises(WrongResultError, match="decoding: at 10 has relative error"):
        check_decoding(model, decoding)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_graph_is_the_model():
    model = LanguageModel(CONFIG).cuda()
    decoding = Decoding(model, 2, torch.bfloat16, with_graph=True)
    check_decoding(model, decoding)
    assert decode_gpu.EventTimer(repeats=3, is_flushing=False)(decoding.step) > 0


def test_a_step_that_depends_on_the_position_is_caught(model):
    decoding = Decoding(model, 2, torch.float32, with_graph=False)
    honest = decoding.decoder.step

    def drifting(tokens, positions, noise, pool, rows):
        output = honest(tokens, positions, noise, pool, rows)
        drift = 1e-6 * positions[:, None] * torch.linspace(0, 1, CONFIG.vocab_size)
        return output._replace(logits=output.logits + drift)

    decoding.decoder.step = drifting  # type: ignore[method-assign]
    with pytest.raises(WrongResultError, match="at 1000000 has relative error"):
        check_decoding(model, decoding)
