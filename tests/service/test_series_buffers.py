"""Buffers of the series network, and what is kept for each number of columns, are bounded."""

import gc
import itertools
import weakref

import numpy as np
import pytest

from rfa.runtime.series.buffer_pool import BufferPool
from rfa.runtime.series.filter import SeriesRuntime
from rfa.service.engine.models import Models
from rfa.service.engine.served import MAX_SIZES, Served
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings
from tests.runtime.series.series_streams import decoder, filtered, network


@pytest.fixture
def runtime():
    return SeriesRuntime("series", "0" * 64, decoder(network()))


def test_buffers_of_all_shapes_together_are_bounded(runtime):
    """By the bytes that the request budget reserves; one buffer of each shape at most."""
    sizes, horizons = (1, 2, 8, 33, 64), (0, 1, 256)
    for size, horizon in itertools.product(sizes, horizons):
        for _ in range(2):
            before = runtime.buffers.idle
            filtered(runtime.sized(size), range(3), np.ones((3, size)), horizon=tuple(range(1, horizon + 1)))
        assert runtime.buffers.allocated_bytes <= runtime.kept_bytes
        assert 0 < runtime.buffers.idle == before
    assert runtime.buffers.idle < len(sizes) * len(horizons)
    assert Models({}, {"series": runtime}, []).kept_bytes == runtime.kept_bytes


def test_the_buffer_used_last_is_kept_and_none_is_shared():
    buffers = BufferPool(max_bytes=3 * 80)
    made = []

    def make():
        made.append((np.zeros(10),))
        return made[-1]

    with buffers.borrow((1,), make) as one, buffers.borrow((1,), make) as other:
        assert one is not other
    assert (buffers.idle, buffers.allocated_bytes) == (2, 160)
    for key in (1, 2, 3, 1):
        with buffers.borrow((key,), make):
            pass
    assert (buffers.idle, buffers.allocated_bytes, len(made)) == (3, 240, 4)
    with buffers.borrow((2,), make), buffers.borrow((3,), make):
        pass
    assert len(made) == 4
    with buffers.borrow((4,), lambda: (np.zeros(100),)):  # larger than all together: nothing else is kept beside it
        assert (buffers.idle, buffers.allocated_bytes) == (0, 800)
    assert (buffers.idle, buffers.allocated_bytes) == (0, 0)


def test_the_buffer_of_a_call_that_failed_is_returned():
    buffers = BufferPool()
    with pytest.raises(RuntimeError), buffers.borrow((1,), lambda: (np.zeros(10),)):
        raise RuntimeError
    assert buffers.idle == 1


def test_numbers_of_columns_are_kept_for_as_long_as_they_are_used(runtime):
    settings, metrics = Settings(bundles=(), max_streams=2, max_running=2), Metrics()
    served = Served.build(Models({}, {"series": runtime}, []), settings, metrics, DriftMeter(0, metrics))
    own = served.get_stages(runtime)
    busy = served.get_stages(runtime.sized(2))
    slot = busy.filtering.pool.acquire()
    first = weakref.ref(runtime.sized(3))
    served.get_stages(runtime.sized(3))
    for size in range(4, 5 + MAX_SIZES):
        served.get_stages(runtime.sized(size))
    assert len(served.stages) == len(served.pools) == 1 + MAX_SIZES
    assert served.get_stages(runtime) is own and served.get_stages(runtime.sized(2)) is busy
    gc.collect()
    assert first() is None
    busy.filtering.pool.release(slot)
    for size in range(20, 20 + MAX_SIZES):
        served.get_stages(runtime.sized(size))
    assert ("series", 2) not in served.stages and len(served.stages) == 1 + MAX_SIZES


def test_an_unused_state_of_many_columns_takes_no_memory(runtime):
    initial = runtime.sized(64).steps.initial
    assert sum(array.base.nbytes for array in initial.values()) < runtime.state_bytes
    assert all(array.flags.carray for array in runtime.sized(64).start().tensors.values())
