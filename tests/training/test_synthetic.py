"""Synthetic series: the laws of each family, and of their mixture.

Where a law is of a mean, the tolerance is five standard errors, taken from the sample itself.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.signal import lfilter

from rfa.training.synthetic import (
    FAMILIES,
    OBSERVED,
    chaos,
    counts,
    draw,
    events,
    faults,
    gaussian,
    linear_sde,
    links,
    regimes,
    seasons,
    signals,
    systems,
    trends,
)
from rfa.training.synthetic import autoregression as ar
from rfa.training.synthetic import clock as clocks
from rfa.training.synthetic import nonlinear_sde as nonlinear
from rfa.training.synthetic import recursions as steps_of
from rfa.training.synthetic.clock import DAY, FIRST_START, HOUR, MINUTE, WEEK, Clock, draw_clock
from rfa.training.synthetic.mixture import RECIPES, standard
from rfa.training.synthetic.priors import cosine, read

# cos 2π x: x is rounded to float32 after reduction (2π 2^-24) and so is the cosine.
COSINE = 5e-7


def rng_of(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def regular_clock(count: int, length: int, step: float = HOUR) -> Clock:
    """The same regular clock for every series; without a calendar where the step is 0."""
    times = FIRST_START + np.arange(length) * (step or 1.0)
    return Clock(np.tile(times, (count, 1)), np.full(count, step or 1.0), np.full(count, step > 0))


def near(sample, expected) -> None:
    """The mean of independent rows `[B, …]` is what is expected, within five standard errors."""
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    assert (np.abs(sample.mean(axis=0) - expected) <= 5 * error).all(), (sample.mean(axis=0), expected, error)


def correlation(x, lag: int):
    """`[B]` of each series with itself."""
    x = x - x.mean(axis=1, keepdims=True)
    return (x[:, lag:] * x[:, :-lag]).mean(axis=1) / (x**2).mean(axis=1)


# The mixture.


def same(one, other) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name == "values") for name in (
        "times", "values", "truth", "step"
    ))  # fmt: skip


def test_a_batch_is_a_function_of_seed_number_and_split() -> None:
    first = draw(3, 24, 256, index=5)
    assert same(first, draw(3, 24, 256, index=5))
    assert first.families == draw(3, 24, 256, index=5).families
    for other in (draw(4, 24, 256, index=5), draw(3, 24, 256, index=6), draw(3, 24, 256, index=5, split="validation")):
        assert not np.isin(other.truth, first.truth).mean() > 0.1
        assert not same(first, other)


@pytest.fixture(scope="module")
def mixed():
    return [draw(11, 256, 512, index=index) for index in range(4)]


def test_what_is_drawn_is_finite_or_missing_and_times_increase(mixed) -> None:
    for drawn in mixed:
        assert drawn.values.shape == drawn.truth.shape == drawn.times.shape == (256, 512)
        assert drawn.values.dtype == drawn.times.dtype == np.float64
        assert not np.isinf(drawn.values).any() and np.isfinite(drawn.truth).all()
        assert (np.isfinite(drawn.values).sum(axis=1) >= 1).all()
        assert (np.diff(drawn.times, axis=1) > 0).all()
        assert set(itertools.chain(*drawn.families)) <= {*FAMILIES, *OBSERVED}


def test_every_family_comes_and_shares_are_those_declared(mixed) -> None:
    families = [one for drawn in mixed for one in drawn.families]
    assert set(itertools.chain(*families)) == {*FAMILIES, *OBSERVED}
    weights = sum(recipe.weight for recipe in RECIPES.values())
    for name in OBSERVED:
        near(np.array([name in one for one in families], float), RECIPES[name].weight / weights)
    begins_late = np.concatenate([np.isnan(drawn.values[:, :4]).all(axis=1) for drawn in mixed])
    # A short history of fewer than four values missing is not told from a full one; a block may be there, too.
    low = faults.SHORT * (1 - 4 / (512 - faults.SHORTEST)) - 5 * np.sqrt(0.25 / 1024)
    assert low < begins_late.mean() < faults.SHORT + faults.MISSING * 0.3 + 5 * np.sqrt(0.25 / 1024)
    irregular = np.concatenate([np.ptp(np.diff(d.times) / d.step[:, None], axis=1) > 1e-3 for d in mixed])
    near(irregular.astype(float), 1 - clocks.KINDS["regular"] / sum(clocks.KINDS.values()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1, 4), "seed"), ((0, 0), "count"), ((0, 4, 20), "length"), ((0, 4, 256), "index")],
)
def test_what_cannot_be_drawn_is_refused(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(*arguments, index=-1 if message == "index" else 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_finite_on_every_clock_and_varies(name: str) -> None:
    clock = draw_clock(rng_of(1), 96, 300)
    found = FAMILIES[name](rng_of(2), clock)
    assert found.shape == (96, 300) and np.isfinite(found).all()
    # Rare events, and a sun that does not set, may show nothing in a short series.
    assert (found.std(axis=1) > 0).mean() > 0.85
    assert np.array_equal(found, FAMILIES[name](rng_of(2), clock))


# Clocks.


def test_irregular_times_have_the_lags_of_their_kind() -> None:
    for name, irregular in clocks.IRREGULAR.items():
        steps = irregular(rng_of(), 200, 400)
        lags = np.diff(steps, axis=1)
        assert (lags > 0).all() and (steps[:, 0] == 0).mean() >= (name != "jittered")
        if name == "jittered":
            assert np.abs(steps - np.arange(400)).max() <= 0.45
        elif name == "dropped":
            assert (lags == np.rint(lags)).all() and lags.max() > 5
        else:
            assert np.allclose(steps[:, -1], 399)
        if name == "random":  # exponential: as many as e^-1 are longer than the mean
            near((lags > 1).mean(axis=1), np.exp(-1))


@pytest.mark.parametrize("name", ["harmonic", "modulated", "profile", "calendar"])
def test_series_are_evaluated_at_the_times_of_their_clock(name: str) -> None:
    """Values of a clock that lost rows are those of the full one: what is drawn for each value is left out."""
    full = regular_clock(60, 400)
    kept = np.sort(rng_of(5).choice(np.arange(1, 1200), 399, replace=False))
    steps = np.concatenate([[0], kept]).astype(float)
    lost = Clock(full.times[:, :1] + steps * HOUR, full.step, full.has_calendar)
    whole, found = FAMILIES[name](rng_of(7), full), FAMILIES[name](rng_of(7), lost)
    at = np.flatnonzero(steps < 400)
    error = np.abs(whole[:, steps[at].astype(int)] - found[:, at]).max(axis=1) / whole.std(axis=1)
    # Six harmonics or partials of a deviation together have amplitudes of at most √12 deviations.
    is_same = error < 2 * COSINE * np.sqrt(12)
    # A quarter of the harmonic ones wander, two fifths of profiles and half of the calendars draw sizes.
    assert is_same.mean() > {"harmonic": 0.55, "modulated": 0.99, "profile": 0.4, "calendar": 0.3}[name]


def test_periods_are_those_of_the_calendar() -> None:
    for step, allowed in ((HOUR, (12, 24, 168, 730.5)), (5 * MINUTE, (12, 144, 288)), (DAY, (7, 30.4375, 365.25))):
        found = regular_clock(3000, 1088, step).periods(rng_of())
        shares = [np.isclose(found, period).mean() for period in allowed]
        assert min(shares) > 0.01
        # A fifth has any period.
        near(np.isclose(found[:, None], allowed).any(axis=1).astype(float), 0.8)
    assert np.ptp(regular_clock(3000, 1088, 0).periods(rng_of())) > 400


def test_cosine_and_profiles_are_read_at_their_phase() -> None:
    x = rng_of().uniform(-1e4, 1e4, (4, 100))
    assert np.abs(cosine(x) - np.cos(2 * np.pi * (x - np.floor(x)))).max() < COSINE
    table = rng_of(1).standard_normal((4, 12))
    expected = [
        np.interp(row % 1 * 12, np.arange(13), np.append(one, one[0])) for row, one in zip(x, table, strict=True)
    ]
    # The phase of 1e4 cycles is known to 2e-12, of which a step of the table is 12 times as much.
    assert np.allclose(read(table, x), expected, atol=1e-9)
    held = read(table, x, np.ones(4, bool))
    assert np.array_equal(held, np.take_along_axis(table, np.floor((x - np.floor(x)) * 12).astype(int), axis=1))


# Seasons.


def test_harmonics_and_profiles_repeat(monkeypatch) -> None:
    monkeypatch.setattr(Clock, "periods", lambda self, rng: np.full(self.count, 25.0))
    clock = regular_clock(300, 400)
    # Of profiles three in five keep their size; a quarter become another one, some of them before the series begins.
    for family, least, most in ((seasons.harmonic, 0.75, 0.75), (seasons.profile, 0.6 * 0.75, 0.6)):
        x = family(rng_of(3), clock)
        change = np.abs(x[:, 25:] - x[:, :-25]).max(axis=1) / x.std(axis=1)
        repeats = (change < 2 * COSINE * np.sqrt(12)).astype(float)
        near(repeats, np.clip(repeats.mean(), least, most))
        off = np.abs(x[:, 24:] - x[:, :-24]).max(axis=1) / x.std(axis=1)
        assert (off > 1e-3).all()


@pytest.mark.parametrize(
    ("step", "period", "other"), [(HOUR, 24, 12), (HOUR, 168, 84), (5 * MINUTE, 288, 144), (DAY, 7, 4), (WEEK, 52, 26)]
)
def test_the_calendar_has_days_weeks_and_years(step: float, period: int, other: int) -> None:
    x = seasons.calendar(rng_of(4), regular_clock(400, 1088, step))
    more = correlation(x, period) - correlation(x, other)
    assert more.mean() > 5 * more.std() / np.sqrt(len(more))
    assert correlation(x, period).mean() > 0.3


# Signals.


def test_beats_come_at_their_intervals() -> None:
    period = np.full(50, 37.5)
    steps = np.tile(np.arange(1000.0), (50, 1))
    exact = signals.beating(rng_of(), steps, period, np.zeros(50), np.zeros(50))
    assert np.allclose(np.diff(exact, axis=1), 1 / 37.5)
    varied = signals.beating(rng_of(), steps, period, np.full(50, 0.1), np.ones(50))
    assert (np.diff(varied, axis=1) > 0).all()
    assert np.allclose(np.median(1 / np.diff(varied, axis=1)), 37.5, rtol=0.1)
    x = signals.pulses(rng_of(1), regular_clock(200, 800, 0.0))
    # Narrow: a beat is far from its mean for a small part of it.
    kurtosis = (standard(x) ** 4).mean(axis=1)
    assert np.median(kurtosis) > 3


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


# Events and counts.


def test_events_leave_their_response() -> None:
    at = np.sort(rng_of().uniform(0, 100, (4, 300)), axis=1)
    arrivals = np.sort(rng_of(1).uniform(-10, 110, (4, 20)), axis=1)
    arrivals[:, -3:] = np.inf
    marks, duration = rng_of(2).standard_normal((4, 20)), np.array([3.0, 2.0, 5.0, 6.0])
    u = (at[:, :, None] - arrivals[:, None]) / duration[:, None, None]
    with np.errstate(over="ignore", invalid="ignore"):
        responses = [np.exp(-u), u * np.exp(1 - u), np.ones_like(u), 1 - np.abs(2 * u - 1)]
    ends = [9, 9, 1, 1]
    found = steps_of.superpose(at, arrivals, marks, duration, np.arange(4))
    for row in range(4):
        is_on = (u[row] >= 0) & (u[row] < ends[row])
        expected = (np.where(is_on, responses[row][row], 0) * marks[row]).sum(axis=1)
        assert np.allclose(found[row], expected, atol=1e-12)


@pytest.mark.parametrize("kind", events.ARRIVALS)
def test_events_arrive_at_their_rate(kind: str) -> None:
    clock = regular_clock(1500, 600)
    every, arrivals = events.arriving(rng_of(), clock, np.full(1500, kind))
    finite = np.isfinite(arrivals)
    assert (np.diff(np.where(finite, arrivals, 1e9), axis=1) >= 0).all()
    inside = ((arrivals >= 0) & finite).sum(axis=1) * every / 600
    if kind == "clustered":
        # The train begins with a cluster, two intervals early: for long clusters it is not yet at its rate.
        assert abs(inside.mean() - 1) < 0.1 + 5 * inside.std() / np.sqrt(1500)
    else:
        near(inside, 1.0)
    lags = np.where(np.isfinite(arrivals[:, 1:]), np.diff(np.where(finite, arrivals, 1e9)), np.nan)
    long = finite.sum(axis=1) > 20
    varied = np.nanstd(lags[long], axis=1) / np.nanmean(lags[long], axis=1)
    low, high = {"random": (0.8, 1.2), "periodic": (-0.1, 0.3), "clustered": (1.2, 9)}[kind]
    assert low < np.median(varied) < high


def test_counts_are_whole_and_have_their_rate() -> None:
    latent = rng_of().standard_normal((800, 200))
    found, rate = counts.counted(rng_of(1), latent)
    assert (found >= 0).all() and (found == np.rint(found)).all()
    near((found.mean(axis=1) - rate.mean(axis=1)) / rate.mean(axis=1), 0.0)
    chi2 = ((found - rate) ** 2 / rate).mean(axis=1)
    # Half of the series are Poisson: a chi-square of mean 1. The others vary more.
    assert abs((np.abs(chi2 - 1) < 0.5).mean() - 0.5) < 0.25 and np.quantile(chi2, 0.9) > 1.5


def test_demand_is_rare_and_has_its_mean() -> None:
    latent = rng_of().standard_normal((1500, 200))
    found, mean = counts.intermittent(rng_of(1), latent)
    near((found.mean(axis=1) - mean.mean(axis=1)) / mean.mean(axis=1), 0.0)
    some = (found > 0).mean(axis=1)
    # Shares are log-uniform on .01 to .5; where the chance follows a latent its mean is a little larger.
    assert (found >= 0).all() and some.max() < 0.75
    assert abs(np.median(some) - np.sqrt(0.01 * 0.5)) < 0.03
    still = counts.intermittent(rng_of(1), np.zeros((1500, 200)))
    near(np.log((still[0] > 0).mean(axis=1) + 1 / 200) > np.log(np.sqrt(0.005) + 1 / 200), 0.5)


# What is seen.


def test_links_and_units_keep_values_with_their_truth() -> None:
    x = standard(rng_of().standard_normal((900, 200)))
    values, truth, has_zero = links.link(rng_of(1), x, x)
    assert np.array_equal(values, truth) and np.isfinite(values).all()
    near(has_zero.astype(float), sum(links.LINKS[name] for name in links.WITH_ZERO) / sum(links.LINKS.values()))
    seen, outputs = links.in_units(rng_of(2), values, truth, has_zero)
    is_exact = (seen == outputs).all(axis=1)
    assert 0.6 < is_exact.mean() < 0.75
    spread = outputs.std(axis=1)
    # A grid has a point in each deviation at least, so that rounding moves a value by half of one at most.
    assert (np.abs(seen - outputs).max(axis=1) <= 0.5 * spread * (1 + 1e-9)).all()
    assert spread.max() / spread[spread > 0].min() > 1e6


def test_faults_are_as_frequent_as_declared() -> None:
    clean = rng_of().standard_normal((3000, 300))
    values = clean.copy()
    faults.disturb(rng_of(1), values)
    touched = (values != clean).mean(axis=1)
    shown = 1 - (1 - faults.OUTLIERS) * (1 - faults.STUCK) * (1 - faults.FLAT)
    near((touched > 0).astype(float), shown)
    near((touched > 0.7).astype(float), faults.FLAT)
    assert np.abs(values).max() > 20
    faults.lose(rng_of(2), values, regular_clock(3000, 300))
    is_lost = np.isnan(values)
    assert (~is_lost).sum(axis=1).min() >= 1
    late = is_lost[:, 0] & (np.diff(is_lost, axis=1).sum(axis=1) == 1)
    assert abs(late.mean() - faults.SHORT * (1 - faults.MISSING)) < 0.05
