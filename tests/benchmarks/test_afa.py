"""The AFA layer against a float64 loop over complex numbers that shares nothing with it."""

import cmath
import math
from copy import deepcopy

import numpy as np
import torch

from rfa.benchmarks.papers.afa.layer import AFAConfig, AFAFilter, AFALayer
from tests.model.oracles import to_complex, to_real

TIMES = torch.tensor([0.0, 0.3, 0.3, 1.1, 4.0, 4.2, 9.0], dtype=torch.float64)
CONFIG = AFAConfig(observation_size=2, d_model=6, n_heads=2, head_dim=4, step=0.7)


def layer(**changes):
    """Every parameter moved away from its start, in float64."""
    made = AFALayer(AFAConfig(**{**CONFIG.to_dict(), **changes})).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return made


def softplus(raw):
    return math.log1p(math.exp(raw)) + 1e-6


def loop(model, x, times):
    """Algorithm 1 with the decay's sign mended: prediction, estimate, residual, Σ 1 / (V + R²), the weights A ⊙ E."""
    config, scalars = model.config, deepcopy(model.scalars).requires_grad_(False)
    heads, dims, length = config.n_heads, config.head_dim, len(times)
    arrays = {name: value.detach().numpy() for name, value in model.state_dict().items()}

    def project(name):
        rows = x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]
        return to_complex(rows.reshape(*x.shape[:2], heads, 2 * dims))

    q, k, v = (project(name) for name in ("query", "key", "value"))
    mean, ahead, fused = np.zeros_like(v), np.zeros_like(v), np.zeros_like(v)
    weights, evidence = np.zeros((len(x), heads, length, length)), np.zeros((len(x), length, heads))
    for h in range(heads):
        mu = float(scalars.alpha[h]) ** 2
        sigma2, eta2, gamma2, tau = (
            softplus(float(getattr(scalars, f"{name}_raw")[h])) for name in ("sigma2", "eta2", "gamma2", "tau")
        )
        rates = []
        for frequency in scalars.frequency[h].tolist():
            rates += [complex(-mu, frequency), complex(-mu, -frequency)]
        share = 1 / (1 + math.exp(-float(arrays["delta"][h])))
        for b, i in np.ndindex(len(x), length):
            scores, carried = [], []
            for j in range(i + 1):
                lag = float(times[i] - times[j])
                variance = sigma2 * (1 - math.exp(-2 * mu * lag)) / (2 * mu) + eta2 * math.exp(-2 * mu * lag) + gamma2
                move = np.array([cmath.exp(rate * lag) for rate in rates])
                scores.append(1 / (variance + np.sum(np.abs(q[b, i, h] - move * k[b, j, h]) ** 2)))
                carried.append(move * v[b, j, h])
            total = sum(score**tau for score in scores)
            mean[b, i, h] = sum(score**tau / total * value for score, value in zip(scores, carried, strict=True))
            fused[b, i, h] = (1 - share) * v[b, i, h] + share * mean[b, i, h]
            ahead[b, i, h] = np.array([cmath.exp(rate * config.step) for rate in rates]) * mean[b, i, h]
            evidence[b, i, h] = sum(scores)
            for j, score in enumerate(scores):
                weights[b, h, i, j] = score**tau / total * math.exp(-mu * float(times[i] - times[j]))

    def leave(latent):
        return to_real(latent).reshape(*x.shape[:2], -1) @ arrays["output.weight"].T + arrays["output.bias"]

    return leave(ahead), leave(mean), leave(fused), evidence, weights


def test_the_layer_is_the_loop():
    model, x = layer(), torch.randn(2, len(TIMES), 6, dtype=torch.float64)
    *expected, weights = loop(model, x.numpy(), TIMES)
    for actual, required in zip(model(x, TIMES), expected, strict=True):
        assert np.abs(actual.detach().numpy() - required).max() <= 1e-11
    assert np.abs(model.attention(x, TIMES).detach().numpy() - weights).max() <= 1e-12


def test_tokens_carried_to_a_row_are_what_attention_weighs():
    """The estimate is Σ_j A_ij of the carried tokens: the weights without the decay that is in them."""
    model = layer(n_heads=1)
    x, row = torch.randn(3, len(TIMES), 6, dtype=torch.float64), 5
    points = model.pulled_forward(x, TIMES, row)
    keep = torch.exp(-model.dynamics().mu * (TIMES[row] - TIMES[: row + 1]))
    weights = model.attention(x, TIMES)[:, 0, row, : row + 1] / keep
    assert torch.allclose(weights.sum(-1), torch.ones(3, dtype=torch.float64), atol=1e-12)
    mean = (weights[..., None] * points).sum(1)
    assert torch.allclose(mean, model(x, TIMES).estimate[:, row], atol=1e-10)


def test_the_filter_is_the_layer_between_an_orthonormal_embedding():
    model = AFAFilter(CONFIG).double()
    y = torch.randn(2, len(TIMES), 2, dtype=torch.float64)
    basis = model.embedding
    assert torch.allclose(basis.T @ basis, torch.eye(2, dtype=torch.float64), atol=1e-6)
    inner = model.layer(y @ basis.T, TIMES)
    assert torch.equal(model(y, TIMES).prediction, inner.prediction @ basis)


def test_transport_is_what_one_measurement_becomes():
    """The maps over the lags are the differences that an observation makes to what is carried."""
    model = AFAFilter(CONFIG).double()
    zero, row = torch.zeros(1, len(TIMES), 2, dtype=torch.float64), 4
    maps = model.transport(TIMES[row] - TIMES[: row + 1])
    for component in range(2):
        one = zero.clone()
        one[..., component] = 1
        difference = model.pulled_forward(one, TIMES, row) - model.pulled_forward(zero, TIMES, row)
        assert torch.allclose(difference[0], maps[:, :, component], atol=1e-12)
