"""Continuous measurements and attention in both directions, against integrations and smoothers of their own."""

import cmath
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from rfa.benchmarks.papers.smoothing.continuous import (
    ContinuousSystem,
    filter_signal,
    stationary,
    update,
    variance,
)
from rfa.benchmarks.papers.smoothing.two_sided import bidirectional_attention, smooth, smoother_weights
from rfa.model.dynamics import Dynamics

SYSTEM = ContinuousSystem(
    np.array([-0.3 + 1j, -1e-3 - 2j, 0.2 + 0.5j, 1j]),
    np.array([0.4, 0.1, 0.0, 0.3]),
    np.array([1.0, 0.5 + 0.5j, 2.0, 1j]),
    np.array([0.2, 0.1, 0.5, 0.3]),
)
TIMES = np.array([0.0, 0.3, 0.3, 1.1, 4.0, 4.2, 9.0])


def integrated(mode, mean, start, signal, time):
    """The differential equations of mean and variance of one mode, by steps of order eight."""
    rate, process, gain, noise = (part[mode] for part in SYSTEM)

    def slope(_, state):
        x, v = complex(state[0], state[1]), state[2]
        dx = rate * x + v * gain.conjugate() / noise * (signal - gain * x)
        return [dx.real, dx.imag, 2 * rate.real * v + process - abs(gain) ** 2 / noise * v * v]

    found = solve_ivp(slope, (0, time), [mean.real, mean.imag, start], "DOP853", rtol=1e-13, atol=1e-15)
    return complex(*found.y[:2, -1]), found.y[2, -1]


@pytest.mark.parametrize("start", [0.0, 0.05, 7.0])
@pytest.mark.parametrize("time", [0.01, 0.7, 3.0])
def test_mean_and_variance_solve_the_differential_equations(start, time):
    """From below and above the stationary variance: tanh and coth."""
    mean, signal = np.array([1 - 1j, 0.3, 2j, -1.0]), np.array([0.4 + 1j, -0.2, 1.0, 0.5j])
    found = update(SYSTEM, mean, np.full(4, start), signal, time)
    for mode in range(4):
        x, v = integrated(mode, mean[mode], start, signal[mode], time)
        assert abs(found[0][mode] - x) <= 1e-12 * max(1, abs(x))
        assert abs(found[1][mode] - v) <= 1e-12 * max(1, v)


def test_it_is_the_tanh_of_the_paper_with_its_argument_mended():
    rate, process, gain, noise = (part[0] for part in SYSTEM)
    alpha, information = rate.real, abs(gain) ** 2 / noise
    beta = math.sqrt(alpha**2 + process * information)
    shift = math.log((beta - alpha) / (beta + alpha)) / 2
    for time in (0.0, 0.2, 5.0):
        expected = (alpha + beta * math.tanh(beta * time + shift)) / information
        assert variance(SYSTEM, np.zeros(4), time)[0] == pytest.approx(expected, rel=1e-13, abs=1e-15)


def test_limits_of_the_variance():
    infinite = variance(SYSTEM, np.full(4, np.inf), 1e-7)
    assert infinite * np.abs(SYSTEM.gain) ** 2 / SYSTEM.measurement * 1e-7 == pytest.approx(np.ones(4), rel=1e-5)
    assert variance(SYSTEM, np.full(4, 3.0), 1e5) == pytest.approx(stationary(SYSTEM), rel=1e-12)
    vague = SYSTEM._replace(measurement=np.full(4, 1e9))
    alpha = SYSTEM.rate.real
    lyapunov = np.where(
        alpha == 0, SYSTEM.process * 2, SYSTEM.process * np.expm1(4 * alpha) / (2 * alpha + (alpha == 0))
    )
    assert variance(vague, np.zeros(4), 2.0) == pytest.approx(lyapunov, abs=1e-7)
    with pytest.raises(ValueError, match="process noise"):
        variance(SYSTEM._replace(rate=1j * SYSTEM.rate.imag, process=np.zeros(4)), np.ones(4), 1.0)


def test_a_step_is_two_of_half_its_length():
    signal = np.tile([[0.4 + 1j, -0.2, 1.0, 0.5j]], (3, 1))
    whole = filter_signal(SYSTEM, signal, 0.6, np.full(4, np.inf))
    halves = filter_signal(SYSTEM, signal.repeat(2, axis=0), 0.3, np.full(4, np.inf))
    for one, two in zip(whole, halves, strict=True):
        assert np.abs(one - two[1::2]).max() <= 1e-12 * np.abs(one).max()


def test_dense_samples_approach_it_at_first_order():
    """A Kalman filter of n samples with noise r n / time each."""
    rate, process, gain, noise = (part[0] for part in SYSTEM)
    time, signal, start = 0.8, 0.4 + 1j, 2.0
    mean, spread = update(SYSTEM, np.zeros(4, complex), np.full(4, start), np.full(4, signal), time)
    errors = []
    for n in (200, 400, 800):
        x, v, dt = 0j, start, time / n
        for _ in range(n):
            move, kept = cmath.exp(rate * dt), math.exp(2 * rate.real * dt)
            x, v = move * x, kept * v + process * (kept - 1) / (2 * rate.real)
            share = v * gain.conjugate() / (abs(gain) ** 2 * v + noise / dt)
            x, v = x + share * (signal - gain * x), (1 - share * gain).real * v
        errors.append(abs(x - mean[0]) + abs(v - spread[0]))
    assert errors[0] < 0.01
    assert errors[1] / errors[0] == pytest.approx(0.5, abs=0.02)
    assert errors[2] / errors[1] == pytest.approx(0.5, abs=0.02)


def dynamics(sigma2=0.3, gamma2=0.4, nu=5.0, mu=0.2, heads=1):
    def every(x):
        return torch.full((heads,), x, dtype=torch.float64)

    omega = torch.linspace(-1, 2, 3 * heads, dtype=torch.float64).reshape(heads, 3)
    return Dynamics(every(mu), omega, every(sigma2), every(0.5), every(gamma2), every(nu), every(0.7))


def pairs(q, k, v, d, kernel):
    """Every key carried to every query by its own rate, and weighed: nothing is rotated or divided in advance."""
    length, heads, dims = q.shape
    out, log_norm, precision = np.zeros_like(v), np.zeros((length, heads)), np.zeros((length, heads))
    for h in range(heads):
        mu, sigma2, eta2, gamma2, nu, tau = (float(x[h]) for x in (d.mu, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau))
        kappa = (nu + dims) / dims
        for i in range(length):
            scores, values = [], []
            for j in range(length):
                lag = TIMES[i] - TIMES[j]
                noise = abs(math.expm1(-2 * mu * lag)) / (2 * mu) if mu else abs(lag)
                p = 1 / (sigma2 * noise + eta2 * math.exp(-2 * mu * lag) + gamma2)
                move = np.array([cmath.exp(complex(-mu, w) * lag) for w in d.omega[h].tolist()])
                x = p * np.sum(np.abs(q[i, h] - move * k[j, h]) ** 2) / nu
                robust = kernel == "student_t"
                scores.append((p * (1 + x) ** -kappa if robust else p) ** tau)
                precision[i, h] += p / (1 + x) if robust else p
                values.append(move * v[j, h])
            out[i, h] = sum(s / sum(scores) * x for s, x in zip(scores, values, strict=True))
            log_norm[i, h] = math.log(sum(scores))
    return out, log_norm, precision


@pytest.mark.parametrize("kernel", ["student_t", "precision"])
@pytest.mark.parametrize("mu", [0.0, 0.2])
def test_attention_in_both_directions_is_its_loop(kernel, mu):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3, len(TIMES), 2, 3)) + 1j * rng.normal(size=(3, len(TIMES), 2, 3))
    d = dynamics(mu=mu, heads=2)
    inputs = [torch.from_numpy(np.concatenate([x.real, x.imag], -1))[None] for x in z]
    found = bidirectional_attention(*inputs, d, torch.from_numpy(TIMES), kernel)
    out, log_norm, precision = pairs(*z, d, kernel)
    assert np.abs(found.out[0].numpy() - np.concatenate([out.real, out.imag], -1)).max() <= 1e-12
    assert np.abs(found.log_norm[0].numpy() - log_norm).max() <= 1e-12
    assert np.abs(found.precision[0].numpy() - precision).max() <= 1e-12 * precision.max()


def test_its_gradients():
    times = torch.from_numpy(TIMES)
    inputs = [torch.randn(1, len(TIMES), 1, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    names = ("mu", "sigma2", "eta2", "gamma2", "nu", "tau")
    scalars = [getattr(dynamics(), name).clone().requires_grad_() for name in names]

    def run(q, k, v, *values):
        made = Dynamics(omega=dynamics().omega, **dict(zip(names, values, strict=True)))
        return bidirectional_attention(q, k, v, made, times).out

    assert torch.autograd.gradcheck(run, (*inputs, *scalars))


def test_far_keys_of_a_fast_decay_do_not_overflow():
    inputs = [torch.randn(1, 3, 1, 6, dtype=torch.float64) for _ in range(3)]
    found = bidirectional_attention(*inputs, dynamics(mu=5.0), torch.tensor([0.0, 1e3, 1e6], dtype=torch.float64))
    assert all(bool(part.isfinite().all()) for part in found)


def rts(z, mu, sigma2, noise, omega, prior):
    """Rauch, Tung and Striebel's smoother of one complex mode: forwards, then backwards."""
    means, spreads, ahead = [], [], []
    mean, spread = 0j, prior
    for i, value in enumerate(z):
        lag = TIMES[i] - TIMES[i - 1] if i else 0.0
        move = cmath.exp(complex(-mu, omega) * lag)
        mean, spread = move * mean, math.exp(-2 * mu * lag) * spread + sigma2 * -math.expm1(-2 * mu * lag) / (2 * mu)
        ahead.append((move, mean, spread))
        gain = 0.0 if math.isinf(noise[i]) else spread / (spread + noise[i])
        mean, spread = mean + gain * (value - mean), (1 - gain) * spread
        means.append(mean)
        spreads.append(spread)
    for i in range(len(z) - 2, -1, -1):
        move, before, variance = ahead[i + 1]
        gain = spreads[i] * move.conjugate() / variance
        means[i] += gain * (means[i + 1] - before)
        spreads[i] += abs(gain) ** 2 * (spreads[i + 1] - variance)
    return np.array(means), np.array(spreads)


@pytest.mark.parametrize("sigma2", [0.0, 0.3])
def test_smoother_weights_are_those_of_the_rts_smoother(sigma2):
    rng = np.random.default_rng(1)
    z = rng.normal(size=len(TIMES)) + 1j * rng.normal(size=len(TIMES))
    noise = np.array([0.5, 0.2, np.inf, 1.0, 0.4, 0.1, 0.7])
    mu, omega, prior = 0.2, 1.3, 2.5
    weights, precision = smoother_weights(mu, sigma2, 1 / noise, TIMES, 1 / prior)
    turn = np.exp(1j * omega * TIMES)
    means, spreads = rts(z, mu, sigma2, noise, omega, prior)
    assert np.abs(turn * (weights @ (z / turn)) - means).max() <= 1e-12
    assert np.abs(1 / precision - spreads).max() <= 1e-12


def test_without_process_noise_attention_by_precision_is_the_smoother():
    """And only then: pairs are independent given the state. With process noise it differs."""
    rng = np.random.default_rng(2)
    z = rng.normal(size=(len(TIMES), 3)) + 1j * rng.normal(size=(len(TIMES), 3))
    inputs = torch.from_numpy(np.concatenate([z.real, z.imag], -1))[None, :, None]

    def difference(sigma2):
        d = dynamics(sigma2=sigma2, gamma2=0.0)
        d = Dynamics(d.mu, d.omega, d.sigma2, d.eta2, d.gamma2, d.nu, torch.ones_like(d.tau))
        found = bidirectional_attention(inputs, inputs, inputs, d, torch.from_numpy(TIMES), "precision")
        means, precision = smooth(z, d, TIMES)
        out = found.out[0, :, 0].numpy()
        return np.abs(out[:, :3] + 1j * out[:, 3:] - means).max(), np.abs(found.precision[0, :, 0].numpy() - precision)

    error, of_precision = difference(0.0)
    assert error <= 1e-12
    assert of_precision.max() <= 1e-12 * 20
    assert difference(0.3)[0] > 1e-2


def test_robust_passes_resist_an_outlier():
    times = np.arange(40.0)
    d = dynamics(sigma2=0.01, gamma2=0.0)
    truth = np.exp(np.multiply.outer(times, -0.2 + 1j * d.omega[0].numpy())) * 5
    z = truth + 0.3 * np.random.default_rng(3).normal(size=truth.shape)
    far = z.copy()
    far[20] += 50.0
    plain, robust = (
        np.abs(smooth(far, d, times, passes=k)[0] - smooth(z, d, times, passes=k)[0]).max() for k in (0, 4)
    )
    assert robust < plain / 20
