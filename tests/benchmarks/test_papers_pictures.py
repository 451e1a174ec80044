"""The papers' pictures: what they show is what the models compute."""

import math

import numpy as np
import pytest
import torch

from rfa.benchmarks.papers.pictures.kernels import LAGS, precision, pulled
from rfa.benchmarks.papers.pictures.maps import last_weights
from rfa.benchmarks.papers.pictures.training import noises, start_diffusive
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.language_config import load_variants

SIZES = {"vocab_size": 31, "d_model": 16, "n_layers": 2, "n_heads": 4, "head_dim": 4, "mlp_ratio": 2}
VARIANTS = load_variants()


def model(name, **changes):
    return LanguageModel(LanguageModelConfig.from_dict({**SIZES, **VARIANTS[name]["model"], **changes}))


@pytest.mark.parametrize("name", ["B1", "B2", "M1", "M2"])
def test_a_map_has_the_weights_of_the_model(name):
    """Rows sum to one, and the weights times the values are what the last mixer puts out."""
    made, tokens = model(name), torch.arange(20) % 31
    weights = last_weights(made, tokens)
    assert weights.shape == (4, 20, 20)
    assert torch.allclose(weights.sum(-1), torch.ones(4, 20, dtype=torch.float64), atol=1e-6)
    assert bool((weights.triu(1) == 0).all())
    hidden = made.blocks[0].mixer.attention(made.blocks[0].mixer_norm(made._embed(tokens[None])), with_precision=False)
    hidden = made.blocks[0].finish(made._embed(tokens[None]), hidden.out, "attention")
    mixer, x = made.blocks[1].mixer, made.blocks[1].mixer_norm(hidden)
    expected = mixer.attention(x, with_precision=False).latent[0].double()
    v = mixer.value(x).reshape(20, 4, 8).double()
    if name in {"M1", "M2"}:
        values = v[..., :4] + 1j * v[..., 4:]
        omega, mu = mixer.dynamics.omega, mixer.dynamics.mu.double()
        lag = (torch.arange(20)[:, None] - torch.arange(20)).clamp_min(0)
        moves = torch.exp(
            torch.complex(-mu[:, None, None, None] * lag[..., None], omega[:, None, None] * lag[..., None])
        )
        out = torch.einsum("hij,hijd,jhd->ihd", weights + 0j, moves, values)
        found = torch.cat([out.real, out.imag], -1)
    else:
        found = torch.einsum("hij,jhd->ihd", weights, v)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_diffusive_start_has_negative_alpha():
    made = model("M2")
    assert all(value is None or value > 0 for value in noises(made)["alpha"])
    start_diffusive(made, 3.0)
    found = noises(made)
    assert found["alpha"][0] is None  # a head without decay
    assert all(value is None or value == pytest.approx(-2.0, abs=1e-3) for value in found["alpha"])
    assert noises(model("B1")) == {}


def test_kernels_are_those_of_the_paper():
    """The integrative gate is a sigmoid, and the diffusive bias a logarithm (RFA B.4.1)."""
    mu, steady, eta2, gamma2 = 0.05, 0.05, 0.5, 0.1
    alpha, beta = eta2 - steady, gamma2 + steady
    gate = 1 / (beta * (1 + np.exp(-(2 * mu * LAGS.numpy() - math.log(alpha / beta)))))
    assert precision(mu, steady, eta2) == pytest.approx(gate, rel=1e-12)
    steady, eta2 = 1.0, 0.05
    bias = -math.log(gamma2 + steady) - np.log1p((eta2 - steady) / (gamma2 + steady) * np.exp(-2 * mu * LAGS.numpy()))
    assert np.log(precision(mu, steady, eta2)) == pytest.approx(bias, abs=1e-12)


def test_carried_measurements_have_their_variances():
    """Over draws of a path and its measurements, earlier and later."""
    rate, sigma2, eta2, row = complex(-0.1, 0.4), 0.3, 0.5, 3
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, 6, 20_000, 2)) @ np.array([1, 1j]) / math.sqrt(2)
    x = [np.full(20_000, 2 + 1j)]
    for w in noise[0, 1:]:
        x.append(np.exp(rate) * x[-1] + math.sqrt(sigma2 * -math.expm1(-0.2) / 0.2) * w)
    z = np.array(x) + math.sqrt(eta2) * noise[1]
    variances = pulled(z[:, 0], row, rate, sigma2, eta2)[1]
    carried = np.exp(rate * (row - np.arange(6)))[:, None] * z - x[row]
    assert np.mean(np.abs(carried) ** 2, axis=1) == pytest.approx(variances, rel=0.03)
