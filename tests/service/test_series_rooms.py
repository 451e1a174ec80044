"""Room that the series network works in, and what is kept for each number of columns: bounded, whatever is asked."""

import gc
import itertools
import weakref

import numpy as np
import pytest

from rfa.runtime.series.filter import SeriesRuntime
from rfa.runtime.series.rooms import Rooms
from rfa.service.engine.models import Models
from rfa.service.engine.served import MOST_SIZES, Served
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings
from tests.runtime.series.test_series_runtime import decoder, network, told


@pytest.fixture
def runtime():
    return SeriesRuntime("series", "0" * 64, decoder(network()))


def test_rooms_of_all_shapes_together_are_bounded(runtime):
    """Fewer than there were shapes, in bytes that the budget of requests has set aside; of one shape there is one."""
    sizes, horizons = (1, 2, 8, 33, 64), (0, 1, 256)
    for size, horizon in itertools.product(sizes, horizons):
        for _ in range(2):
            before = runtime.rooms.idle
            told(runtime.sized(size), range(3), np.ones((3, size)), horizon=tuple(range(1, horizon + 1)))
        assert runtime.rooms.held_bytes <= runtime.kept_bytes
        assert 0 < runtime.rooms.idle == before
    assert runtime.rooms.idle < len(sizes) * len(horizons)
    assert Models({}, {"series": runtime}, []).kept_bytes == runtime.kept_bytes


def test_the_room_used_last_is_kept_and_nobody_shares_one():
    rooms = Rooms(most_bytes=3 * 80)
    made = []

    def make():
        made.append((np.zeros(10),))
        return made[-1]

    with rooms.lent((1,), make) as one, rooms.lent((1,), make) as other:
        assert one is not other
    assert (rooms.idle, rooms.held_bytes) == (2, 160)
    for key in (1, 2, 3, 1):
        with rooms.lent((key,), make):
            pass
    assert (rooms.idle, rooms.held_bytes, len(made)) == (3, 240, 4)
    with rooms.lent((2,), make), rooms.lent((3,), make):
        pass
    assert len(made) == 4
    with rooms.lent((4,), lambda: (np.zeros(100),)):  # larger than all together: nothing else is kept beside it
        assert (rooms.idle, rooms.held_bytes) == (0, 800)
    assert (rooms.idle, rooms.held_bytes) == (0, 0)


def test_a_room_of_a_call_that_failed_is_given_back():
    rooms = Rooms()
    with pytest.raises(RuntimeError), rooms.lent((1,), lambda: (np.zeros(10),)):
        raise RuntimeError
    assert rooms.idle == 1


def test_numbers_of_columns_are_kept_for_as_long_as_they_are_used(runtime):
    settings, metrics = Settings(bundles=(), max_streams=2, max_running=2), Metrics()
    served = Served.build(Models({}, {"series": runtime}, []), settings, metrics, DriftMeter(0, metrics))
    own = served.place(runtime)
    busy = served.place(runtime.sized(2))
    seat = busy.filtering.pool.acquire()
    first = weakref.ref(runtime.sized(3))
    served.place(runtime.sized(3))
    for size in range(4, 5 + MOST_SIZES):
        served.place(runtime.sized(size))
    assert len(served.places) == len(served.pools) == 1 + MOST_SIZES
    assert served.place(runtime) is own and served.place(runtime.sized(2)) is busy
    gc.collect()
    assert first() is None
    busy.filtering.pool.release(seat)
    for size in range(20, 20 + MOST_SIZES):
        served.place(runtime.sized(size))
    assert ("series", 2) not in served.places and len(served.places) == 1 + MOST_SIZES


def test_an_unused_state_of_many_columns_takes_no_memory(runtime):
    initial = runtime.sized(64).steps.initial
    assert sum(array.base.nbytes for array in initial.values()) < runtime.state_bytes
    assert all(array.flags.carray for array in runtime.sized(64).start().tensors.values())
