"""The mixture of the network and simple experts: against its reference, and its promises."""

import numpy as np
import pytest

from rfa.runtime.filters.ahead import followed
from rfa.runtime.filters.observed import observed
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.filters.steps import allocate_posterior
from rfa.runtime.series import mixture_layout as at
from rfa.runtime.series.count_tail_numba import count_tail as inlined_count_tail
from rfa.runtime.series.expert_scores_numba import expert_weights as inlined_expert_weights
from rfa.runtime.series.experts_numba import expert_forecasts as inlined_expert_forecasts
from rfa.runtime.series.filter import SeriesRuntime
from rfa.runtime.series.leads import DAY, HOUR, WEEK, YEAR
from rfa.runtime.series.mixture import MixtureWork
from rfa.runtime.series.mixture_numba import mix_column, observe_column, remember_forecasts, score_value
from rfa.runtime.series.mixture_values_numba import clock_season as inlined_clock_season
from rfa.runtime.series.smoothing_numba import member_weights as inlined_member_weights
from rfa.runtime.series.update_numba import SCORES
from rfa.runtime.uncertainty.alarms import alarm
from rfa.runtime.uncertainty.interface import FilterOptions, ReadoutOptions
from tests.inlined import callable_from_python
from tests.runtime.series import mixture_reference as reference
from tests.runtime.series.series_streams import decoder, network

count_tail = callable_from_python(inlined_count_tail)
expert_forecasts = callable_from_python(inlined_expert_forecasts)
expert_weights = callable_from_python(inlined_expert_weights)
clock_season = callable_from_python(inlined_clock_season)
member_weights = callable_from_python(inlined_member_weights)

LEADS = (1.0, 4.0)
# Of the network: a normal's quantiles with interval ends one apart from the median, but for those further out.
QUANTILES = SCORES / SCORES[-1]
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers():
    """Each test draws the same numbers, whichever ran before."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


class Driven:
    """The compiled mixture of one column, with forecasts of a network that are given."""

    def __init__(self, season=None):
        self.numbers, self.memory = np.zeros(at.NUMBERS), np.zeros(at.MEMORY, np.float32)
        self.work = MixtureWork.allocate(1, len(LEADS))
        self.posterior = allocate_posterior(observed(1, 1), len(LEADS), 10)
        self.season, self.network, self.square = season, np.nan, np.nan

    def add(self, value, networks, moments=(0.0, 0.0, 0.0), unit=1.0):
        """Mixed medians at LEADS after a value; `moments`: local time now and at LEADS."""
        cell = int(self.numbers[at.CELLS]) + 1
        leads = unit * np.array(LEADS)
        self.work.prior[:] = self.network + QUANTILES
        self.square = score_value(self.numbers, self.memory, cell, moments[0], value, self.work)
        self.network = networks[0]
        observe_column(self.numbers, self.memory, cell, value, unit, moments[0], self.work)
        if cell == 1 and self.season is not None:
            self.numbers[at.SEASON], self.numbers[at.NEXT_SEARCH] = self.season, np.inf
        self.posterior.forecast_mean[:, 0] = networks
        self.posterior.half_widths[:] = 1.0
        mix_column(self.numbers, self.memory, leads, np.array(moments), unit, self.posterior, 0, self.work)
        remember_forecasts(self.numbers, self.memory, leads, unit, 0, self.work)
        return self.posterior.forecast_mean[:, 0].copy()


def seasonal(rows, season=4):
    t = np.arange(rows)
    return 20 + 0.5 * t + 3 * np.cos(2 * np.pi * t / season) + RNG.normal(size=rows)


@pytest.mark.parametrize(("season", "sign"), [(1, 1), (4, 1), (5, -1)])
def test_members_are_those_of_the_reference(season, sign):
    """Also of series with negative values, which have no logarithms, before errors are bounded."""
    values, driven = sign * seasonal(12), Driven()
    driven.numbers[at.SEASON] = season
    for t in range(len(values)):
        driven.add(values[t], np.zeros(2))
        driven.numbers[at.SEASON], driven.numbers[at.NEXT_SEARCH] = season, np.inf
    forms = [values] + ([np.log(values) - np.log(values[0])] if sign > 0 else [])
    for form, rest in enumerate(forms):
        for s, gamma in enumerate(reference.GAMMAS):
            level, trend = reference.member_states(rest, season, gamma)
            first = form * at.PER_FORM + s * at.SIZE
            # Profiles are float32.
            scale = np.abs(rest).max()
            for found, expected in ((at.LEVEL, level), (at.TREND, trend)):
                part = driven.numbers[found + first : found + first + at.SIZE]
                np.testing.assert_allclose(part, expected, rtol=0, atol=1e-5 * scale)


def test_weights_are_those_of_the_reference():
    """At both leads, of the experts' forecasts as they were made."""
    rows, driven = 60, Driven(season=4)
    values, networks = seasonal(rows), RNG.normal(25, 5, (rows, 2))
    weights = [reference.Weights() for _ in LEADS]
    made = []
    for t in range(rows):
        mixed = driven.add(values[t], networks[t])
        if t - 1 >= 3:  # made for the score
            prior = driven.work.prior_forecasts
            weights[0].score(prior[: at.EXPERT_COUNT].copy(), prior[at.MIXED], values[t])
        if t - 4 >= 3:
            weights[1].score(*made[t - 4][1], values[t])
        if t < 3:
            made.append(None)
            continue
        row = []
        for j in range(len(LEADS)):
            found, forecasts = np.empty(at.EXPERT_COUNT), driven.work.forecasts[j, 0, : at.EXPERT_COUNT].copy()
            expert_weights(driven.numbers, j, found)
            np.testing.assert_allclose(found, weights[j].now(), rtol=1e-4, atol=1e-7)
            assert mixed[j] == pytest.approx(found @ np.nan_to_num(forecasts), rel=1e-12)
            row.append((forecasts, mixed[j]))
        made.append(row)


def test_simple_experts():
    """The value a season before, the last one, and the line through the first and the last."""
    values, driven = seasonal(30), Driven(season=4)
    for value in values:
        driven.add(value, np.zeros(2))
    forecasts = driven.work.forecasts[1, 0]
    assert driven.work.forecasts[:, 0, at.SEASONAL].tolist() == [values[-4], values[-1]]
    assert forecasts[at.LAST] == values[-1]
    assert forecasts[at.DRIFT] == pytest.approx(values[-1] + 4 * (values[-1] - values[0]) / 29)


def test_smoothing_reaches_a_line_with_a_season():
    """Without noise, in values and in logarithms."""
    t = np.arange(200)
    for values in (50 + 0.3 * t + 10 * np.sin(2 * np.pi * t / 12), np.exp(2 + 0.02 * t + np.sin(2 * np.pi * t / 12))):
        driven, errors = Driven(season=12), []
        for k, value in enumerate(values[:-4]):
            driven.add(value, np.full(2, value))
            errors.append(driven.work.forecasts[1, 0, [at.SMOOTHING, at.SMOOTHING_OF_LOGS]] - values[k + 4])
        best = np.abs(errors[100:]).mean(axis=0).min()
        assert best < 0.05 * np.abs(values[104:] - values[100:-4]).mean()


@pytest.mark.parametrize("expert", range(at.PROFILED))
def test_the_mixture_is_no_worse_than_any_expert(expert):
    """On series that suit each of them, the network being right or wrong."""
    t = np.arange(400)
    suited = {
        at.NETWORK: RNG.normal(size=404) * 3, at.SMOOTHING: seasonal(404, 12), at.SMOOTHING_OF_LOGS: np.exp(
            0.01 * np.arange(404) + np.sin(np.arange(404) * np.pi / 6) + 0.05 * RNG.normal(size=404)),
        at.SEASONAL: np.tile(RNG.normal(size=12) * 5, 34)[:404], at.LAST: RNG.normal(size=404).cumsum(),
        at.DRIFT: np.arange(404) + RNG.normal(size=404).cumsum(),
    }[expert]  # fmt: skip
    driven, rows = Driven(season=12), []
    for k in t:
        networks = suited[[k + 1, k + 4]] + 0.1 if expert == at.NETWORK else np.full(2, -50.0)
        mixed = driven.add(suited[k], networks)
        rows.append(np.abs([*driven.work.forecasts[1, 0, : at.EXPERT_COUNT], mixed[1]] - suited[k + 4]))
    errors = np.mean(rows[100:], axis=0)
    assert errors[-1] <= 1.1 * np.nanmin(errors[:-1]) + 0.01 * suited.std()


@pytest.mark.parametrize(
    ("unit", "season"),
    [(HOUR, 24), (DAY, 7), (WEEK, 52), (YEAR / 12, 12), (31 * DAY, 12), (28 * DAY, 13), (YEAR / 4, 4), (YEAR, 1),
     (HOUR / 2, 48), (300.0, 288), (60.0, 60), (1.0, 1)],
)  # fmt: skip
def test_the_season_of_a_clock(unit, season):
    assert clock_season(unit) == season


def test_a_season_that_no_clock_has_is_found():
    driven = Driven()
    t = np.arange(200)
    for value in np.sin(2 * np.pi * t / 17) + 0.1 * RNG.normal(size=200):
        driven.add(value, np.zeros(2))
    assert driven.numbers[at.SEASON] == 17


@pytest.fixture(scope="module")
def mixture():
    return SeriesRuntime("series", "0" * 64, decoder(network())).mixed()


def last(model, values, horizon=(1.0, 5.0), levels=(0.5, 0.9)):
    rows = [None if value is None else [value] for value in values]
    found = model.filter(list(map(float, range(len(rows)))), rows, horizon=horizon, levels=levels)
    return found.steps[-1]


def bounds_of(point):
    return [bound for intervals in point.interval.values() for bound in intervals[0]]


def test_what_never_moved_is_forecast_exactly(mixture):
    for value in (0.0, 4.99, -3.0):
        step = last(mixture, [value] * 40)
        assert (step.mean, step.std, bounds_of(step)) == ([value], [0.0], [value] * 4)
        for point in step.forecast:
            assert (point.mean, point.median, point.std) == ([value], [value], [0.0])
            assert bounds_of(point) == [value] * 4


def test_forecasts_stay_where_values_can_be(mixture):
    falling = np.maximum(200 - 3.1 * np.arange(64), 0.5) + np.abs(RNG.normal(size=64))
    share = np.minimum(60 + np.arange(64), 100) - np.abs(RNG.normal(size=64)) * (np.arange(64) % 2)
    counts = RNG.poisson(2.0, 64).astype(float)
    for values, low, high in ((falling, 0, np.inf), (share, 0, 100), (counts, 0, np.inf)):
        for point in last(mixture, values.tolist()).forecast:
            numbers = [*point.mean, *point.median, *bounds_of(point)]
            assert low <= min(numbers)
            assert max(numbers) <= high
            if values is counts:
                assert all(float(number).is_integer() for number in [*point.median, *bounds_of(point)])
    below = last(mixture, (falling - 100).tolist()).forecast[1]
    assert min(bounds_of(below)) < 0


@pytest.mark.parametrize("kind", ["counts", "lognormal"])
def test_means_of_skewed_series(mixture, kind):
    """The sum of the forecasts is that of the values, to 5 % and what chance explains; the median stays the median."""
    rng = np.random.default_rng(1)
    values = rng.poisson(0.4, 1_000) if kind == "counts" else np.exp(rng.normal(size=1_000))
    rows = values.astype(float)[:, None].tolist()
    found = mixture.filter(list(map(float, range(1_000))), rows, horizon=(1.0,)).steps
    means, came = np.array([step.forecast[0].mean[0] for step in found[299:-1]]), values[300:]
    assert abs(means.mean() - came.mean()) < 0.05 * came.mean() + 3 * came.std() / np.sqrt(700)
    assert np.mean([step.forecast[0].median[0] for step in found[299:-1]]) < 0.9 * means.mean()


def test_the_network_by_itself_is_as_it_was(mixture):
    """Naming an expert gives that expert: the mixture changes forecasts and scores alone, from the fourth value on."""
    alone = SeriesRuntime("series", "0" * 64, decoder(network()))
    values = seasonal(80).tolist()
    one, other = last(alone, values), last(mixture, values)
    assert (one.mean, one.std, one.nis, one.interval) == (other.mean, other.std, other.nis, other.interval)
    assert one.forecast[0].mean != other.forecast[0].mean and one.anomaly != other.anomaly


def test_scores_are_those_of_the_mixtures_forecast():
    """z² by the network's quantiles, moved to the mixture's median and scaled by the ratio of the errors."""
    driven, values = Driven(season=4), seasonal(60)
    networks = np.stack([values + 30, values + 40], axis=1)
    for t in range(59):
        mixed = driven.add(values[t], networks[t])[0]
        ratio = driven.numbers[at.MIXTURE_ERROR] / driven.numbers[at.NETWORK_ERROR] if t >= 4 else np.nan
    assert driven.numbers[at.SCORED] == 55 and ratio < 0.2
    score, scale = SCORES[-1], (55 * ratio + 4) / (55 + 4)
    for off in (-0.5, 0.0, 0.1, 0.5):
        one = Driven(season=4)
        one.numbers, one.memory, one.network = driven.numbers.copy(), driven.memory.copy(), driven.network
        one.add(mixed + off, networks[59])
        error = mixed + off - one.work.prior_forecasts[at.MIXED]
        assert one.square == pytest.approx((score * error / max(scale, 0.2)) ** 2, rel=1e-6, abs=1e-9)


def test_scores_do_not_depend_on_the_horizon(mixture):
    """To the bit, and after a gap."""
    values = [*seasonal(80).tolist(), None, None, 90.0, 95.0]
    for count in (80, 83, 84):
        one, other = (last(mixture, values[:count], horizon).anomaly for horizon in ((), (1.0, 5.0, 64.0)))
        assert one == other


def test_weights_add_up_to_one():
    driven, found = Driven(), np.empty(at.MEMBERS)
    for value in seasonal(50):
        driven.add(value, np.zeros(2))
    expert_forecasts(driven.numbers, driven.memory, driven.work.weights[0], 1.0, 0.0, 0.0, np.empty(at.FORECASTS))
    member_weights(driven.numbers, 0, 0.5, found)
    assert (found > 0).all()
    weights = np.empty(at.EXPERT_COUNT)
    expert_weights(driven.numbers, 0, weights)
    assert weights.sum() == pytest.approx(1.0)


def test_a_larger_count_never_has_a_larger_tail_probability():
    """Whatever came before, of streams that are mostly zero; and the share of past counts is its probability."""
    for rate in (0.02, 0.2, 0.6):
        driven, values = Driven(), RNG.poisson(rate, 120).astype(float) * RNG.choice([1, 1, 40], 120)
        for t, value in enumerate(values):
            tails = np.array([count_tail(driven.numbers, float(y)) for y in range(200)])
            if t >= 50 and (values[:t] == 0).mean() >= 0.5:
                assert (np.diff(tails) <= 0).all()
                assert tails[1] == (1 + (values[:t] >= 1).sum()) / (t + 1) or values[:t].max() == 0
            driven.add(value, np.zeros(2))
    zeros = Driven()
    for _ in range(600):
        zeros.add(0.0, np.zeros(2))
    assert count_tail(zeros.numbers, 1.0) == 1 / 601
    assert np.isnan(count_tail(driven.numbers, 0.5)) and np.isnan(count_tail(driven.numbers, -1.0))


def test_a_burst_in_a_stream_of_zeros_is_an_alarm_and_a_lone_error_is_none(mixture):
    """The largest count by far of N rows is an alarm when N times the rate is at least one."""
    values, rate = RNG.poisson(0.05, 3_000).astype(float), 1 / 2_000
    values[2_500:2_510] = [5, 6, 4, 6, 8, 8, 8, 3, 8, 6]
    found = mixture.filter(list(map(float, range(3_000))), values[:, None].tolist(), alarm=alarm(rate)).steps
    alarms = np.flatnonzero([step.alarm for step in found])
    assert {2_500, 2_504} <= set(alarms.tolist()) <= set(range(2_500, 2_510))


def test_the_integer_that_is_forecast_is_not_unusual(mixture):
    """However narrow the forecast of a series that repeats itself: it is between integers, so no value meets it."""
    values = np.tile([2.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0], 60)
    values[-20] = 9.0
    steps = mixture.filter(list(map(float, range(420))), values[:, None].tolist(), horizon=(1.0,)).steps
    forecasts = np.array([step.forecast[0].median[0] for step in steps])
    scores, is_met = np.array([step.anomaly for step in steps]), np.append(False, forecasts[:-1] == values[1:])
    assert is_met[100:].sum() > 100 and scores[100:][is_met[100:]].max() < 0.5
    assert not is_met[-20] and scores[-20] > 0.99


def test_columns_that_are_not_all_counts_are_scored_by_the_forecast(mixture):
    both = mixture.sized(2)
    counts, other = RNG.poisson(0.05, 200).astype(float), RNG.normal(size=200)
    times = list(map(float, range(200)))
    counts[-1] = 9.0
    one = both.filter(times, np.stack([counts, other], axis=1).tolist()).steps[-1]
    count = mixture.filter(times, counts[:, None].tolist()).steps[-1]
    assert one.anomaly != pytest.approx(max(0.0, 1 - 2 * (1 - count.anomaly)))
    pair = both.filter(times, np.stack([counts, counts], axis=1).tolist()).steps[-1]
    single = mixture.filter(times, counts[:, None].tolist()).steps[-1]
    assert pair.anomaly == pytest.approx(max(0.0, 1 - 2 * (1 - single.anomaly)))


@pytest.mark.parametrize("before", [[5.0] * 50, [0.0] * 100, RNG.normal(5, 0.01, 60).tolist()])
@pytest.mark.parametrize("slope", [1.0, 10.0])
def test_a_ramp_after_rest_is_followed(before, slope):
    """Each value is beyond all others: the first one may be odd, the next one is believed."""
    driven, ramp = Driven(), before[-1] + slope * np.arange(1, 101)
    for value in [*before, *ramp]:
        mixed = driven.add(value, np.full(2, value))
    assert mixed[0] == pytest.approx(ramp[-1], rel=0.1)
    assert driven.numbers[at.LATEST] == ramp[-1]


def test_one_impossible_value_is_left_out_also_of_a_constant():
    for usual in (np.zeros(60), RNG.normal(size=60)):
        driven = Driven()
        for value in [*usual, 1e6, *usual]:
            driven.add(value, np.zeros(2))
        assert driven.numbers[at.LARGEST] == usual.max() and driven.numbers[at.LARGEST_OF_ALL] == 1e6


@pytest.mark.parametrize("lead", [10.0, 30.0, 300.0])
def test_a_lead_without_experience_is_the_networks(mixture, lead):
    """No trend of a few values, or of a first odd one, is drawn out for ever."""
    alone = SeriesRuntime("series", "0" * 64, decoder(network()))
    for values in ([100.0] + [10.0, 11.0] * 3, [1e6] + [10.0, 11.5] * 4):
        one, other = (last(model, values, (lead,)).forecast[0] for model in (alone, mixture))
        assert abs(other.median[0] - one.median[0]) <= 0.5  # whole numbers or not


def test_the_mean_is_within_the_widest_interval(mixture):
    walk = RNG.normal(size=300).cumsum()
    for values in ([3.0] * 100 + [1e6] + [3.0] * 99, [10.0, 11.0] * 100 + [1000.0, 1001.0] * 100, walk.tolist()):
        for point in last(mixture, values, (1.0, 24.0, 100.0), levels=(0.5, 0.99)).forecast:
            ((low, high),) = point.interval["0.99"]
            assert low - 1 <= point.mean[0] <= high + 1


def test_no_interval_is_narrower_than_the_last_surprise(mixture):
    """However quiet the series was before; and it is forgotten within some rows."""
    for before in ([0.0] * 40, (5 + 0.01 * RNG.normal(size=60)).tolist()):
        start = before[-1]
        for point in last(mixture, [*before, start + 3, start + 17], (1.0, 7.0), levels=(0.9,)).forecast:
            ((low, high),) = point.interval["0.9"]
            assert high - low >= 13
        after = last(mixture, [*before, start + 17, *before], (1.0,), levels=(0.9,)).forecast[0]
        ((low, high),) = after.interval["0.9"]
        assert high - low < 13


def test_a_recurring_peak_widens_only_the_next_rows():
    """Unlike the first one that is not an outlier, which may be a new level."""
    driven, widths = Driven(), []
    for t in range(200):
        driven.add(70.0 if t % 40 == 39 else 10 + RNG.normal(), np.full(2, 10.0))
        if t % 40 == 39:
            widths.append(driven.posterior.half_widths[:, 0, 2].copy())
    assert (widths[1] >= 40).all()
    assert widths[-1][0] >= 40 and widths[-1][1] < 10


def test_integers_are_shifted_by_whole_numbers_and_intervals_keep_zero():
    """As of demand that is zero in most months: an interval of the network that contains zero contains it still."""
    driven = Driven()
    for value in RNG.poisson(0.6, 60).astype(float):
        driven.add(value, np.full(2, 0.2))
        posterior = driven.posterior
        posterior.forecast_mean[:, 0], posterior.half_widths[:] = 0.2, 0.25
        mix_column(driven.numbers, driven.memory, np.array(LEADS), np.zeros(3), 1.0, posterior, 0, driven.work)
    found = posterior.forecast_mean[:, 0]
    assert ((found == 0.2) | (np.rint(found) > 0)).all()
    assert (found[:, None] - posterior.half_widths[:, 0, :5] <= 1e-12).all()
    for value in RNG.normal(size=20):
        driven.add(value, np.full(2, 0.2))
    assert (driven.posterior.forecast_mean != 0.2).all()


def test_a_forecast_of_counts_is_never_below_zero(mixture):
    """Nor is that of a value when it came, by which its direction and deviation are judged."""
    values = np.tile([40.0, 42.0, 41.0, 0.0, 0.0, 0.0], 30)
    values[120:132] = 0.0
    found = mixture.filter(list(map(float, range(180))), values[:, None].tolist(), horizon=(1.0,)).steps
    expected = [value - step.innovation[0] for value, step in zip(values, found, strict=True)]
    assert min(expected[10:]) >= 0.0


def test_a_counter_goes_beyond_100(mixture):
    (point,) = last(mixture, [float(k) for k in range(1, 101)], (1.0,)).forecast
    assert max(bounds_of(point)) > 100


@pytest.mark.parametrize("furthest", [1, 3, 9, 100, 512, 576, 2_016, 10_080])
def test_weights_are_learned_at_all_horizons_up_to_the_last(mixture, furthest):
    """Forecasts of a recorded series at each row, so that no horizon has the weights of a new stream."""
    unit = 300.0
    found = np.array(followed(mixture, unit, furthest * unit)) / unit
    nearest = {int(np.argmin(np.abs(np.log(at.LEADS / cells)))) for cells in range(1, furthest + 1)}
    scored = {int(np.argmin(np.abs(np.log(at.LEADS / cells)))) for cells in found}
    assert scored == nearest and furthest in found
    # One of those near the furthest is no multiple of a season.
    near = [cells for cells in found.tolist() if cells > 0.7 * furthest]
    assert furthest < 4 or any(cells % 2 == 1 for cells in near)


def test_a_horizon_of_whole_seasons_is_not_the_only_one_that_is_scored(mixture):
    """A week ahead of a day that repeats itself: the last value is right at whole days, and wrong in between. Other
    horizons near it must not use weights that were learned at whole days alone."""
    unit, rows = HOUR, 24 * 30
    moments = YEAR * 40 + unit * np.arange(rows + 48)
    usual = 50 + 20 * np.sin(2 * np.pi * np.arange(rows + 48) / 24) + np.tile(RNG.normal(size=24), (rows + 48) // 24)
    leads = followed(mixture, unit, 48 * unit)
    options = FilterOptions(moments[:rows], usual[:rows, None], np.ones(rows), (0.9,), tuple(leads))
    state = FilteredSequence.collect(mixture.work(options)).state
    found = mixture.ahead(state, (0.9,), (unit * np.arange(33, 48)).tolist(), ReadoutOptions(weights=True), None)
    assert found.weights[:, 0, at.LAST].max() < 0.05


def test_the_first_forecast_of_a_season_has_no_weight():
    """A counter has no season. On the second day, the value of yesterday is far below it."""
    driven, errors = Driven(), []
    for t, value in enumerate(5_000 + np.cumsum(RNG.uniform(0.5, 1.5, 36))):
        moments = YEAR * 40 + HOUR * (t + np.array([0.0, *LEADS]))
        driven.add(value, np.full(2, value - 3), moments, HOUR)
        errors.append(abs(driven.work.prior_forecasts[at.MIXED] - value))
    assert driven.numbers[at.SEASON] == 24
    assert max(errors[20:]) < 1.5
