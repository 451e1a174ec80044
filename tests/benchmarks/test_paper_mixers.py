"""Further systems of the papers as token mixers: float64 loops, gradients, caches, and their laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rfa.benchmarks.papers.afa.layer import RationalDynamics
from rfa.benchmarks.papers.estimators import measure
from rfa.benchmarks.papers.polar_mixer import radial_tangential_irls
from rfa.benchmarks.papers.radial_mixer import geodesic, unit
from rfa.benchmarks.papers.tensor_mixer import Channels, kernels, separable_distance
from rfa.model.attention.api import robust_filter_attention
from rfa.model.dynamics import Dynamics
from rfa.model.language import LanguageModel
from rfa.model.layers import LayerState
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.language_config import load_variants
from tests.benchmarks.paper_loops import mixed

VARIANTS = load_variants()
SYSTEMS = [
    "polar", "polar-tangent", "AFAT", "tensor", "tensor-separate", "tensor-structured", "tensor-separable",
    "tensor-floor", "unrolled-K1", "unrolled-K3", "unrolled-key", "stack-K1", "stack-K2",
]  # fmt: skip
CACHED = ["B1", "B2", "B3", "B4", "M2-even", "M2-drift", "M2-ahead", "AFA", "RT", "RT-geodesic", *SYSTEMS[:8]]
SIZES = {"vocab_size": 11, "d_model": 16, "n_layers": 2, "n_heads": 2, "head_dim": 6, "mlp_ratio": 2}


def model(name, **changes):
    """A tiny float64 model with every number moved away from its start."""
    torch.manual_seed(0)
    values = {**SIZES, **VARIANTS[name]["model"], "n_layers": 2, "d_model": 16}
    made = LanguageModel(LanguageModelConfig.from_dict({**values, **changes})).double()
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            if parameter.dim() == 1 or ".dynamics." in key or key.endswith(("gate", "gain", "value_key")):
                parameter.add_(0.4 * torch.randn_like(parameter))
    made.mode = "attention"
    return made.eval().requires_grad_(False)


def states(batch=2, length=7):
    return torch.randn(batch, length, SIZES["d_model"], dtype=torch.float64)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_mixer_is_its_loop(name):
    made, x = model(name).blocks[0].mixer, states()
    actual = made.attention(x, with_precision=True)
    expected = mixed(name, {key: value.numpy() for key, value in made.state_dict().items()}, x, SIZES["n_heads"])
    for found, value in zip((actual.out, actual.log_precision, actual.latent), expected, strict=True):
        assert np.linalg.norm(value) > 0.1
        assert np.linalg.norm(found.numpy() - value) <= 1e-12 * np.linalg.norm(value)


@pytest.mark.parametrize("name", ["M2-open", "M2-linear", "M2-drift", "M2-ahead", "RT-geodesic", *SYSTEMS])
def test_gradients_are_those_of_differences(name):
    made, x = model(name, n_heads=1, head_dim=2).blocks[0].mixer, states(1, 3).requires_grad_()
    names = [key for key, _ in made.named_parameters() if not key.endswith("weight")]
    scalars = [made.get_parameter(key).clone().requires_grad_() for key in names]

    def run(x, *values):
        out = torch.func.functional_call(
            Caller(made), {f"mixer.{k}": v for k, v in zip(names, values, strict=True)}, (x,)
        )
        return out[0], out[1]

    assert torch.autograd.gradcheck(run, (x, *scalars))


class Caller(torch.nn.Module):
    """A mixer's attention as `forward`."""

    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, x):
        mixed_here = self.mixer.attention(x, with_precision=True)
        return mixed_here.out, mixed_here.log_precision


@pytest.mark.parametrize("name", CACHED)
def test_pieces_with_a_cache_are_the_whole_sequence(name):
    made, tokens = model(name), torch.randint(11, (2, 7))
    whole = made(tokens)
    cache = made.init_cache(2, 9)
    cache = cache._replace(keys=cache.keys.double(), values=cache.values.double())
    start = 0
    for piece in (3, 1, 3):
        output, keys, values = made.extend(tokens[:, start : start + piece], cache)
        for stored, new in ((cache.keys, keys), (cache.values, values)):
            stored[:, :, :, start : start + piece] = new
        start += piece
        cache = cache._replace(position=cache.position + piece)
        torch.testing.assert_close(output.logits, whole.logits[:, start - 1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(output.log_precision, whole.log_precision[:, start - 1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*SYSTEMS, "RT-geodesic"])
def test_future_tokens_change_nothing(name):
    made, tokens = model(name), torch.randint(11, (2, 7))
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 11
    for before, after in zip(made(tokens), made(changed), strict=True):
        assert torch.equal(before[:, :4], after[:, :4])


def equal_channels(heads=2, dims=4):
    """Channels of which all of a head are equal, and the same as `Dynamics`."""
    mu, steady, eta2, gamma2 = (torch.rand(heads, 1, dtype=torch.float64) * 0.5 + 0.1 for _ in range(4))
    channels = Channels(*(part.expand(-1, dims) for part in (mu, steady, eta2, gamma2)))
    return channels, (mu[:, 0], 2 * (mu * steady)[:, 0], eta2[:, 0], gamma2[:, 0])


def test_tensor_rfa_of_equal_channels_is_rfa():
    made = model("tensor").blocks[0].mixer
    own = made.dynamics.match
    for raw in (own.mu_raw, own.process_raw, own.eta2_raw, own.gamma2_raw):
        raw.copy_(raw[:, :1].expand_as(raw).clone())
    channels, x = made.dynamics.match(), states()
    plain = Dynamics(
        mu=channels.mu[:, 0],
        omega=made.dynamics.omega,
        sigma2=2 * (channels.mu * channels.steady)[:, 0],
        eta2=channels.eta2[:, 0],
        gamma2=channels.gamma2[:, 0],
        nu=2 + 6 * (torch.nn.functional.softplus(made.dynamics.nu_raw) + 1e-6),
        tau=torch.nn.functional.softplus(made.dynamics.tau_raw) + 1e-6,
    )
    q, k, v = (weight(x).reshape(2, 7, 2, 12) for weight in (made.query, made.key, made.value))
    expected = robust_filter_attention(q, k, v, plain)
    actual = made.attention(x, with_precision=True)
    torch.testing.assert_close(actual.latent, expected.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(actual.log_precision, expected.precision.log(), rtol=1e-12, atol=1e-12)


LAGS = torch.linspace(0, 60, 301, dtype=torch.float64)


def test_structured_noise_solves_its_differential_equation():
    """dS/dt = -2 mu S + q(t), S(0) = 0; a = 0 is white noise; V stays positive for |a| < 1."""
    channels, _ = equal_channels()
    wave = tuple(torch.full_like(channels.mu, value) for value in (0.99, 0.03, 0.7))
    fine = torch.linspace(0, 20, 200_001, dtype=torch.float64)

    def process(wave):
        kept, precision = kernels(channels._replace(wave=wave), fine)
        return 1 / precision - (channels.eta2[..., None] * kept.square() + channels.gamma2[..., None])

    grown = process(wave)
    slope = torch.gradient(grown, spacing=float(fine[1]), dim=-1, edge_order=2)[0]
    mu, steady = channels.mu[..., None], channels.steady[..., None]
    rate = 2 * mu * steady * (1 + 0.99 * torch.exp(-0.03 * fine) * torch.cos(0.7 * fine))
    torch.testing.assert_close(slope, rate - 2 * mu * grown, rtol=0, atol=1e-7)
    assert float(grown[..., 0].abs().max()) < 1e-15 and float(grown.min()) > -1e-15
    still = tuple(torch.zeros_like(channels.mu) + value for value in (0.0, 0.03, 0.7))
    torch.testing.assert_close(process(still), process(None), rtol=0, atol=1e-14)


def test_separable_precision_meets_the_exact_one_at_both_ends_and_lies_below_it():
    channels, _ = equal_channels()
    for eta2 in (0.05, 3.0):  # diffusive and integrative
        case = channels._replace(eta2=torch.full_like(channels.eta2, eta2))
        (_, exact), (_, near) = kernels(case, LAGS), kernels(case, LAGS, "separable")
        torch.testing.assert_close(near[..., 0], exact[..., 0], rtol=1e-12, atol=0)
        far = torch.tensor([1e4], dtype=torch.float64)
        torch.testing.assert_close(kernels(case, far, "separable")[1], kernels(case, far)[1], rtol=1e-12, atol=0)
        small = torch.tensor([0.0, 1e-6], dtype=torch.float64)
        slopes = [
            (part[..., 1] - part[..., 0]) / 1e-6
            for part in (kernels(case, small)[1], kernels(case, small, "separable")[1])
        ]
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-4, atol=1e-9)
        assert bool((near <= exact * (1 + 1e-12)).all())
        assert bool((near.diff(dim=-1).sign() == exact.diff(dim=-1).sign())[..., :60].all())  # monotone the same way


def test_the_separable_distance_needs_no_tensor_of_pairs_and_channels():
    channels, times = equal_channels()[0], torch.arange(9, dtype=torch.float64)
    q, k = torch.randn(2, 2, 9, 2, 8, dtype=torch.float64)
    kept, precision = kernels(channels, (times[:, None] - times).clamp_min(0), "separable")
    complex_q, complex_k = (torch.complex(*part.chunk(2, -1)) for part in (q, k))
    expected = torch.zeros(2, 2, 9, 9, dtype=torch.float64)
    for i in range(9):
        for j in range(i + 1):
            off = complex_q[:, i] - kept[:, :, i, j] * complex_k[:, j]
            expected[:, :, i, j] = (precision[:, :, i, j] * off.abs().square()).sum(-1)
    found = separable_distance(q, k, channels, times)
    torch.testing.assert_close(found.tril(), expected, rtol=1e-11, atol=1e-11)


def test_the_geodesic_step_stays_on_the_sphere_and_is_the_tangent_step_to_second_order():
    u = unit(torch.randn(50, 8, dtype=torch.float64))
    direction = torch.randn(50, 8, dtype=torch.float64)
    direction = unit(direction - (direction * u).sum(-1, keepdim=True) * u)
    gaps = {"plane": [], "normalised": []}
    for size in (1e-2, 1e-3):
        moved = geodesic(u, size * direction)
        torch.testing.assert_close(moved.norm(dim=-1), torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-11)
        gaps["plane"].append(float((moved - (u + size * direction)).norm(dim=-1).max()))
        gaps["normalised"].append(float((moved - unit(u + size * direction)).norm(dim=-1).max()))
    assert gaps["plane"][0] / gaps["plane"][1] == pytest.approx(100, rel=0.01)
    assert gaps["normalised"][0] < 1e-6
    torch.testing.assert_close(geodesic(u, torch.zeros_like(u)), u, rtol=0, atol=1e-12)


def rational(gamma2=0.5, mu=0.0, sigma2=0.0):
    def head(value):
        return torch.tensor([value], dtype=torch.float64)

    omega = torch.tensor([[0.4, -0.4]], dtype=torch.float64)
    return RationalDynamics(head(mu), omega, head(sigma2), head(0.5), head(gamma2), head(1.0), head(1.0))


def test_irls_in_magnitude_and_direction_keeps_an_exact_trajectory_and_mends_an_outlier():
    dynamics, times = rational(mu=0.02), torch.arange(24, dtype=torch.float64)
    clean = torch.exp((-0.02 + 1j * dynamics.omega[0]) * times[:, None]) * torch.tensor([1.0 + 0.5j, -0.3 + 0.8j])
    z = torch.cat([clean.real, clean.imag], -1)[None, :, None]
    same = radial_tangential_irls(z, times, (dynamics, dynamics), passes=3)
    torch.testing.assert_close(same, z, rtol=0, atol=1e-11)
    noisy = z + 0.1 * torch.randn_like(z)
    noisy[:, 20] += 4.0
    errors = [
        float((radial_tangential_irls(noisy, times, (dynamics, dynamics), passes=n) - z)[:, 8:].norm())
        for n in range(4)
    ]
    assert errors[1] < 0.8 * errors[0] and errors[3] < errors[1]


def test_estimators_of_a_known_system():
    """The figures of docs/QUALITY.md; those of the printed systems are no better for more passes."""
    found = measure()
    assert found["IRKF, capped"] < found["Kalman filter"] < found["Algorithm 4, K = 1"] < found["measurements"]
    assert found["Algorithm 4, K = 4"] > 0.95 * found["Algorithm 4, K = 1"]
    assert found["IRLS of estimates, 4 passes"] > 0.95 * found["IRLS of estimates, 1 passes"]
    assert found["magnitude and direction, 4 passes"] < 0.8 * found["magnitude and direction, 1 passes"]


@pytest.mark.parametrize("confidence", ["open", "even"])
def test_the_gate_turns_from_the_own_value_to_the_estimate(confidence):
    gate = model(f"M2-{confidence}").blocks[0].mixer.confidence
    gate.scale.fill_(1.0)
    ends = gate.gate(torch.tensor([[1e-12] * 2, [1e12] * 2], dtype=torch.float64))
    assert float(ends[0].max()) < 1e-9 and float(ends[1].min()) > 1 - 1e-9


@pytest.mark.parametrize("kind", ["open", "balanced", "linear"])
def test_slots_with_a_gate_are_fused_with_the_own_values(kind):
    mixer = model("both", confidence=kind).blocks[0].mixer
    plain = model("both").blocks[0].mixer
    plain.load_state_dict({k: v for k, v in mixer.state_dict().items() if not k.startswith("confidence.")})
    x, positions = states(), torch.arange(7)
    start = LayerState(*(part.double().expand(2, *part.shape) for part in mixer.initial_state()))
    estimate, fused = (each.recurrent(x, positions, start)[0] for each in (plain, mixer))
    p, own = np.exp(estimate.log_precision.numpy()), mixer.value(x).reshape(2, 7, 2, 12).numpy()
    gate = 1 / (1 + np.exp(mixer.confidence.offset.numpy() - mixer.confidence.scale.numpy() * np.log(p)))[..., None]
    expected = gate * estimate.latent.numpy() + (1 - gate) * own
    if kind == "linear":
        gate = 1 / (1 + np.exp(mixer.confidence.offset.numpy() - mixer.confidence.scale.numpy() * p))[..., None]
        share = 1 / (1 + np.exp(-mixer.confidence.delta_raw.numpy()))[:, None]
        expected = (1 - share) * gate * estimate.latent.numpy() + share * own
    np.testing.assert_allclose(fused.latent.numpy(), expected, rtol=0, atol=1e-12)
    state = start
    for i in range(7):
        found, state = mixer.step(x[:, i], torch.full((2,), i), state, None)
        torch.testing.assert_close(found.latent, fused.latent[:, i], rtol=1e-12, atol=1e-12)


def test_biases_filter_a_system_with_drift_exactly():
    """Of dx = (lambda x + u) dt measured with bias b, the values with the bias u / lambda - b follow the trajectory."""
    mu, times = 0.1, torch.arange(9, dtype=torch.float64)
    omega = torch.tensor([[0.7, -0.7]], dtype=torch.float64)
    rate, u, b = -mu + 1j * omega[0], torch.tensor([0.3 + 0.1j, 0.3 - 0.1j]), torch.tensor([2.0 + 0j, 2.0 + 0j])
    start = torch.tensor([1.0 - 2j, 0.5 + 1j])
    x = torch.exp(rate * times[:, None]) * (start + u / rate) - u / rate
    z, beta = x + b, u / rate - b
    shifted = torch.cat([(z + beta).real, (z + beta).imag], -1)[None, :, None]

    def head(value):
        return torch.tensor([value], dtype=torch.float64)

    dynamics = Dynamics(head(mu), omega, head(0.2), head(0.5), head(0.5), head(4.0), head(1.0))
    result = robust_filter_attention(shifted, shifted, shifted, dynamics)
    estimate = torch.complex(*result.out[0, :, 0].chunk(2, -1)) - beta
    torch.testing.assert_close(estimate, z.to(torch.complex128), rtol=0, atol=1e-12)
    assert float(result.precision[0, -1, 0]) > float(result.precision[0, 0, 0])


def test_a_horizon_predicts_the_trajectory_with_less_precision():
    times = torch.arange(9, dtype=torch.float64)
    omega = torch.tensor([[0.7, -0.7]], dtype=torch.float64)

    def head(value):
        return torch.tensor([value], dtype=torch.float64)

    dynamics = Dynamics(head(0.1), omega, head(0.2), head(0.5), head(0.5), head(4.0), head(1.0))
    x = torch.exp((-0.1 + 1j * omega[0]) * times[:, None]) * torch.tensor([1.0 - 2j, 0.5 + 1j])
    z = torch.cat([x.real, x.imag], -1)[None, :, None]
    ahead = z * math.exp(-0.1 * 2)  # the query is the state expected at the horizon
    now = robust_filter_attention(z, z, z, dynamics)
    result = robust_filter_attention(ahead, z, z, dynamics, horizon=2.0)
    expected = torch.complex(*ahead[0, :, 0].chunk(2, -1)) * torch.exp(2j * omega[0])
    torch.testing.assert_close(torch.complex(*result.out[0, :, 0].chunk(2, -1)), expected, rtol=0, atol=1e-12)
    assert bool((result.precision < now.precision).all())
    with pytest.raises(ValueError, match="horizon"):
        robust_filter_attention(z, z, z, dynamics, horizon=-1.0)
    with pytest.raises(ValueError, match=r"impl='triton' cannot be used here: .*horizon"):
        robust_filter_attention(z, z, z, dynamics, horizon=1.0, impl="triton")
