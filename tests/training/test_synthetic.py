"""Synthetic series: drawn from a seed alone, and each family by its law."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.signal import lfilter

from rfa.training.synthetic import COMPOSED, FAMILIES, draw
from rfa.training.synthetic import mixture as mixing
from rfa.training.synthetic.chains import _filtered, _switch, long_memory
from rfa.training.synthetic.clocks import DAY, HOUR, MINUTE, WEEK, draw_clocks, even_clocks
from rfa.training.synthetic.dynamics import _oscillate, _turned, _wander
from rfa.training.synthetic.events import _pulses, counts, excited, intermittent
from rfa.training.synthetic.feed import feed
from rfa.training.synthetic.paths import heavy, random_walk
from rfa.training.synthetic.seasons import CHANGING, _day_of_month, _harmonics, _profile, draw_periods, seasonal
from rfa.training.synthetic.trends import breaks, smooth

# Standard errors that chance is given.
CHANCES = 4.5


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_batch_is_of_its_seed_and_index_alone() -> None:
    first, again, other, next_ = draw(5, 40, index=3), draw(5, 40, index=3), draw(6, 40, index=3), draw(5, 40, index=4)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert first.families == again.families
    for different in (other, next_):
        assert not np.array_equal(first.values, different.values, equal_nan=True)
    with pytest.raises(ValueError, match="length must be at least"):
        draw(0, 1, 20)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers: int) -> None:
    alone = list(itertools.islice(feed(2, 8, 200, first=5), 5))
    found = list(itertools.islice(feed(2, 8, 200, first=5, workers=workers), 5))
    for one, two in zip(alone, found, strict=True):
        for part, other in zip(one, two, strict=True):
            np.testing.assert_array_equal(part.numpy(), other.numpy())
        assert one.values.isfinite().all() and (one.values[~one.is_seen] == 0).all()
        spread = np.nanstd(np.where(one.is_seen, one.values, np.nan), axis=1)
        assert (np.abs(spread[spread > 1e-6] - 1) < 1e-3).all()  # of seven digits, beside offsets of 150 deviations


def test_the_mixture_is_what_it_says() -> None:
    drawn = draw(1, 3_000, 256)
    assert (np.diff(drawn.times, axis=1) > 0).all()
    assert not np.isinf(drawn.values).any()
    shares = np.array([family == COMPOSED for family in drawn.families])
    assert abs(shares.mean() - (1 - mixing.ALONE)) < CHANCES * np.sqrt(mixing.ALONE / 3_000)
    assert set(drawn.families) == {COMPOSED, *FAMILIES}
    # Histories that begin late alone take a share LATE / 2 of 3 in 4 rows.
    missing = np.isnan(drawn.values).mean()
    late = mixing.LATE * (1 - mixing.LEAST_HISTORY / 256) / 2
    others = mixing.MISSING * 0.2 + mixing.AT_EVEN_TIMES * 0.75 + mixing.IN_BLOCKS * 0.3
    assert late < missing < late + others + 0.02
    # A truth is what values are about: noise of at most about two of its deviations, but for outliers.
    is_held = np.isfinite(drawn.values).sum(axis=1) > 20
    has_truth = np.isfinite(drawn.truth).all(axis=1) & is_held
    off = (drawn.values - drawn.truth)[has_truth]
    ratio = np.nanmedian(np.abs(off), axis=1) / (np.std(drawn.truth, axis=1)[has_truth] + 1e-12)
    assert 0.4 < has_truth.mean() < 0.7 and np.median(ratio) < 0.5
    decades = np.log10(np.nanstd(drawn.values[is_held], axis=1) + 1e-12)
    assert decades.min() < -2 and decades.max() > 2


def test_clocks_are_even_or_not_and_begin_at_whole_steps() -> None:
    clocks = draw_clocks(rng(), 2_000, 200)
    lags = np.diff(clocks.times, axis=1)
    assert (lags > 0).all()
    is_even = np.abs(lags / clocks.step[:, None] - 1).max(axis=1) < 1e-6
    assert abs(is_even.mean() - 0.89) < CHANCES * np.sqrt(0.89 * 0.11 / 2_000)
    np.testing.assert_array_equal(clocks.times[:, 0] % clocks.step, 0)
    assert abs(clocks.is_dated.mean() - 0.75) < CHANCES * np.sqrt(0.75 * 0.25 / 2_000)
    np.testing.assert_allclose(clocks[is_even].rows, np.tile(np.arange(200.0), (is_even.sum(), 1)), atol=1e-6)


@pytest.mark.parametrize(("step", "rows"), [(HOUR, {24, 168}), (5 * MINUTE, {288}), (DAY, {7, 365.2425})])
def test_seasons_have_the_periods_of_the_calendar(step: float, rows: set[float]) -> None:
    found = draw_periods(rng(), even_clocks(500, 1_088, step)) / step
    known = {row for row in rows if (np.abs(found - row) < 1e-6).sum() > 20}
    assert known == rows
    by_calendar = np.isin(np.round(found, 6), np.round(list(rows), 6)).mean()
    assert by_calendar > 0.8 - CHANCES * np.sqrt(0.16 / 500)


def test_a_season_comes_again() -> None:
    """After seven turns, in which a week may damp some, and but for those whose amplitude walks."""
    clocks = even_clocks(400, 1_400, HOUR)
    period = draw_periods(rng(7), clocks) / HOUR
    y = seasonal(rng(7), clocks)  # draws its periods first
    whole = np.flatnonzero((np.abs(period - np.rint(period)) < 1e-9) & (7 * period < 700))
    alike = []
    for k in whole.tolist():
        lag = 7 * int(np.rint(period[k]))
        alike.append(np.corrcoef(y[k, :-lag], y[k, lag:])[0, 1] > 0.999)
    assert np.mean(alike) > 1 - CHANGING - CHANCES * np.sqrt(CHANGING / len(whole))


def test_seasons_are_evaluated_at_the_times_that_there_are() -> None:
    turns = rng().random((20, 300), np.float32)
    for shape in (_harmonics, _profile):
        whole, some = (shape(rng(3), part, np.full(20, 24.0)) for part in (turns, turns[:, ::3]))
        np.testing.assert_array_equal(whole[:, ::3], some)


def test_days_of_a_month() -> None:
    days = np.array(["2024-02-29", "2024-03-01", "1999-12-31"], "datetime64[D]").astype(np.int64)
    assert _day_of_month(days[None]).tolist() == [[29, 1, 31]]


def test_a_walk_has_the_variance_of_its_length() -> None:
    walk = random_walk(rng(), 4_000, 400)
    for share in (0.25, 1.0):
        found = np.mean(walk[:, int(400 * share) - 1] ** 2)
        assert abs(found / share - 1) < CHANCES * np.sqrt(2 / 4_000)
    tails = heavy(rng(), 200, 2_000)
    assert np.mean(np.abs(tails) > 6) > 100 * 2e-9  # of a normal


def test_levels_break() -> None:
    y = breaks(rng(), even_clocks(300, 800))
    steps = np.diff(y, axis=1)
    jump = np.abs(steps).max(axis=1) / (1.4826 * np.median(np.abs(steps), axis=1))
    # The largest of 800 normal steps is beyond 6 of its deviations once in a million. Four in five have a break, of
    # which some are small beside the noise.
    assert np.mean(jump > 6) > 0.3


def test_smooth_curves_have_their_kernels() -> None:
    y = smooth(rng(), even_clocks(6_000, 64))
    reach = np.exp(np.linspace(np.log(3), np.log(400), 2_001))
    for lag in (0, 5, 40):
        x = lag / reach
        normal, matern = np.exp(-(x**2) / 2), (1 + np.sqrt(3) * x) * np.exp(-np.sqrt(3) * x)
        products = y[:, 10] * y[:, 10 + lag]
        error = products.std() / np.sqrt(len(y))
        assert abs(products.mean() - np.mean((normal + matern) / 2)) < CHANCES * error


def test_an_autoregression_is_a_recursive_filter() -> None:
    e = rng().standard_normal((5, 200))
    coefficients = np.array([[0.5, 0, 0, 0], [1.2, -0.5, 0, 0], [0.3, 0.2, 0.1, 0.05], [0, 0, 0, 0.9], [0, 0, 0, 0]])
    for one, own, found in zip(e, coefficients, _filtered(e, coefficients), strict=True):
        np.testing.assert_allclose(found, lfilter([1.0], [1.0, *-own], one), atol=1e-9)


def test_long_memory_has_its_slope() -> None:
    """Of the log periodogram against -2 log f (Geweke and Porter-Hudak 1983), whose error is π / √(24 m)."""
    many, length, m = 400, 2_048, 60
    d = rng(4).uniform(-0.3, 1.2, (many, 1))[:, 0]  # drawn first
    y = long_memory(rng(4), even_clocks(many, length))
    power = np.log(np.abs(np.fft.rfft(y - y.mean(axis=1, keepdims=True), axis=1)[:, 1 : m + 1]) ** 2)
    x = -2 * np.log(np.arange(1, m + 1))
    slope = (power * (x - x.mean())).sum(axis=1) / ((x - x.mean()) ** 2).sum()
    steady = d < 0.45
    error = np.pi / np.sqrt(24 * m) / np.sqrt(steady.sum())
    assert abs((slope - d)[steady].mean()) < CHANCES * error + 0.03  # what windows of half a period leak


def test_counts_are_whole_and_demand_is_mostly_none() -> None:
    clocks = even_clocks(200, 600)
    for y in (counts(rng(), clocks), excited(rng(), clocks)):
        assert (y >= 0).all() and (y == np.rint(y)).all() and y.max() > 3
    demand = intermittent(rng(), clocks)
    shares = (demand == 0).mean(axis=1)
    assert (demand >= 0).all() and shares.min() > 0.2 and shares.max() > 0.9 and abs(shares.mean() - 0.69) < 0.06


def test_events_bring_more_of_themselves() -> None:
    """n has the mean b / (1 - j / (1 - d))."""
    many, length = 3_000, 600
    again = rng(5)
    decay = np.exp(-1 / np.exp(again.uniform(np.log(2), np.log(60), many)))
    again.random((many, length))
    base, branching = np.exp(again.uniform(np.log(0.02), np.log(2), many)), again.uniform(0.2, 0.9, many)
    expected = base / (1 - branching)
    y = excited(rng(5), even_clocks(many, length))[:, 300:].mean(axis=1)
    low = (expected < 2) & (decay < np.exp(-1 / 20)) & (branching < 0.8)  # in their steady state by then
    ratio = (y / expected)[low]
    assert abs(ratio.mean() - 1) < CHANCES * ratio.std() / np.sqrt(low.sum()) + 0.01


def test_regimes_are_levels_that_stay() -> None:
    many, length = 50, 4_000
    draws, level = rng(), np.array([[0.0, 1.0, 5.0]] * many)
    y = np.empty((many, length))
    zero = np.zeros((many, 3))
    _switch(
        draws.standard_normal((many, length)), draws.random((many, length)), draws.integers(0, 1 << 30, (many, length)),
        np.full(many, 3), np.full(many, 40.0), level, zero, zero, y,
    )  # fmt: skip
    assert set(np.unique(y)) == {0.0, 1.0, 5.0}
    changes = (np.diff(y, axis=1) != 0).mean()
    assert abs(changes - 1 / 40) < CHANCES * np.sqrt(1 / 40 / y.size)


def test_linear_systems_move_exactly_from_time_to_time() -> None:
    """Covariance e^{-h/τ} cos ω h at uneven lags, of stationary variance 1."""
    many = 20_000
    lags = np.array([0.0, 1.0, 0.3, 7.0, 2.2])
    kept, turn = np.exp(-lags / 5), 0.8 * lags
    noise = np.sqrt(1 - kept**2)
    noise[0] = 1.0
    draws = rng()
    shape = (many, len(lags))
    y, _ = _turned(
        np.tile(kept, (many, 1)), np.tile(turn, (many, 1)), noise * draws.standard_normal(shape),
        noise * draws.standard_normal(shape),
    )  # fmt: skip
    times = lags.cumsum()
    for i, j in itertools.product(range(5), range(5)):
        h = abs(times[i] - times[j])
        expected = np.exp(-h / 5) * np.cos(0.8 * h)
        assert abs(np.mean(y[:, i] * y[:, j]) - expected) < CHANCES * np.sqrt(2 / many)


def test_oscillators_are_their_equations_to_second_order() -> None:
    """Van der Pol's without noise, against an integrator of order eight: half the step, a quarter of the error."""
    shape, first = np.array([[0.3, 0.0]]), np.array([[0.5, 0.2]])
    errors = []
    for pace in (0.4, 0.2):
        rows = int(8 / pace)
        y = np.empty((1, rows + 1))
        lags = np.ones((1, rows + 1))
        lags[0, 0] = 0
        _oscillate(lags, np.array([0]), np.array([pace]), shape, np.zeros(1), np.zeros((1, rows + 1)), first.copy(), y)
        found = solve_ivp(
            lambda _, s: (s[1], (0.2 + 4 * 0.3) * (1 - s[0] ** 2) * s[1] - s[0]), (0, 8), first[0], "DOP853",
            rtol=1e-10, atol=1e-12,
        )  # fmt: skip
        errors.append(abs(y[0, -1] - found.y[0, -1]))
    assert 3 < errors[0] / errors[1] < 5


def test_chaos_is_bounded_and_forgets_where_it_began() -> None:
    shape = rng().uniform(0.2, 0.8, (5, 3))
    shape[:, 1] = 0.9  # of the logistic map: 3.96
    near = shape + 1e-9
    near[:, 1] = 0.9
    one, two = (np.empty((5, 1_000)) for _ in range(2))
    for start, y in ((shape, one), (near, two)):
        _wander(np.arange(5), np.full(5, 0.1), start, np.empty(170), y)
        assert np.abs(y).max() < 100
    off = np.abs(one - two) / one.std(axis=1, keepdims=True)
    assert (off[:2, 0] < 1e-3).all()  # flows; maps have forgotten it before the first row
    assert (off[:4, 900:].max(axis=1) > 0.1).all()  # Mackey's and Glass's equation is slow


def test_pulses_stand_where_their_times_are() -> None:
    rows = np.sort(rng().uniform(0, 60, (1, 40)), axis=1)
    wait, height = np.full((1, 40), 0.5), rng().random((1, 40))
    shape = np.array([[1.0, 0.5, 0.25, 0.0]])
    y = np.zeros((1, 40))
    _pulses(rows, np.array([7.0]), np.array([1.5]), np.array([0.2]), wait, height, shape, y)
    begin, expected = -6 + 0.5 * 7, np.zeros(40)
    for k in range(1, 40):
        place = (rows[0] - begin) / 1.5
        inside = (place >= 0) & (place < 4)
        expected[inside] += height[0, k] * shape[0, place[inside].astype(int)]
        begin += 7 * (1 - 0.2 + 0.2 * 0.5)
    np.testing.assert_allclose(y[0], expected, atol=1e-12)
    assert np.abs(expected).max() > 0


def test_every_family_has_its_picture() -> None:
    page = Path("docs/guides/synthetic.md")
    text = page.read_text(encoding="utf-8")
    for name in (*FAMILIES, "mixture"):
        place = f"../figures/synthetic-{name.replace('_', '-')}.png"
        assert place in text and (page.parent / place).is_file()
        assert name == "mixture" or f"`{name}`." in text


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_whole_on_any_clock(name: str) -> None:
    for clocks in (draw_clocks(rng(1), 150, 300), even_clocks(20, 300, WEEK)):
        y = FAMILIES[name][0](rng(2), clocks)
        assert y.shape == clocks.shape and np.isfinite(y).all()
        # A trend has no part at all in .5 x .85^7 x .6 = .1 of its series.
        assert np.mean(y.std(axis=1) > 0) > 0.9 - CHANCES * np.sqrt(0.09 / len(y))
