"""The lag kernels, frames and parameters of a head, against closed forms computed elsewhere."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.dynamics import (
    Dynamics,
    DynamicsParameters,
    banded_decay,
    banded_frequencies,
    decay,
    full_frequencies,
    phi,
    positive,
    raw_from_positive,
    rotate,
    variance,
    wrapped_phase,
)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_phi_is_exact_over_sixteen_decades():
    for exponent in range(-16, 2):
        mu = 10.0**exponent
        expected = -np.expm1(-2.0 * mu) / (2.0 * mu)
        assert float(phi(double(mu), double(1.0))) == pytest.approx(expected, rel=1e-14)
    assert float(phi(double(0.0), double(3.0))) == 3.0


def test_phi_in_float32_stays_at_rounding():
    mu = torch.logspace(-9, 2, 500, dtype=torch.float32)
    exact = -np.expm1(-2.0 * mu.double().numpy()) / (2.0 * mu.double().numpy())
    assert phi(mu, torch.tensor(1.0)).numpy() == pytest.approx(exact, rel=3e-7)


@pytest.mark.parametrize("exponent", [0.0, 1e-12, 1e-7, 4e-6, 6e-6, 1e-3, 0.1, 1.0, 30.0])
def test_slope_of_phi(exponent):
    """d phi / d mu at lag 2, on both sides of the switch between series and quotient; -lag² at mu = 0."""
    lag = 2.0
    mu = double(exponent / (2 * lag)).requires_grad_()
    (slope,) = torch.autograd.grad(phi(mu, double(lag)).sum(), mu)
    # Taylor series where the closed form cancels: phi = lag Σ (-x)^n / (n + 1)!, x = 2 mu lag.
    x = exponent
    if x < 0.2:
        expected = lag * 2 * lag * sum(n * (-1) ** n * x ** (n - 1) / math.factorial(n + 1) for n in range(1, 14))
    else:
        expected = lag * 2 * lag * (math.exp(-x) * (x + 1) - 1) / x**2
    assert float(slope) == pytest.approx(expected, rel=1e-9)


def test_second_order_and_zero_lag_gradients_are_finite():
    mu = double(0.0, 0.3).requires_grad_()
    lag = double(0.0, 1e-12, 1.0, 1e6).requires_grad_()
    gradients = torch.autograd.grad(phi(mu, lag).sum() + decay(mu, lag).sum(), (mu, lag))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def test_variance_solves_the_lyapunov_equation():
    """Against Van Loan's matrix exponential: process noise of dx = -mu x dt + sigma dw, plus the transported eta²."""
    d = rfa_inputs(1, 1, 3, 2).dynamics
    for lag in (0.0, 0.3, 2.0, 11.0):
        for h in range(3):
            mu, sigma2, eta2, gamma2 = (float(x[h]) for x in (d.mu, d.sigma2, d.eta2, d.gamma2))
            block = expm(np.array([[mu, sigma2], [0.0, -mu]]) * lag)
            propagator = block[1, 1]
            expected = propagator * block[0, 1] + propagator**2 * eta2 + gamma2
            assert float(variance(d, double(lag))[h, 0]) == pytest.approx(expected, rel=1e-12)


def test_variance_has_its_limits():
    d = rfa_inputs(1, 1, 3, 2).dynamics
    assert torch.allclose(variance(d, double(0.0))[:, 0], d.eta2 + d.gamma2)
    far = variance(d, double(1e9))[:, 0]
    assert torch.allclose(far[1:], (d.sigma2 / (2 * d.mu) + d.gamma2)[1:])
    assert float(far[0]) == pytest.approx(float(d.sigma2[0]) * 1e9, rel=1e-8)
    assert float(decay(d.mu, double(1e9))[1, 0]) == 0.0


def test_integrative_heads_grow_sure_with_lag_and_diffusive_heads_unsure():
    """V = alpha E² + beta with alpha = eta² - sigma²/(2 mu): its sign decides the direction."""
    same = double(0.2, 0.2)
    d = Dynamics(same, double(1, 1)[:, None], double(0.04, 4.0), double(1, 1), double(1, 1), double(9, 9), double(1, 1))
    steps = variance(d, torch.linspace(0, 30, 50, dtype=torch.float64)).diff()
    assert bool((steps[0] < 0).all()) and bool((steps[1] > 0).all())


def test_kernels_broadcast_over_any_lag():
    d = rfa_inputs(1, 1, 3, 2).dynamics
    lag = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
    for kernel in (lambda x: decay(d.mu, x), lambda x: phi(d.mu, x), lambda x: variance(d, x)):
        assert kernel(lag).shape == (3, 2, 3, 4)
        assert torch.equal(kernel(lag)[:, 1, 2, 3], kernel(lag[1, 2, 3]))


@pytest.mark.parametrize("position", [0, 7, 10**6, 2**31])
def test_phase_keeps_its_digits_far_from_the_origin(position):
    """Python's exact integers reduce the turn; a product in float32 would be wrong by 0.05 rad at a million."""
    omega = double(1.0, -0.731, 1e-4)[None]
    phase = wrapped_phase(omega, torch.tensor([position]), torch.float32)
    assert phase.dtype == torch.float32 and phase.shape == (1, 1, 3)
    assert float(phase.abs().max()) <= math.pi + 1e-6
    exact = np.array([math.remainder(position * w, 2 * math.pi) for w in (1.0, -0.731, 1e-4)])
    turn = np.exp(1j * (phase[0, 0].numpy().astype(np.float64) - exact))
    assert np.abs(turn - 1).max() <= 2e-6


def test_rotation_is_a_complex_product():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 5, 3, 8, generator=generator, dtype=torch.float64)
    phase = torch.randn(5, 3, 4, generator=generator, dtype=torch.float64)
    expected = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(phase), phase)
    actual = rotate(x, phase)
    assert torch.allclose(torch.complex(actual[..., :4], actual[..., 4:]), expected, rtol=1e-14)
    assert torch.allclose(rotate(actual, -phase), x, rtol=1e-13)


@pytest.mark.parametrize("value", [1e-5, 0.01, 1.0, 37.0])
def test_positive_has_an_inverse(value):
    assert float(positive(raw_from_positive(value))) == pytest.approx(value, rel=1e-5)
    assert float(positive(torch.tensor(-1e4))) > 0


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-6])
def test_what_cannot_be_positive_is_refused(value):
    with pytest.raises(ValueError, match="value must be > 1e-06"):
        raw_from_positive(value)


def test_banded_frequencies_split_one_bank():
    heads, dims = 4, 6
    bands = banded_frequencies(heads, dims)
    assert bands.shape == (heads, dims)
    bank = np.sort([10000.0 ** (-n / (heads * dims / 2)) for n in range(heads * dims // 2)])
    assert np.sort(bands[bands > 0].numpy()) == pytest.approx(bank, rel=1e-14)
    assert torch.equal(bands[:, 0::2], -bands[:, 1::2])  # conjugate pairs
    assert bool((bands.amax(-1).diff() > 0).all())  # slow to fast
    assert float(bands.max()) == 1.0


def test_full_frequencies_repeat_one_bank():
    bank = full_frequencies(3, 4)
    assert bank[1].tolist() == pytest.approx([1.0, -1.0, 0.01, -0.01])
    assert torch.equal(bank, bank[:1].expand(3, 4))


@pytest.mark.parametrize("frequencies", [banded_frequencies, full_frequencies])
def test_frequencies_come_in_pairs(frequencies):
    with pytest.raises(ValueError, match="complex_dims must be even"):
        frequencies(2, 5)


def test_decay_follows_the_band_and_the_slowest_heads_have_none():
    """b = 0.05, 8 heads: two of them without decay."""
    mu = banded_decay(8, 4, 0.05)
    assert mu[:2].tolist() == [0.0, 0.0]
    assert mu[2:].tolist() == pytest.approx((0.05 * banded_frequencies(8, 4).amax(-1))[2:].tolist())
    assert float(mu[-1]) == 0.05


@torch.no_grad()
def test_parameters_start_as_published():
    """sigma²/(2 mu) = 0.1 where there is decay, eta² = gamma² = 1, nu = 4 D, tau = 1."""
    dims = 4
    d = DynamicsParameters(banded_frequencies(4, dims), banded_decay(4, dims, 0.05))()
    assert d.mu[0] == 0 and bool((d.mu[1:] > 0).all())
    assert (d.sigma2 / (2 * d.mu))[1:].tolist() == pytest.approx([0.1] * 3, rel=1e-4)
    assert float(d.sigma2[0]) == pytest.approx(0.01, rel=1e-4)
    for name, expected in (("eta2", 1.0), ("gamma2", 1.0), ("nu", 4 * dims), ("tau", 1.0)):
        assert getattr(d, name).tolist() == pytest.approx([expected] * 4, rel=1e-4)
    assert d.kappa.tolist() == pytest.approx([5.0] * 4, rel=1e-4)


def test_learned_parameters_stay_in_range_and_learn():
    module = DynamicsParameters(banded_frequencies(4, 2), banded_decay(4, 2, 0.05))
    for shift in (-50.0, 0.0, 50.0):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(shift)
        d = module()
        assert all(bool((getattr(d, name) > 0).all()) for name in ("sigma2", "eta2", "gamma2", "tau"))
        assert bool((d.nu >= 2).all())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    d = module()
    total = sum(getattr(d, name).sum() for name in ("sigma2", "eta2", "gamma2", "nu", "tau"))
    total.backward()
    assert all(bool((parameter.grad != 0).all()) for parameter in module.parameters())
    assert module.state_dict().keys() == {"process_raw", "eta2_raw", "gamma2_raw", "nu_raw", "tau_raw"}


def test_phi_has_the_right_slope_in_float32():
    """d phi / d mu against float64 over the range where the quotient form cancels."""
    for exponent in torch.linspace(-7, 1, 33).tolist():
        slopes = []
        for dtype in (torch.float32, torch.float64):
            mu = torch.tensor([10.0**exponent], dtype=torch.float32).to(dtype).requires_grad_()
            (slope,) = torch.autograd.grad(phi(mu, torch.tensor(1.0, dtype=dtype)).sum(), mu)
            slopes.append(float(slope))
        assert slopes[0] == pytest.approx(slopes[1], rel=1e-5)
