"""What rows of the series network cost: calls are cut by cells, a dear row has its quantum alone; bounded buffers."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from rfa.runtime.pool import StatePool
from rfa.runtime.series.clock_numba import MOST_EMPTY
from rfa.runtime.series.config import PATCH
from rfa.runtime.series.filter import SeriesRuntime
from rfa.runtime.series.network_steps import PREFIX
from rfa.runtime.series.tokens_numba import CELLS
from rfa.runtime.uncertainty.interface import FilterOptions, Piece
from rfa.service.engine import job as jobs
from rfa.service.engine.filter import stages
from rfa.service.engine.filter.filter_job import FilterJob
from rfa.service.engine.filter.stages import FilterStage
from rfa.service.engine.filter.stream import FilterStreamOptions, Observed, StreamJob
from rfa.service.engine.models import Models
from rfa.service.engine.served import MAX_SIZES, Served
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings
from tests.runtime.series.series_streams import decoder, filtered, network

pytestmark = pytest.mark.anyio
LATE = 60.0


@pytest.fixture(scope="module")
def runtime():
    return SeriesRuntime("series", "0" * 64, decoder(network()))


def gapped(rows, gap, columns=1, plain=60):
    """Options of a request: plain rows, and then rows after so many cells each."""
    times = np.arange(float(plain))
    times = np.append(times, times[-1] + gap * np.arange(1.0, rows + 1))
    values = np.random.default_rng(0).normal(size=(len(times), columns))
    return FilterOptions(times, values, np.ones(len(times)), (0.9,))


def cells_in(pool, pool_slot):
    return int(pool.arrays[f"{PREFIX}counts"][pool_slot.row, 0, CELLS])


class Watched(SeriesRuntime):
    """Counts the rows and the cells of each call."""

    calls: list[tuple[int, int]]
    after_call: Callable[[], None]

    def follow(self, pool, piece):
        before = cells_in(pool, piece.slot)
        steps = super().follow(pool, piece)
        self.calls.append((len(piece.times), cells_in(pool, piece.slot) - before))
        self.after_call()
        return steps


def watched(columns=1, after_call=lambda: None):
    model = Watched("series", "0" * 64, decoder(network()), columns)
    model.calls, model.after_call = [], after_call
    return model, FilterStage(model, StatePool(model.state_fields, 4), Metrics())


def run_to_end(stage, *jobs):
    while not all(job.done for job in jobs):
        stage.run([job for job in jobs if not job.done])


@pytest.mark.parametrize(("rows", "gap", "columns"), [(300, 1, 1), (40, 100, 1), (12, 3000, 1), (12, 100, 8)])
async def test_a_call_takes_so_many_cells_and_the_numbers_are_the_same(runtime, rows, gap, columns):
    model, stage = watched(columns)
    options = gapped(rows, gap, columns)
    job = FilterJob(stage, options)
    run_to_end(stage, job)
    # Rows and tokens of gaps, a column each; a single row may cost more.
    costs = [columns * (taken + (cells - taken) // PATCH) for taken, cells in model.calls]
    assert all(cost <= model.piece_rows or taken == 1 for cost, (taken, _) in zip(costs, model.calls, strict=True))
    assert sum(taken for taken, _ in model.calls) == len(options.times)
    # As few calls as that takes, but for the ends of pieces: each wave of a gap costs more than its tokens.
    assert len(model.calls) <= 2 + 5 * sum(costs) / model.piece_rows + (rows if gap > MOST_EMPTY else 0)
    parts, _ = job.outcome()
    other = runtime.sized(columns)
    pool, readout = StatePool(other.state_fields, 1), other.readout((0.9,), (), 0)
    pool_slot = pool.acquire()
    other.put(pool, pool_slot, other.start(options.seed))
    series = Piece(pool_slot, options.times, options.observations, options.noise, readout, 0)
    whole = other.follow(pool, series).outputs
    for name in ("mean", "std", "anomaly", "interval"):
        found = np.concatenate([getattr(part.outputs, name) for part in parts])
        assert np.array_equal(found, getattr(whole, name), equal_nan=True)


async def test_a_deadline_that_has_passed_ends_a_request_between_two_calls(runtime, monkeypatch):
    now = 0.0
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(stages, "QUANTUM_SECONDS", 3600.0)

    def ring():
        nonlocal now
        now += LATE * (len(model.calls) == 3)

    model, stage = watched(after_call=ring)
    options = gapped(10, 3000)
    job = FilterJob(stage, FilterOptions(**{**vars(options), "deadline_seconds": LATE / 2, "wants_state": True}))
    run_to_end(stage, job)
    _, end = job.outcome()
    taken = sum(rows for rows, _ in model.calls)
    assert (end.finish_reason, len(model.calls)) == ("deadline", 3) and 0 < taken < len(options.times)
    rows = options.observations[:taken].tolist()
    expected = runtime.filter(options.times[:taken].tolist(), rows, levels=(0.9,)).state
    assert end.state.payload == runtime.pack(expected)


async def test_a_dear_row_shares_its_quantum_with_no_other(monkeypatch):
    """Nor is it taken on the event loop; a state that is gone on from tells as much as a seat."""
    monkeypatch.setattr(stages, "QUANTUM_SECONDS", 3600.0)
    model, stage = watched()
    state = model.filter(np.arange(60.0).tolist(), np.ones((60, 1)).tolist()).state
    plain, dear = gapped(20, 1), gapped(20, 3000, plain=1)
    assert FilterJob(stage, plain).rows == 1
    assert FilterJob(stage, dear).rows == 1  # the first row of a stream comes after no gap
    resumed = FilterOptions(**{**vars(gapped(20, 1)), "times": 4000.0 + np.arange(80.0), "state": state})
    first = FilterJob(stage, resumed)
    assert first.rows > stage.max_rows
    stream_options = FilterStreamOptions((0.9,), (), 0, 1, state=state)
    stream = StreamJob(stage, stream_options, limit=10)
    stream.push(Observed(60.0, [1.0], 1.0))
    assert stream.runs_on_loop
    stream = StreamJob(stage, stream_options, limit=10)
    stream.push(Observed(4000.0, [1.0], 1.0))
    assert not stream.runs_on_loop and stream.rows > stage.max_rows
    _, wide = watched(8)
    assert FilterJob(wide, gapped(20, 1, 8)).rows == 8
    # Two that have become dear do not go on in the same quantum; one alone does.
    several = [FilterJob(stage, gapped(3, 3000)) for _ in range(2)]
    model.calls.clear()
    stage.run(several)
    assert not any(job.done for job in several) and len(model.calls) == 2
    stage.run(several[:1])
    assert several[0].done
    run_to_end(stage, several[1])


# Buffers, and what is kept for each number of columns, are bounded.


@pytest.fixture
def fresh():
    return SeriesRuntime("series", "0" * 64, decoder(network()))


def test_buffers_of_all_shapes_together_are_bounded(fresh):
    """By the bytes that the request budget reserves; one buffer of each shape at most."""
    sizes, horizons = (1, 2, 8, 33, 64), (0, 1, 256)
    for size, horizon in itertools.product(sizes, horizons):
        for _ in range(2):
            before = fresh.buffers.idle
            filtered(fresh.sized(size), range(3), np.ones((3, size)), horizon=tuple(range(1, horizon + 1)))
        assert fresh.buffers.allocated_bytes <= fresh.kept_bytes
        assert 0 < fresh.buffers.idle == before
    assert fresh.buffers.idle < len(sizes) * len(horizons)
    assert Models({}, {"series": fresh}, []).kept_bytes == fresh.kept_bytes


def test_numbers_of_columns_are_kept_for_as_long_as_they_are_used(fresh):
    settings, metrics = Settings(bundles=(), max_streams=2, max_running=2), Metrics()
    served = Served.build(Models({}, {"series": fresh}, []), settings, metrics, DriftMeter(0, metrics))
    own = served.get_stages(fresh)
    busy = served.get_stages(fresh.sized(2))
    slot = busy.filtering.pool.acquire()
    first = weakref.ref(fresh.sized(3))
    served.get_stages(fresh.sized(3))
    for size in range(4, 5 + MAX_SIZES):
        served.get_stages(fresh.sized(size))
    assert len(served.stages) == len(served.pools) == 1 + MAX_SIZES
    assert served.get_stages(fresh) is own and served.get_stages(fresh.sized(2)) is busy
    gc.collect()
    assert first() is None
    busy.filtering.pool.release(slot)
    for size in range(20, 20 + MAX_SIZES):
        served.get_stages(fresh.sized(size))
    assert ("series", 2) not in served.stages and len(served.stages) == 1 + MAX_SIZES
