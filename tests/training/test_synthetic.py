"""Synthetic series: the laws of each family, and of their mixture.

Where a law is of a mean, the tolerance is five standard errors, taken from the sample itself.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rfa.training.synthetic import (
    FAMILIES,
    OBSERVED,
    counts,
    draw,
    events,
    faults,
    links,
    seasons,
    signals,
)
from rfa.training.synthetic import clock as clocks
from rfa.training.synthetic import recursions as steps_of
from rfa.training.synthetic.clock import DAY, HOUR, MINUTE, WEEK, Clock, draw_clock
from rfa.training.synthetic.mixture import RECIPES, standard
from rfa.training.synthetic.priors import cosine, read
from tests.training.synthetic_samples import correlation, near, regular_clock, rng_of

# cos 2π x: x is rounded to float32 after reduction (2π 2^-24) and so is the cosine.
COSINE = 5e-7


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
