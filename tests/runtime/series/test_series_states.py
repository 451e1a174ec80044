"""Streams of the series network: their states, the pool and the kernels that process them."""

import gc
import itertools
import weakref
from types import ModuleType

import numpy as np
import pytest

from rfa.model.series.network import SeriesNetwork
from rfa.runtime.errors import InvalidInput
from rfa.runtime.handles import HandleType
from rfa.runtime.pool import StatePool
from rfa.runtime.series import decoder_numba, stream_numba
from rfa.runtime.series import rows as series_rows
from rfa.runtime.series.config import SeriesConfig
from rfa.runtime.series.filter import SeriesRuntime
from rfa.runtime.uncertainty.interface import Piece
from rfa.runtime.views import ViewType
from tests.runtime.series.series_streams import HORIZON, decoder, filtered, same, season


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
