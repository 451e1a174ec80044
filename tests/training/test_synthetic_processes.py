"""Synthetic series: the laws of levels, of random processes and of dynamical systems.

Where a law is of a mean, the tolerance is five standard errors, taken from the sample itself.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.signal import lfilter

from rfa.training.synthetic import autoregression as ar
from rfa.training.synthetic import (
    chaos,
    gaussian,
    linear_sde,
    regimes,
    systems,
    trends,
)
from rfa.training.synthetic import nonlinear_sde as nonlinear
from rfa.training.synthetic import recursions as steps_of
from rfa.training.synthetic.clock import Clock, draw_clock
from tests.training.synthetic_samples import correlation, near, regular_clock, rng_of

# Levels.


def test_the_increments_of_walks_grow_with_the_root_of_the_lag() -> None:
    steps = np.cumsum(np.tile([1.0, 4.0], 400))
    times = np.tile(steps, (400, 1))
    x = trends.walk(rng_of(), Clock(times, np.ones(400), np.zeros(400, bool)))
    moved = np.abs(np.diff(x, axis=1))
    ratio = np.median(moved[:, ::2], axis=1) / np.median(moved[:, 1::2], axis=1)
    # The median of plain walks; an eighth is integrated, whose increments grow with the lag: its share moves the median
    # by up to an eighth of the deviation that a ratio of medians has, 1.17 √(2/400) of it.
    assert abs(np.median(ratio) - 2) < 2 * 1.17 * np.sqrt(2 / 400) * (1 / 8 * 2.5 + 5 * 1.25 / np.sqrt(400))
    plain = np.diff(trends.walk(rng_of(1), regular_clock(400, 1088)), axis=1)
    # An increment tells nothing of the next, but in the integrated eighth and, slightly, where the walk returns.
    assert abs(np.median(correlation(plain, 1))) < 1 / np.sqrt(1088)


@pytest.mark.parametrize("name", [*gaussian.SMOOTH, "periodic"])
def test_gaussian_processes_have_the_covariance_of_their_kernel(name: str) -> None:
    count, scale = 4000, 7.0
    lags = np.array([0.0, 1.0, 3.5, 8.0, 20.0])
    u = lags / scale
    if name == "periodic":
        frequency = gaussian.periodic_frequencies(rng_of(), np.full(count, 12.0), np.full(count, 0.8), 48)
        kernel = np.exp(-2 * np.sin(np.pi * lags / 12) ** 2 / 0.8**2)
    else:
        frequency = gaussian.SMOOTH[name](rng_of(), np.full(count, scale), 48)
        kernel = {
            "rbf": np.exp(-(u**2) / 2),
            "matern_3": (1 + np.sqrt(3) * u) * np.exp(-np.sqrt(3) * u),
            "matern_5": (1 + np.sqrt(5) * u + 5 * u**2 / 3) * np.exp(-np.sqrt(5) * u),
            "rational_quadratic": 1 / (1 + u**2 / 2),
        }[name]
    x = gaussian.features(rng_of(1), np.tile(lags, (count, 1)), frequency)
    near(x * x[:, :1], kernel)
    near(x, 0.0)


# Processes.


def test_recursions_are_those_of_scipy_and_numpy() -> None:
    e = rng_of().standard_normal((3, 200))
    c = np.array([[0.5, -0.3], [0.2, 0.1], [-0.7, 0.2]])
    for lag in (1, 12):
        found = steps_of.autoregress(e, c, np.full(3, lag))
        for row in range(3):
            polynomial = np.zeros(2 * lag + 1)
            polynomial[[0, lag, 2 * lag]] = 1, *-c[row]
            # Terms of some tens, summed in another order.
            assert np.allclose(found[row], lfilter([1.0], polynomial, e[row]), atol=1e-12)
    decay = rng_of(1).uniform(0, 1, (3, 200))
    relaxed = np.zeros(3)
    turned = np.zeros(3, complex)
    angle = rng_of(2).uniform(0, 3, (3, 200))
    one, two = steps_of.relax(decay, e), steps_of.rotate(decay, np.cos(angle), np.sin(angle), e, e[:, ::-1])
    for n in range(200):
        relaxed = relaxed * decay[:, n] * (n > 0) + e[:, n]
        turned = turned * decay[:, n] * np.exp(1j * angle[:, n]) + e[:, n] + 1j * e[:, -n - 1]
        assert np.allclose(one[:, n], relaxed, atol=1e-12) and np.allclose(two[:, n], turned.real, atol=1e-12)
    at, nodes = np.sort(rng_of(3).uniform(0, 50, (3, 200))), np.sort(rng_of(4).uniform(5, 45, (3, 9)))
    values = rng_of(5).standard_normal((3, 9))
    expected = [np.interp(*row) for row in zip(at, nodes, values, strict=True)]
    assert np.allclose(steps_of.interpolate(at, nodes, values), expected, atol=1e-12)
    segments = [np.searchsorted(b, a, side="right") for a, b in zip(at, nodes, strict=True)]
    assert np.array_equal(steps_of.segment_of(at, nodes), segments)


def test_autoregressions_are_stationary() -> None:
    partial = ar._partial(rng_of(), 500)
    coefficients = ar.stationary(partial)
    for row in coefficients:
        assert np.abs(np.roots([1, *-row])).max() < 1
    # Of order two, by hand.
    assert np.allclose(ar.stationary(np.array([[0.6, -0.4]])), [[0.6 * 1.4, -0.4]])
    noise = rng_of(1).standard_normal((3000, 120))
    x = steps_of.autoregress(noise, np.tile([0.84, -0.4], (3000, 1)), np.ones(3000, int))
    variance = 1 / ((1 - 0.6**2) * (1 - 0.4**2))
    near(x[:, -1] ** 2, variance)
    near(x[:, -1] * x[:, -2], 0.6 * variance)


@pytest.mark.parametrize("hurst", [0.3, 0.7, 0.95])
def test_long_memory_has_the_covariance_and_the_slope_of_its_exponent(hurst: float) -> None:
    x = ar.fractional_noise(rng_of(), np.full(3000, hurst), 256)
    k = np.array([0, 1, 5, 40])
    covariance = (np.abs(k + 1) ** (2 * hurst) - 2 * k ** (2 * hurst) + np.abs(k - 1) ** (2 * hurst)) / 2
    near(np.stack([x[:, 0] * x[:, lag] for lag in k], axis=1), covariance)
    # Means of m values fall as m^(2H - 2), where those of independent ones fall as 1/m: exact for this noise.
    for m in (16, 256):
        near(x[:, :m].mean(axis=1) ** 2, m ** (2 * hurst - 2))


def test_regimes_have_their_means_and_deviations() -> None:
    clock = regular_clock(400, 600)
    lasts, state = np.tile([30.0, 50.0], (400, 30)), np.tile([0, 2], (400, 30))
    visits = regimes.visited(rng_of(), clock.steps, lasts, state)
    assert set(np.unique(visits)) == {0, 2}
    assert abs((visits == 0).mean() - 30 / 80) < 30 / 600
    changes = np.flatnonzero(np.diff(visits[0]))
    assert set(np.diff(changes)) == {30, 50}
    mean, spread = np.tile([-1.0, 9, 2], (400, 1)), np.tile([0.1, 9, 0.5], (400, 1))
    x = regimes.switching(rng_of(1), clock, visits, mean, spread, np.zeros(400))
    for s in (0, 2):
        inside = np.where(visits == s, x, np.nan)
        near(np.nanmean(inside, axis=1), mean[0, s])
        near(np.nanmean((inside - mean[0, s]) ** 2, axis=1), spread[0, s] ** 2)
    slow = regimes.switching(rng_of(1), clock, visits, mean, 0 * spread, np.full(400, 10.0))
    change = changes[0] + 1
    left = slow[0, change] - mean[0, visits[0, change]]
    # From one value to the next what is left of the way falls by e^-1/10.
    assert np.isclose(slow[0, change + 10] - mean[0, visits[0, change]], left * np.exp(-1))


def test_linear_systems_have_the_covariance_of_their_equation() -> None:
    lags = np.array([0.0, 0.4, 3.0, 0.01, 7.0])
    at, count = np.cumsum(lags), 4000
    tiled = np.tile(lags, (count, 1))
    for forgets, period in ((5.0, np.inf), (20.0, 9.0)):
        x = linear_sde.oscillators(rng_of(), tiled, np.full(count, forgets), np.full(count, period))
        near(x * x[:, :1], np.exp(-at / forgets) * np.cos(2 * np.pi * at / period))
        near(x**2, 1.0)
    tau = 4.0
    x = linear_sde.bodies(rng_of(1), tiled, np.full(count, tau))
    h = at[1:] / tau
    near(x[:, 1:] ** 2, 2 * tau**2 * (h - 1 + np.exp(-h)))


# Systems.

EQUATIONS = {
    systems.LORENZ: lambda s, p, q, r: [p * (s[1] - s[0]), s[0] * (q - s[2]) - s[1], s[0] * s[1] - r * s[2]],
    systems.ROSSLER: lambda s, a, b, c: [-s[1] - s[2], s[0] + a * s[1], b + s[2] * (s[0] - c)],
    systems.DUFFING: lambda s, d, g, w: [s[1], g * np.cos(s[2]) - d * s[1] + s[0] - s[0] ** 3, w],
    systems.HINDMARSH_ROSE: lambda s, i, r, k: [
        s[1] - s[0] ** 3 + 3 * s[0] ** 2 - s[2] + i, 1 - 5 * s[0] ** 2 - s[1], r * (k * (s[0] + 1.6) - s[2]),
    ],
    systems.THOMAS: lambda s, b, *_: [np.sin(s[(i + 1) % 3]) - b * s[i] for i in range(3)],
    systems.DOUBLE_WELL: lambda s, a, w, _: [s[0] - s[0] ** 3 + a * np.cos(s[2]), 0, w],
    systems.VAN_DER_POL: lambda s, m, *_: [s[1], m * (1 - s[0] ** 2) * s[1] - s[0], 0],
    systems.FITZHUGH_NAGUMO: lambda s, i, e, b: [s[0] - s[0] ** 3 / 3 - s[1] + i, e * (s[0] + 0.7 - b * s[1]), 0],
    systems.PREDATOR_PREY: lambda s, k, g, _: [1 - np.exp(s[0]) / k - np.exp(s[1]), g * (np.exp(s[0]) - 1), 0],
    systems.LOGISTIC: lambda s, r, *_: [r * (1 - np.exp(s[0])), 0, 0],
    systems.PENDULUM: lambda s, d, g, w: [s[1], g * np.cos(s[2]) - np.sin(s[0]) - d * s[1], w],
}  # fmt: skip


@pytest.mark.parametrize("system", [*chaos.FLOWS, *nonlinear.SYSTEMS], ids=lambda one: str(one.kind))
def test_systems_go_where_their_equations_lead(system) -> None:
    parameters = np.mean(system.parameters, axis=1)
    start, until = np.array(system.start, float), system.cycle / 2
    # A hundredth of what production takes, and of Runge and Kutta's error the hundredth to the fourth power.
    longest = system.cycle / system.resolution / 10
    found = systems.integrate(
        rng_of(), np.array([system.kind]), start[None], parameters[None], np.zeros((1, 3)), np.array([longest]),
        np.array([[0.0, until]]),
    )  # fmt: skip
    exact = solve_ivp(
        lambda _, s: EQUATIONS[system.kind](s, *parameters), (0, until), start, method="DOP853", rtol=1e-10, atol=1e-10
    )
    assert np.array_equal(found[0, 0], start)
    scale = np.abs(exact.y).max()
    assert np.abs(found[0, 1] - exact.y[:, -1]).max() < 1e-4 * scale


@pytest.mark.parametrize("system", [*chaos.FLOWS, *nonlinear.SYSTEMS], ids=lambda one: str(one.kind))
def test_systems_stay_bounded_at_the_steps_that_are_taken(system) -> None:
    clock = draw_clock(rng_of(system.kind), 100, 300)
    found = systems.simulate(rng_of(), (system,), clock.steps, 300)
    assert np.abs(found).max() < 1e3 and (found.std(axis=1) > 0).all()


def test_noise_gives_logistic_growth_its_stationary_law() -> None:
    count, p, sigma, dt = 4000, 0.5, 0.6, 0.01
    parameters, noise = np.tile([p, 0, 0], (count, 1)), np.tile([sigma, 0, 0], (count, 1))
    found = systems.integrate(
        rng_of(), np.full(count, systems.LOGISTIC), np.zeros((count, 3)), parameters, noise, np.full(count, dt),
        np.full((count, 1), 12.0),
    )  # fmt: skip
    x = np.exp(found[:, 0, 0])
    # Gamma(2p/σ²) of mean 1; the start is forgotten to e^-6, and a step's error is p dt.
    error = 5 * x.std() / np.sqrt(count) + p * dt + np.exp(-6)
    assert abs(x.mean() - 1) < error
    square = (x - 1) ** 2
    assert abs(square.mean() - sigma**2 / (2 * p)) < 5 * square.std() / np.sqrt(count) + p * dt + np.exp(-6)


def test_chaos_forgets_where_it_began() -> None:
    lorenz = chaos.FLOWS[0]
    start = np.array([[1.0, 1, 25], [1 + 1e-8, 1, 25]])
    found = systems.integrate(
        rng_of(), np.zeros(2, int), start, np.tile([10, 28, 8 / 3], (2, 1)), np.zeros((2, 3)), np.full(2, 0.005),
        np.full((2, 80), 0.5),
    )[:, :, 0]  # fmt: skip
    apart = np.abs(found[0] - found[1])
    # A Lyapunov exponent of .9: 1e-8 grows to the size of the attractor in 23 of its times, e^.45 a sample.
    assert apart[4] < 1e-4 and apart[50:].max() > 5
    assert np.abs(found).max() < 25 and lorenz.kind == systems.LORENZ
    x = chaos.iterate(np.full(2000, chaos.LOGISTIC), np.full(2000, 4.0), rng_of().uniform(0.05, 0.45, 2000), 60)
    assert (x >= 0).all() and (x <= 1).all()
    near(x[:, -1], 0.5)  # the arcsine law
    near((x[:, -1] - 0.5) ** 2, 1 / 8)
    fine, coarse = (chaos.mackey_glass(np.ones((1, 60)), np.array([17.0]), np.array([0.9]), n, 0) for n in (800, 40))
    # Heun's error, of the second order, of steps of .4: (.4)² times a curvature of about 0.1².
    assert np.abs(fine - coarse).max() < 0.4**2 * 0.1
    assert np.ptp(fine) > 0.1
