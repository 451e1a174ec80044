"""The lag kernels, frames and parameters of a head, against closed forms computed elsewhere."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.dynamics import (
    DynamicsParameters,
    banded_decay,
    banded_frequencies,
    phi,
    positive,
    raw_from_positive,
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


@pytest.mark.parametrize("value", [1e-5, 0.01, 1.0, 37.0])
def test_positive_has_an_inverse(value):
    assert float(positive(raw_from_positive(value))) == pytest.approx(value, rel=1e-5)
    assert float(positive(torch.tensor(-1e4))) > 0


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-6])
def test_what_cannot_be_positive_is_refused(value):
    with pytest.raises(ValueError, match="value must be > 1e-06"):
        raw_from_positive(value)


def test_decay_follows_the_band_and_the_slowest_heads_have_none():
    """b = 0.05, 8 heads: two of them without decay."""
    mu = banded_decay(8, 4, 0.05)
    assert mu[:2].tolist() == [0.0, 0.0]
    assert mu[2:].tolist() == pytest.approx((0.05 * banded_frequencies(8, 4).amax(-1))[2:].tolist())
    assert float(mu[-1]) == 0.05


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
