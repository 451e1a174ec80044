"""The series network as it is served: laws of every filter, on a network of random weights."""

import numpy as np
import pytest
import torch

from rfa.model.series.network import LeadQueries
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.steps import Batch
from rfa.runtime.pool import StatePool
from rfa.runtime.series import clock_numba
from rfa.runtime.series.averages_numba import SeriesTokens, describe
from rfa.runtime.series.config import LEVELS, MEDIAN
from rfa.runtime.series.filter import MOST_COLUMNS
from rfa.runtime.uncertainty.interface import ReadoutOptions
from rfa.runtime.uncertainty.rules import LAST
from rfa.runtime.uncertainty.stretch import FIRST
from tests.runtime.series.series_streams import HORIZON, filtered, irregular, network, one_by_one, same, season


def test_forecasts_are_those_of_the_network(network_runtime):
    """Of a regular series, by torch on tokens of the whole of it, at every phase of a patch."""
    x = season(200)
    found, _ = filtered(network_runtime, np.arange(200.0), x)
    model = network()
    leads = np.array(HORIZON, int)
    for end in (33, 64, 150, 199, 200):
        ends = np.array([*range(16, end + 1, 16), *([end] if end % 16 else [])])
        count = len(ends)
        tokens = SeriesTokens.allocate((count, len(leads)))
        describe(x[:end], ends, np.tile(leads, (count, 1)), tokens)
        queries = LeadQueries(
            torch.from_numpy(np.tile(leads, (1, count, 1))), torch.from_numpy(tokens.paths)[None],
        )  # fmt: skip
        features = torch.from_numpy(tokens.features)[None]
        with torch.no_grad():
            quantiles = model(features, torch.from_numpy(ends)[None], queries)[0, -1].double().numpy()
        scale = tokens.scales[-1]
        expected = tokens.centres[-1] + scale * np.sinh(quantiles)
        np.testing.assert_allclose(found["moments"][end - 1, :, 0, 0], expected[:, MEDIAN], rtol=0, atol=2e-3 * scale)
        if end > 90:
            continue
        # Nothing was scored at the longest lead: its intervals are the network's own.
        low, high = (expected[3, LEVELS.index(q)] for q in (0.05, 0.95))
        np.testing.assert_allclose(found["bands"][end - 1, 3, 1, 0], [low, high], rtol=0, atol=2e-2 * (high - low))


@pytest.mark.parametrize("kind", ["regular", "irregular"])
def test_a_series_is_the_same_however_it_is_cut(runtime, kind):
    times, values = (np.arange(300.0), season().tolist()) if kind == "regular" else irregular()
    whole, end = filtered(runtime, times, values)
    for cuts in ([150], [1, 2, 3, 17, 100, 299], [16, 32, 64]):
        state, begin = None, 0
        for cut in [*cuts, 300]:
            part, state = filtered(runtime, times[begin:cut], values[begin:cut], state)
            assert same(whole, part, slice(begin, cut)), cut
            state = runtime.unpack(runtime.pack(state))
            begin = cut
        assert runtime.pack(state) == runtime.pack(end)


def test_a_stream_is_the_same_in_any_company(runtime):
    series = [
        (np.arange(300.0), season().tolist()),
        irregular(),
        (np.arange(300.0) * 60, (season(seed=5) * 1e6).tolist()),
    ]
    together = one_by_one(runtime, series)
    for (times, values), live in zip(series, together, strict=True):
        alone, _ = filtered(runtime, times, values)
        assert same(alone, live)


def test_columns_are_streams_of_their_own(runtime):
    x, y = season(), season(seed=3) * 4 - 100
    both = runtime.sized(2)
    rows: list = [[a, b] for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    rows[100][1] = rows[40][0] = None
    rows[41] = None
    found, _ = filtered(both, np.arange(300.0), rows)
    for column in range(2):
        values = [None if row is None else row[column] for row in rows]
        alone, _ = filtered(runtime, np.arange(300.0), values)
        for name in ("mean", "std", "innovation"):
            assert np.array_equal(found[name][:, column], alone[name][:, 0], equal_nan=True), name
        assert np.array_equal(found["moments"][:, :, :, column], alone["moments"][:, :, :, 0])
        assert np.array_equal(found["bands"][:, :, :, column], alone["bands"][:, :, :, 0])


def test_a_column_may_begin_late(runtime):
    rows = [
        [a, None if i < 50 else b]
        for i, (a, b) in enumerate(zip(season().tolist(), season(seed=3).tolist(), strict=True))
    ]
    found, _ = filtered(runtime.sized(2), np.arange(300.0), rows)
    alone, _ = filtered(runtime, np.arange(250.0), season(seed=3)[50:])
    assert np.array_equal(found["moments"][50:, :, 0, 1], alone["moments"][:, :, 0, 0])
    assert all(np.isfinite(found[name]).all() for name in ("mean", "std", "moments", "bands"))


@pytest.mark.parametrize("factor", [1e-9, 1e9])
def test_units_are_the_callers(runtime, factor):
    """By a power of ten rounding alone differs; a random network makes more of it than a trained one. The stream is
    shorter than an hour, which is a season.
    """
    x = season()
    one, _ = filtered(runtime, np.arange(300.0), x - 50)
    other, _ = filtered(runtime, np.arange(300.0) * 3, (x - 50) * factor, horizon=tuple(3 * h for h in HORIZON))
    scale = np.abs(one["moments"][:, :, 1]).mean()
    np.testing.assert_allclose(other["moments"] / factor, one["moments"], rtol=0, atol=1e-2 * scale)
    np.testing.assert_allclose(other["mean"] / factor, one["mean"], rtol=0, atol=1e-2 * scale)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_level_tells_nothing_once_zero_is_far(runtime, sign):
    """Of values that have all their digits at both levels, from the fourth row on.

    Products with the level, and an expert that forecasts logarithms, have a curvature x² / 2L for values x at level L.
    """
    near, far = sign * 2.0**20, sign * 2.0**30
    x = np.rint(season(120) * 2**10) / 2**10
    levels = {"mean": 1, "interval": 1, "bands": 1, "moments": np.array([1.0, 0.0, 1.0])[:, None]}
    one, other = (filtered(runtime, np.arange(120.0), level + x)[0] for level in (near, far))
    for name, outputs_of in one.items():
        level = levels.get(name, 0)
        # Widths of 1e-3 and more, at a level that float64 tells to 1e-7.
        found, expected = other[name] - level * far, outputs_of - level * near
        np.testing.assert_allclose(found[3:], expected[3:], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_guess_by_the_size_of_a_value_is_not_remembered(runtime):
    """Near zero the second value is as far off as was guessed, far from it that is nothing; neither teaches."""
    one, other = (filtered(runtime, np.arange(3.0), level + np.array([20.0, 25.0, 23.0]))[1] for level in (0, 2.0**30))
    for name, number in (("alarm.last", LAST), ("alarm.stretch", FIRST)):
        other.adaptive[name][:, number] -= 2.0**30  # a value, and not learned
    assert one.surprise == other.surprise
    for name, learned in one.adaptive.items():
        if name != "adaptive.mean":
            np.testing.assert_array_equal(learned, other.adaptive[name], err_msg=name)


TINY = np.finfo(np.float32).tiny


@pytest.mark.parametrize(
    "values",
    [[0.0] * 60, [5.0] * 60, [0.0, 1.0] * 30, [1e-300] * 30 + [2e-300] * 30, [1e12, -1e12] * 30, [None] * 60,
     [None] * 30 + [3.0] * 30, list(range(60)), [3.0] * 30 + [3e9] + [3.0] * 29],
    ids=["zeros", "fives", "alternating", "tiny", "huge", "nothing", "late", "line", "spike"],
)  # fmt: skip
def test_plain_series_are_reported_in_numbers(runtime, values):
    found, _ = filtered(runtime, np.arange(60.0), values)
    assert all(np.isfinite(found[name]).all() for name in ("mean", "std", "moments", "bands", "precision"))
    width = np.diff(found["bands"], axis=-1)
    if runtime.name == "series":
        numbers = np.array(values, float)
        # While all values are 0 in float32, there is no scale, and estimates are 0.
        is_zero = np.array([(np.abs(numbers[: row + 1]) < TINY).all() for row in range(60)])
        assert (found["std"][~is_zero] > 0).all() and (width[~is_zero] > 0).all()
        assert not found["std"][is_zero].any() and not width[is_zero].any()
    else:  # the bands of whole numbers are whole, and constants are exact
        assert (found["std"] >= 0).all() and (width >= 0).all()


def test_the_first_rows_promise_little(runtime):
    found, _ = filtered(runtime, np.arange(6.0), [20.0, 21.0, 19.0, 20.5, 20.2, 20.1])
    width = np.diff(found["bands"][:, 0, 1, 0], axis=-1)[:, 0]
    assert width[0] > 20 and width[1] > 4 and (width[:3] > 2).all()
    assert found["mean"][0, 0] == 20


@pytest.mark.parametrize("place", [2, 3, 4, 7, 12, 20])
def test_early_on_what_may_be_an_outlier_is_reported_as_one_or_a_move(runtime, place):
    """Of two places, with a chance K of the one at a distance e, the variance is K (1 - K) e²."""
    x = np.random.default_rng(1).normal(100, 5, 21)
    x[place] = 1e5
    found, _ = filtered(runtime, np.arange(21.0), x)
    mean, std = found["mean"][place, 0], found["std"][place, 0]
    to_new, to_old = x[place] - mean, mean - 100
    # An unknown level is within 6 deviations of noise of the middle of the rest; 1 % for what fits after all.
    assert std >= 0.99 * np.sqrt(to_new * (to_old - 30))


def test_a_number_beyond_all_is_left_out_and_the_rest_of_its_stream(runtime):
    values = season(40).tolist()
    values[25] = 1e200
    with pytest.raises(InvalidInput):
        filtered(runtime, np.arange(40.0), values)
    pool = StatePool(runtime.state_fields, 2)
    slots = [pool.acquire(), pool.acquire()]
    for slot in slots:
        runtime.put(pool, slot, runtime.start())
    readout = runtime.readout((0.5,), (1.0,), 0)
    rows = np.repeat(pool.rows(slots), 40)
    batch = Batch(rows, np.tile(np.arange(40.0), 2), np.array([*values, *season(40)])[:, None], np.ones(80))
    found, _ = runtime.steps.advance(pool, batch, readout, traced=False)
    assert found.is_good.tolist() == [True] * 25 + [False] * 15 + [True] * 40
    _, expected = filtered(runtime, np.arange(25.0), values[:25], horizon=(1.0,))
    assert runtime.pack(runtime.get(pool, slots[0], 0)) == runtime.pack(expected)


@pytest.mark.parametrize("first", [[86_400.0], [1e-6], [1.0], [3_600.0], [0.1, 0.1], [30 * 86_400.0]])
def test_first_lags_that_are_nothing_like_the_others_are_forgotten(runtime, first):
    """Rows are a cell each all the same, but for those that a shorter first lag lets be gaps."""
    leads, x = (60.0, 1440.0), season(200)
    expected, _ = filtered(runtime, 60.0 * np.arange(200), x, horizon=leads)
    begin = np.cumsum([0.0, *first])
    times = np.concatenate([begin, begin[-1] + 60.0 * np.arange(1, 201 - len(begin))])
    found, state = filtered(runtime, times, x, horizon=leads)
    assert state.tensors["series.clock"].ravel()[clock_numba.LAG] == pytest.approx(60.0)
    if len(first) == 1 and runtime.name == "series":  # the mixture keeps what it learned before
        np.testing.assert_allclose(found["moments"][100:], expected["moments"][100:], rtol=1e-6)


@pytest.mark.parametrize(("before", "after"), [(60.0, 1.0), (1.0, 60.0)])
def test_a_stream_that_changes_its_rate_is_reported_by_the_new_one(runtime, before, after):
    times = np.concatenate([before * np.arange(100), before * 99 + after * np.arange(1, 101)])
    _, state = filtered(runtime, times, season(200))
    assert state.tensors["series.clock"].ravel()[clock_numba.LAG] == pytest.approx(after)


def test_a_gap_now_and_then_is_no_other_rate(runtime):
    lags = np.where(np.arange(300) % 7 == 6, 50.0, 1.0)
    _, state = filtered(runtime, np.cumsum(lags), season(300))
    assert state.tensors["series.clock"].ravel()[clock_numba.LAG] < 1.5


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_states_are_reported_as_well_as_they_are_recorded(runtime, noise):
    """This network forecasts badly, and its forecasts hardly move: that must not pass for knowledge of the state."""
    rng = np.random.default_rng(4)
    truth = 10 * np.sin(2 * np.pi * np.arange(1_000) / 12)
    found, _ = filtered(runtime, np.arange(1_000.0), truth + noise * rng.standard_normal(1_000))
    late = slice(300, None)
    low, high = (found["interval"][late, 1, 0, side] for side in (0, 1))
    # 700 rows whose errors hang together over about ten: 0.9 less five deviations.
    assert ((low <= truth[late]) & (truth[late] <= high)).mean() > 0.9 - 5 * np.sqrt(0.09 / 70)


def test_a_long_gap_is_bounded_work(runtime):
    times = [*range(100), 10**9, 10**9 + 1]
    found, _ = filtered(runtime, times, season(102))
    assert np.isfinite(found["moments"]).all()
    # After it hardly anything is known of where the level is: what is told covers what was there.
    assert found["std"][100, 0] > 0


def test_what_a_column_may_be_of(runtime):
    assert runtime.sized(3) is runtime.sized(3)
    with pytest.raises(InvalidInput, match="64 columns"):
        runtime.sized(MOST_COLUMNS + 1)
    with pytest.raises(InvalidInput, match="attention"):
        runtime.readout((0.5,), (), 0, ReadoutOptions(mode="attention"))
