"""The series network as it is served: laws of every filter, on a network of random weights."""

import gc
import itertools
import weakref
from types import ModuleType

import numpy as np
import pytest
import torch

from rfa.model.series.network import LeadQueries, SeriesNetwork
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.steps import Batch
from rfa.runtime.handles import HandleType
from rfa.runtime.pool import StatePool
from rfa.runtime.series import clock_numba, decoder_numba, stream_numba
from rfa.runtime.series import rows as series_rows
from rfa.runtime.series.averages_numba import SeriesTokens, describe
from rfa.runtime.series.config import LEVELS, MEDIAN, SeriesConfig
from rfa.runtime.series.decoder_numba import SeriesDecoder
from rfa.runtime.series.filter import MOST_COLUMNS, SeriesRuntime
from rfa.runtime.uncertainty.interface import Piece, ReadoutOptions
from rfa.runtime.uncertainty.rules import LAST
from rfa.runtime.uncertainty.stretch import FIRST
from rfa.runtime.views import ViewType
from tests.model.test_series_network import SMALL

HORIZON = (1.0, 3.0, 24.0, 90.0)


def network(config=SMALL):
    torch.manual_seed(0)
    model = SeriesNetwork(config).eval()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def decoder(model):
    return SeriesDecoder.of({name: tensor.numpy() for name, tensor in model.state_dict().items()})


@pytest.fixture(scope="module")
def network_runtime():
    return SeriesRuntime("series", "0" * 64, decoder(network()))


@pytest.fixture(scope="module", params=["network", "mixture"])
def runtime(network_runtime, request):
    return network_runtime if request.param == "network" else network_runtime.mixed()


def season(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(rows)
    return 50 + 3 * np.sin(2 * np.pi * t / 24) + 0.3 * rng.standard_normal(rows)


def filtered(model, times, values, state=None, horizon=HORIZON):
    """The columns of the outputs, and the state after them."""
    rows = [None if row is None else np.atleast_1d(row).tolist() for row in values]
    found = model.filter(np.asarray(times, float).tolist(), rows, horizon=horizon, levels=(0.5, 0.9), state=state)
    parts = [piece.outputs for piece in found.pieces]
    names = [name for name in parts[0]._fields if name != "tally"]
    return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}, found.state


def same(one, other, rows=slice(None)):
    return all(np.array_equal(one[name][rows], other[name], equal_nan=True) for name in other)


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


def irregular(rows=300):
    rng = np.random.default_rng(2)
    times = np.cumsum(rng.choice([0.3, 1.0, 1.0, 1.0, 2.0, 40.0], rows, p=[0.1, 0.4, 0.2, 0.2, 0.08, 0.02]))
    values = season(rows).tolist()
    for row in rng.integers(0, rows, 40):
        values[row] = None
    return times, values


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


def one_by_one(runtime, series, levels=(0.5, 0.9)):
    """Several streams in one pool, a row of each at a time."""
    pool = StatePool(runtime.state_fields, 8)
    slots = [pool.acquire() for _ in series]
    for slot in slots:
        runtime.put(pool, slot, runtime.start())
    readout = runtime.readout(levels, HORIZON, 0)
    found = []
    for row in range(len(series[0][0])):
        batch = Batch(
            pool.rows(slots), np.array([times[row] for times, _ in series]),
            np.array([[np.nan if values[row] is None else values[row]] for _, values in series]), np.ones(len(series)),
        )  # fmt: skip
        found.append(runtime.steps.advance(pool, batch, readout, traced=False)[0])
    return [
        {name: np.stack([getattr(part, name)[i] for part in found]) for name in found[0]._fields if name != "tally"}
        for i in range(len(series))
    ]


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


def test_a_look_changes_nothing(runtime):
    """Nothing at the time of the row before: forecasts as they were told, and the stream goes on as if it had not
    been, at whole patches too."""
    x = season(200)
    for end in (1, 2, 5, 100, 112, 199):
        found, state = filtered(runtime, np.arange(float(end)), x[:end])
        look, after = filtered(runtime, [end - 1.0], [None], state)
        assert np.array_equal(look["moments"][0], found["moments"][-1]), end
        assert np.array_equal(look["mean"][0], found["mean"][-1]) and np.array_equal(look["std"][0], found["std"][-1])
        on, _ = filtered(runtime, np.arange(float(end), 200.0), x[end:], state)
        other, _ = filtered(runtime, np.arange(float(end), 200.0), x[end:], after)
        assert np.array_equal(on["moments"][:, :, 0], other["moments"][:, :, 0])


def test_a_long_gap_is_bounded_work(runtime):
    times = [*range(100), 10**9, 10**9 + 1]
    found, _ = filtered(runtime, times, season(102))
    assert np.isfinite(found["moments"]).all()
    # After it hardly anything is known of where the level is: what is told covers what was there.
    assert found["std"][100, 0] > 0


def test_states_that_were_tampered_with_do_no_harm(runtime):
    """Any bytes that pass for numbers: answers or refusals, and nothing read beyond what a stream holds."""
    _, state = filtered(runtime, np.arange(100.0), season(100))
    packed, rng = runtime.pack(state), np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(packed)
        for place in rng.integers(45, len(data), 40):
            data[place] = rng.integers(256)
        try:
            found, _ = filtered(runtime, np.arange(100.0, 120.0), season(20), runtime.unpack(bytes(data)))
        except InvalidInput:
            continue
        assert all(np.isfinite(found[name]).all() for name in ("mean", "std", "moments", "bands"))


def test_what_a_column_may_be_of(runtime):
    assert runtime.sized(3) is runtime.sized(3)
    with pytest.raises(InvalidInput, match="64 columns"):
        runtime.sized(MOST_COLUMNS + 1)
    with pytest.raises(InvalidInput, match="attention"):
        runtime.readout((0.5,), (), 0, ReadoutOptions(mode="attention"))


def test_a_state_is_at_most_64_kilobytes_in_base64():
    model = SeriesRuntime("series", "", decoder(SeriesNetwork(SeriesConfig(d_model=192, mlp_ratio=3)).eval()))
    assert 4 * -(-model.state_bytes // 3) <= 64 << 10


def test_a_reused_slot_of_the_pool_keeps_nothing_of_its_last_stream(runtime):
    """Buffers are reused: what they hold of one stream must not be taken for another's."""
    pool, readout = StatePool(runtime.state_fields, 1), runtime.readout((0.5, 0.9), HORIZON, 0)
    expected, _ = filtered(runtime, np.arange(100.0), season(100, seed=2))
    for seed in (1, 2):
        slot = pool.acquire()
        runtime.put(pool, slot, runtime.start(0))
        values = season(100, seed=seed)[:, None]
        parts = [
            runtime.follow(
                pool, Piece(slot, np.arange(a, a + 50.0), values[a : a + 50], np.ones(50), readout, 0)
            ).outputs
            for a in (0, 50)
        ]
        pool.release(slot)
    found = {name: np.concatenate([getattr(part, name) for part in parts]) for name in expected}
    assert same(found, expected)


def reached(kernel, found):
    """Modules of all functions that a kernel calls."""
    found.add(kernel.py_func.__module__)
    names, scope = kernel.py_func.__code__.co_names, kernel.py_func.__globals__
    at_hand = [scope.get(name) for name in names]
    at_hand += [getattr(one, name, None) for one in at_hand if isinstance(one, ModuleType) for name in names]
    for one in at_hand:
        if hasattr(one, "py_func") and one.py_func.__module__.startswith("rfa.") and one is not kernel:
            reached(one, found)


def classes(kind, found):
    """Modules of all classes in a type."""
    if isinstance(kind, HandleType | ViewType):
        found.add(type(kind).__module__)
        classes(kind.content, found)
    for one in getattr(kind, "types", ()):
        classes(one, found)
    if hasattr(kind, "instance_class"):
        found.add(kind.instance_class.__module__)


@pytest.mark.parametrize("made", [series_rows, decoder_numba, stream_numba], ids=lambda one: one.__name__)
def test_kernels_are_cached_by_all_files_that_they_are_built_from(runtime, made):
    """Else a process takes from the disk what an older version of one of them became."""
    runtime.filter([0.0, 1.0], [[0.0], [1.0]], horizon=(1.0,))
    found = set()
    kernels = [getattr(one, "kernel", one) for one in vars(made).values()]
    own = [one for one in kernels if hasattr(one, "py_func") and one.py_func.__module__ == made.__name__]
    for kernel in own:
        reached(kernel, found)
        for kind in itertools.chain(*kernel.signatures):
            classes(kind, found)
    if made is series_rows:
        pool, readout = StatePool(runtime.state_fields, 1), runtime.readout((0.9,), (1.0,), 0)
        with runtime.steps.borrow(pool, readout, 1, 1) as borrowed:
            for one in borrowed.handles:
                classes(one.kind, found)
    assert len(found) > 1 and found <= {one.__name__ for one in (*made.SOURCES, made)}


def test_buffers_keep_nothing_of_the_streams_that_used_them(runtime):
    """Their handle is cached for the same pool, and holds no memory of a pool that is gone."""
    readout = runtime.readout((0.9,), (1.0,), 0)

    def handle_of(pool):
        with runtime.steps.borrow(pool, readout, 1, 1) as borrowed:
            return borrowed.handle

    pool, other = (StatePool(runtime.state_fields, 1) for _ in range(2))
    assert handle_of(pool) is handle_of(pool)
    assert handle_of(other) is not handle_of(pool)
    kept = [weakref.ref(array) for array in pool.arrays.values()]
    del pool
    gc.collect()
    assert kept and not any(one() is not None for one in kept)
