"""Every model of the papers, as its entry of variants.json makes it, against a float64 loop of its formulas."""

import math

import numpy as np
import pytest
import torch

from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.language_config import load_variants
from tests.model.variant_loops import mixed

VARIANTS = load_variants()
EXTENDED = ["M2-open", "M2-even", "M2-linear", "M2-drift", "M2-ahead"]
PAPERS = ["B1", "B2", "B3", "B4", "M1", "M2", *(f"M2.{n}" for n in range(1, 7)), "M3", "AFA", "RT"]
SWEEP = sorted(name for name in VARIANTS if name.startswith("M2-b5"))
SIZES = {"vocab_size": 11, "d_model": 16, "n_layers": 2, "n_heads": 4, "head_dim": 6, "mlp_ratio": 2}
LENGTH = 9
EPSILON = 2.0**-24


def config(name, **changes):
    return LanguageModelConfig.from_dict({**SIZES, **VARIANTS[name].get("model", {}), **changes})


def model(name, **changes):
    """A tiny model with every number moved away from its start."""
    made = LanguageModel(config(name, **changes))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.5 * torch.randn_like(parameter))
    made.mode = "attention"
    return made.eval().requires_grad_(False)


def mixer(name, **changes):
    return model(name, **changes).blocks[0].mixer


def states(batch=2, length=LENGTH):
    """Tokens of unequal length."""
    return torch.randn(batch, length, SIZES["d_model"]) * torch.rand(batch, length, 1).add(0.3)


def loop(name, weights, x, heads=SIZES["n_heads"]):
    return mixed(name=name, weights={key: value.double().numpy() for key, value in weights.items()}, x=x, heads=heads)


def jittered(x):
    """Every number rounded up or down by half a unit in the last place of float32."""
    return x.double() * (1 + EPSILON * torch.randint(2, x.shape).mul(2).sub(1))


def reach(name, weights, x, expected):
    """How far the loop's own results move when its inputs are rounded to float32."""
    moved = loop(name, {key: jittered(value) for key, value in weights.items()}, jittered(x))
    return [np.linalg.norm(there - here) for there, here in zip(moved, expected, strict=True)]


# The chain from x to out is a projection (16 terms), a score (12 terms and its squares), a softmax (9), an output
# projection (48): of that many roundings of alike size the errors add up to no more than this many of one.
ROUNDINGS = 32


@pytest.mark.parametrize("name", [*PAPERS, *EXTENDED, *SWEEP])
def test_a_mixer_is_the_loop_of_its_formulas(name):
    made, x = mixer(name), states()
    weights, actual = made.state_dict(), made.attention(x, with_precision=True)
    actual = [part.double().numpy() for part in (actual.out, actual.log_precision, actual.latent)]
    expected = loop(name, weights, x)
    assert np.linalg.norm(expected[0]) > 0.1
    for found, value, far in zip(actual, expected, reach(name, weights, x, expected), strict=True):
        assert np.linalg.norm(found - value) <= ROUNDINGS * max(far, EPSILON * np.linalg.norm(value))


@pytest.mark.parametrize("name", ["B1", "B2", "B3", "B4", "M1", "M2", "AFA", "RT", *EXTENDED])
@pytest.mark.parametrize("heads", [1, 3])
def test_in_float64_it_is_the_loop_to_rounding(name, heads):
    made, x = mixer(name, n_heads=heads).double(), states().double()
    actual, expected = made.attention(x, with_precision=True), loop(name, made.state_dict(), x, heads)
    for found, value in zip((actual.out, actual.log_precision, actual.latent), expected, strict=True):
        assert np.linalg.norm(found.numpy() - value) <= 1e-12 * np.linalg.norm(value)


@pytest.mark.parametrize("name", PAPERS)
def test_future_tokens_change_nothing(name):
    made, tokens = model(name), torch.randint(11, (2, LENGTH))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    for before, after in zip(made(tokens), made(changed), strict=True):
        assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(made(tokens).logits[:, 5:], made(changed).logits[:, 5:])


def test_the_models_with_slots_run_both_ways():
    assert [config(name).modes for name in ("slots", "both")] == [("attention", "recurrent")] * 2


@pytest.mark.parametrize("name", [*PAPERS, *SWEEP])
def test_the_models_of_the_papers_run_as_attention_alone(name):
    made = LanguageModel(config(name))
    assert made.config.modes == ("attention",) and made.mode == "attention"
    with pytest.raises(ValueError, match=r"model supports the modes .*got 'recurrent'"):
        made.mode = "recurrent"
    with pytest.raises(ValueError, match="does not support the recurrent mode"):
        made.init_state(1)


TEXT = torch.tensor([[1, 2, 3, 1, 4, 1, 5, 2, 6] * 4])


def frequency_entropy(tokens):
    """Nats per token of the best model that does not look at the context."""
    share = torch.bincount(tokens.flatten()) / tokens.numel()
    return float(-torch.xlogy(share, share).sum())


@pytest.mark.parametrize("name", PAPERS)
def test_every_model_learns(name):
    """From guessing one of eleven tokens to more than their frequencies tell, and every parameter gets a slope."""
    made = LanguageModel(config(name, n_layers=1))
    optimiser = torch.optim.Adam(made.parameters(), lr=2e-2)
    losses = []
    for _ in range(20):
        logits = made(TEXT[:, :-1], with_precision=False).logits
        loss = torch.nn.functional.cross_entropy(logits[0], TEXT[0, 1:])
        losses.append(float(loss.detach()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[0] == pytest.approx(math.log(11), rel=0.2)
    assert losses[-1] < frequency_entropy(TEXT)
    for key, parameter in made.named_parameters():
        if name == "M2.2" and key.endswith("process_raw"):  # a precision that is constant over the lag has none
            assert parameter.grad is None
            continue
        assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), key
        assert float(parameter.grad.abs().max()) > 0, key


def same(a, b, tolerance=0.0):
    assert float((a - b).norm()) <= tolerance * float(b.norm())


def test_tokens_of_no_length_say_nothing_in_rt():
    """Finite results and slopes where all tokens are zero, or one is; and nobody hears what a tiny one says."""
    made, x = LanguageModel(config("RT")).blocks[0].mixer, states()
    x[:, 4] = 0.0
    for tokens in (torch.zeros_like(x), x.clone()):
        tokens.requires_grad_()
        out = made.attention(tokens, with_precision=True)
        (out.out.sum() + out.log_precision.sum()).backward()
        assert all(bool(torch.isfinite(part).all()) for part in (*out, tokens.grad))

    @torch.no_grad()
    def heard(length):
        """How much the later tokens change when token 4 turns round."""
        outs = []
        for sign in (1, -1):
            x[:, 4] = sign * length
            outs.append(made.attention(x, with_precision=False).out[:, 5:])
        return float((outs[0] - outs[1]).norm() / outs[0].norm())

    assert heard(1e-6) <= 1e-4 and heard(1.0) > 0.1


def test_the_block_of_the_rt_transformer():
    """z⁺ = z + W_o ū of z itself, then z⁺ + FFN(Norm(z⁺)): no norm before the mixer."""
    block, z = model("RT").blocks[0], states()
    mixed_by_hand, _, _ = loop("RT", block.mixer.state_dict(), z)
    after = z.double().numpy() + mixed_by_hand
    scaled = after / np.sqrt(np.mean(after**2, -1, keepdims=True) + 1e-6) * block.feed_forward_norm.weight.numpy()
    up = scaled @ block.feed_forward.up.weight.double().numpy().T
    active = up * 0.5 * (1 + np.vectorize(math.erf)(up / math.sqrt(2)))
    expected = after + active @ block.feed_forward.down.weight.double().numpy().T
    mixed_here = block.mixer.attention(block.mixer_norm(z), with_precision=False).out
    same(block.finish(z, mixed_here, "attention").double(), torch.from_numpy(expected), 1e-5)


@pytest.mark.parametrize("name", ["AFA", "RT"])
@pytest.mark.parametrize(
    "change",
    [{"kernel": "gaussian"}, {"prior": "constant"}, {"noise": "anchor"}, {"rotate_values": False}, {"unit_norm": True}],
    ids=lambda change: next(iter(change)),
)
def test_ablations_of_rfa_are_refused_elsewhere(name, change):
    with pytest.raises(ValueError, match=rf"{next(iter(change))} .* requires the mixer 'rfa'"):
        config(name, **change)
