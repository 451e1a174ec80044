"""Buffers of the series network, and what is kept for each number of columns, are bounded."""

import gc
import itertools
import weakref

import numpy as np
import pytest

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
