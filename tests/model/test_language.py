"""The language model: one set of weights, two modes, and a stream that equals the batch."""

from dataclasses import replace

import pytest
import torch

from rfa.model.checkpoint import load_run, save_checkpoint
from rfa.model.language import LanguageModel, SlotState
from rfa.runtime.text.config import LanguageModelConfig

SMALL = {"vocab_size": 61, "d_model": 32, "n_layers": 3, "n_heads": 2, "head_dim": 6, "n_slots": 5}
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(**SMALL)).eval()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(61, (3, 40), generator=torch.Generator().manual_seed(1))


def scaled_error(actual, expected):
    return float((actual - expected).norm() / expected.norm())


@torch.no_grad()
def stream(model, tokens, state, noise=None):
    logits, precisions = [], []
    for i in range(tokens.shape[1]):
        output, state = model.step(tokens[:, i], state, noise)
        logits.append(output.logits)
        precisions.append(output.log_precision)
    return torch.stack(logits, 1), torch.stack(precisions, 1), state


@torch.no_grad()
def test_any_batch_composition(model, tokens):
    whole, _, _ = stream(model, tokens, model.init_state(3))
    for rows in ([1], [2, 0], [0, 0, 1, 2, 2]):
        logits, _, _ = stream(model, tokens[rows], model.init_state(len(rows)))
        assert scaled_error(logits, whole[rows]) <= TOLERANCE


@torch.no_grad()
def test_streams_at_different_positions_share_a_batch(model, tokens):
    """One row is 15 tokens ahead of the other; both equal their own run alone."""
    _, ahead = model.prefill(tokens[:1, :15], model.init_state(1))
    fresh = model.init_state(1)
    together = SlotState(*(torch.cat(pair) for pair in zip(ahead, fresh, strict=True)))
    joined, _, _ = stream(model, torch.stack([tokens[0, 15:25], tokens[1, :10]]), together)
    first, _, _ = stream(model, tokens[:1, 15:25], ahead)
    second, _, _ = stream(model, tokens[1:2, :10], fresh)
    assert scaled_error(joined, torch.cat([first, second])) <= TOLERANCE


@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_future_tokens_change_nothing(model, tokens, mode):
    model.mode = mode
    changed = tokens.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % 61
    with torch.no_grad():
        a, b = model(tokens).logits, model(changed).logits
    assert torch.equal(a[:, :25], b[:, :25])
    assert not torch.equal(a[:, 25:], b[:, 25:])


@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_every_parameter_of_a_mode_learns(tokens, mode):
    torch.manual_seed(2)
    model = LanguageModel(LanguageModelConfig(**SMALL))
    model.mode = mode
    model(tokens, with_precision=False).logits.logsumexp(-1).sum().backward()
    slots = ("gates", "slot_log_mu", "initial_", "delta_raw", "weight_scale_raw")
    for name, parameter in model.named_parameters():
        if mode == "attention" and any(part in name for part in slots):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), name
            assert float(parameter.grad.abs().max()) > 0, name


@torch.no_grad()
def test_latent_noise_has_the_stated_spread(model, tokens):
    """Λ = 1/p̂ + gamma² per complex dim: half in each real part, on the last layer only."""
    state = model.init_state(1)
    plain, after = model.step(tokens[:1, 0], state)
    noise = torch.ones_like(plain.latent)
    noisy, after_noisy = model.step(tokens[:1, 0], state, noise)
    mixer = model.blocks[-1].mixer
    shift = (noisy.latent - plain.latent)[0, :, 0]
    lower = torch.sqrt(mixer.dynamics().gamma2 / 2)
    assert bool((shift > lower).all())
    doubled, _ = model.step(tokens[:1, 0], state, 2 * noise)
    assert torch.allclose(doubled.latent - plain.latent, 2 * (noisy.latent - plain.latent), atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(after, after_noisy, strict=True))


def test_passes_are_those_of_a_model_with_as_many(tokens):
    config = LanguageModelConfig(**SMALL, inner=3)
    model = LanguageModel(config)
    model.mode, logits = "recurrent", []
    for passes in (1, 2, 3):
        other = LanguageModel(replace(config, inner=passes))
        other.load_state_dict(model.state_dict())
        other.mode, model.passes = "recurrent", passes
        logits.append(model(tokens).logits)
        assert torch.equal(logits[-1], other(tokens).logits)
    assert not torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[1], logits[2])
    for passes in (0, 4):
        with pytest.raises(ValueError, match=f"between 1 and 3, got {passes}"):
            model.passes = passes


@torch.no_grad()
def test_the_rows_of_a_step_have_their_own_passes(tokens):
    model = LanguageModel(LanguageModelConfig(**SMALL, inner=3))
    state = model.prefill(tokens, model.init_state(3))[1]
    together, after = model.step(tokens[:, 0], state, None, torch.tensor([2, 3, 1]))
    for row, passes in enumerate((2, 3, 1)):
        model.passes = passes
        alone, then = model.step(tokens[row : row + 1, 0], SlotState(*(part[row : row + 1] for part in state)))
        assert scaled_error(together.logits[row], alone.logits[0]) <= TOLERANCE
        assert scaled_error(after.means[row], then.means[0]) <= TOLERANCE
    model = LanguageModel(LanguageModelConfig(**SMALL, inner=3, window=4))
    with pytest.raises(ValueError, match="passes must be None for a model with a window"):
        model.step(tokens[:, 0], model.init_state(3), None, torch.ones(3))


def test_config_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="has no key \\['widht'\\]"):
        LanguageModelConfig.from_dict({**SMALL, "widht": 3})
    with pytest.raises(ValueError, match="vocab_size"):
        LanguageModelConfig.from_dict({})
    with pytest.raises(ValueError, match="head_dim must be even"):
        LanguageModelConfig(**{**SMALL, "head_dim": 5})
    with pytest.raises(ValueError, match="mixer must be one of"):
        LanguageModelConfig(**{**SMALL, "mixer": "mamba"})
    with pytest.raises(ValueError, match="n_slots must be an integer >= 0"):
        LanguageModelConfig(**{**SMALL, "n_slots": -1})
    with pytest.raises(ValueError, match=r"memory slots .* require prior='lyapunov'"):
        LanguageModelConfig(**{**SMALL, "prior": "constant"})
    with pytest.raises(ValueError, match="distance_bias 'alibi' requires the mixer 'softmax'"):
        LanguageModelConfig(**{**SMALL, "distance_bias": "alibi"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own doings
def test_compiled_attention_has_the_gradients_of_the_eager_one(tokens):
    """Under autocast, as training runs it: no further from float32 than twice what the eager code is."""

    def gradients(is_compiled, is_half):
        torch.manual_seed(0)
        model = LanguageModel(LanguageModelConfig(**{**SMALL, "n_layers": 1, "n_slots": 0}))
        if is_compiled:
            model.compile_attention()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            model(tokens).logits.float().square().mean().backward()
        return {name: p.grad for name, p in model.named_parameters()}

    exact, eager, compiled = gradients(False, False), gradients(False, True), gradients(True, True)
    for name, expected in exact.items():
        allowed = 2 * scaled_error(eager[name], expected) + torch.finfo(torch.bfloat16).eps
        assert scaled_error(compiled[name], expected) <= allowed, name


def test_checkpoint_round_trip(model, tokens, tmp_path):
    save_checkpoint(tmp_path / "run", "language", model)
    restored = load_run(tmp_path / "run")
    restored.mode = model.mode = "recurrent"
    with torch.no_grad():
        assert torch.equal(restored(tokens).logits, model(tokens).logits)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_run(tmp_path / "empty")
