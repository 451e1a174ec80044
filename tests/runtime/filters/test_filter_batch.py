"""Many streams in one step: a stream's numbers are bit for bit the same alone, in any batch, and from any cut point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.auto import JOINT_NAME, AutoRuntime
from rfa.runtime.filters.compiled_system import SMALL, SystemRuntime
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.system import System
from rfa.runtime.pool import PoolSlot, StatePool
from rfa.runtime.uncertainty.interface import Row
from tests.soak.courses import as_sent

BUNDLES = Path(__file__).parents[3] / "bundles"
STEPS = 25
READOUTS: list[tuple[tuple[float, ...], tuple[float, ...], int]] = [
    ((0.9,), (), 0),
    ((0.5, 0.77, 0.9), (0.1, 0.5, 3.0), 0),
    ((0.9,), tuple(0.1 * i for i in range(1, 20)), 0),
    ((0.5,), (0.2,), 3),
]


@pytest.fixture(scope="module", params=["linear", "oscillator"])
def name(request: Any) -> str:
    return request.param


@pytest.fixture(scope="module")
def runtime(name: str) -> FilterRuntime:
    return FilterRuntime(open_bundle(BUNDLES / name))


TURN = {"A": [[-0.1, -2], [2, -0.1]], "Q": 0.3, "C": [[1, 0], [0.5, 1]], "R": [[0.5, 0.1], [0.1, 0.4]]}
WIDE = {"A": -0.1 * np.eye(SMALL + 1), "Q": 0.1, "C": np.eye(2, SMALL + 1), "R": 0.25}
LEARNED = LinearFilterConfig.from_dict(
    {
        "drift": TURN["A"], "process_noise": [[0.3, 0.0], [0.0, 0.3]], "measurement_noise": TURN["R"],
        "rule": "learned", "inner": 1,
    }
)  # fmt: skip
OF_TWO_COLUMNS: dict[str, Callable[[], FilterRuntime]] = {
    "linear": lambda: FilterRuntime(open_bundle(BUNDLES / "linear")),
    "oscillator": lambda: FilterRuntime(open_bundle(BUNDLES / "oscillator")),
    "auto": lambda: AutoRuntime.of(2),
    "auto-joint": lambda: AutoRuntime.of(2, JOINT_NAME),
    "two states": lambda: SystemRuntime(System.from_document(TURN)),
    # More states than are taken by pieces.
    "many states": lambda: SystemRuntime(System.from_document(WIDE)),
    "learned noise": lambda: SystemRuntime(System(LEARNED, {})),
}


# The kernel that learns the noise takes long to compile, and its step is tested in test_dense_numba_learned.py.
@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.slow) if n == "learned noise" else n for n in OF_TWO_COLUMNS],
)
def any_runtime(request: Any) -> FilterRuntime:
    return OF_TWO_COLUMNS[request.param]()


def observations(rng: np.random.Generator, count: int) -> list[tuple[float, list[float | None] | None, float]]:
    """Irregular times, gaps, missing components, outliers, noisy ones."""
    times = np.cumsum(rng.exponential(0.2, count))
    result: list[tuple[float, list[float | None] | None, float]] = []
    for t in times:
        y: list[float | None] | None = [float(x) for x in rng.normal(size=2) * (30 if rng.random() < 0.1 else 1)]
        chance = rng.random()
        if chance < 0.1:
            y = None
        elif chance < 0.2 and y is not None:
            y[rng.integers(2)] = None
        result.append((float(t), y, 1.0 if rng.random() < 0.7 else float(rng.uniform(0.1, 5))))
    return result


class Streams:
    """Streams in a pool, each with its own past."""

    def __init__(self, runtime: FilterRuntime, seed: int, count: int) -> None:
        self.runtime = runtime
        self.rng = np.random.default_rng(seed)
        self.pool = StatePool(runtime.state_fields, count)
        self.slots = [self.pool.acquire() for _ in range(count)]
        self.times = dict.fromkeys(self.slots, 0.0)
        for slot in self.slots:
            runtime.put(self.pool, slot, runtime.start())

    def row(self, slot: PoolSlot, observed: tuple[float, list[float | None] | None, float] | None = None) -> Row:
        if observed is None:
            ((lag, y, noise),) = observations(self.rng, 1)
            observed = self.times[slot] + lag, y, noise
        self.times[slot] = observed[0]
        levels, horizon, samples = READOUTS[self.rng.integers(len(READOUTS))]
        return Row(slot, *observed, self.runtime.readout(levels, horizon, samples), int(self.rng.integers(100)))


def needle_alone(runtime: FilterRuntime, readout: Any, seed: int) -> tuple[list[bytes], list[float], bytes]:
    pool = StatePool(runtime.state_fields, 1)
    slot = pool.acquire()
    runtime.put(pool, slot, runtime.start())
    steps, likelihoods = [], []
    for t, y, noise in observations(np.random.default_rng(seed), STEPS):
        (stepped,) = runtime.advance(pool, [Row(slot, t, y, noise, runtime.readout(*readout), 7)])
        assert stepped is not None
        steps.append(as_sent(stepped.step))
        likelihoods.append(stepped.log_likelihood)
    return steps, likelihoods, runtime.pack(runtime.get(pool, slot, 7))


def needle_in_a_crowd(
    runtime: FilterRuntime, readout: Any, seed: int, largest: int
) -> tuple[list[bytes], list[float], bytes]:
    """The same stream among a random number of random others, at a random place."""
    crowd = Streams(runtime, seed + 1000, largest)
    needle, *others = crowd.slots
    steps, likelihoods = [], []
    for observed in observations(np.random.default_rng(seed), STEPS):
        count = int(crowd.rng.integers(largest))
        rows = [crowd.row(others[i]) for i in crowd.rng.permutation(len(others))[:count]]
        place = int(crowd.rng.integers(count + 1))
        rows.insert(place, Row(needle, *observed, runtime.readout(*readout), 7))
        stepped = runtime.advance(crowd.pool, rows)
        assert None not in stepped
        found = stepped[place]
        assert found is not None
        steps.append(as_sent(found.step))
        likelihoods.append(found.log_likelihood)
    return steps, likelihoods, runtime.pack(runtime.get(crowd.pool, needle, 7))


@pytest.mark.parametrize("readout", READOUTS, ids=["plain", "horizon", "long-horizon", "samples"])
def test_a_stream_is_the_same_alone_and_in_any_batch(any_runtime: FilterRuntime, readout: Any) -> None:
    for seed, largest in ((1, 7), (3, 64)):
        assert needle_in_a_crowd(any_runtime, readout, seed, largest) == needle_alone(any_runtime, readout, seed)


def test_a_sequence_is_its_stream(any_runtime: FilterRuntime) -> None:
    levels, horizon, samples = READOUTS[3]
    times, values, noise = map(list, zip(*observations(np.random.default_rng(5), STEPS), strict=True))
    whole = any_runtime.filter(times, values, noise=noise, levels=levels, horizon=horizon, samples=samples, seed=7)
    steps, likelihoods, state = needle_alone(any_runtime, READOUTS[3], 5)
    assert ([as_sent(step) for step in whole.steps], any_runtime.pack(whole.state)) == (steps, state)
    assert whole.log_likelihood == sum(likelihoods)


def test_any_cut_point_is_crossed_bit_for_bit(any_runtime: FilterRuntime) -> None:
    times, values, noise = map(list, zip(*observations(np.random.default_rng(6), 60), strict=True))
    options: dict[str, Any] = {"levels": (0.9,), "horizon": (0.3,), "samples": 2}
    whole = any_runtime.filter(times, values, noise=noise, seed=11, **options)
    rng = np.random.default_rng(0)
    for _ in range(4):
        cuts = [0, *sorted(rng.choice(np.arange(1, 60), size=3, replace=False).tolist()), 60]
        state, steps = any_runtime.start(seed=11), []
        for begin, end in itertools.pairwise(cuts):
            part = any_runtime.filter(
                times[begin:end], values[begin:end], noise=noise[begin:end], seed=state.seed, state=state, **options
            )
            state = any_runtime.unpack(any_runtime.pack(part.state))
            steps += part.steps
        assert as_sent(steps) == as_sent(whole.steps)
        assert any_runtime.pack(state) == any_runtime.pack(whole.state)


def test_a_bad_row_is_left_alone_and_its_neighbours_do_not_notice(
    runtime: FilterRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was in the memory of its outputs, which are not written."""
    empty = np.empty

    def used(*args: Any, **options: Any) -> Any:
        array = empty(*args, **options)
        if array.dtype.kind == "f":
            array.fill(1e30)
        return array

    monkeypatch.setattr(np, "empty", used)
    for bad in ([4], [0], [0, 3, 8]):
        healthy, infected = Streams(runtime, 9, 9), Streams(runtime, 9, 9)
        for row in bad:
            for array in infected.pool.arrays.values():
                if array.dtype == np.float32:
                    array[infected.slots[row].row] = np.nan
        before = [infected.pool.read(slot) for slot in infected.slots]
        expected = runtime.advance(healthy.pool, [healthy.row(slot) for slot in healthy.slots])
        found = runtime.advance(infected.pool, [infected.row(slot) for slot in infected.slots])
        for row, slot in enumerate(infected.slots):
            after = infected.pool.read(slot)
            if row in bad:
                assert found[row] is None
                assert all(np.array_equal(after[key], value, equal_nan=True) for key, value in before[row].items())
            else:
                there, here = found[row], expected[row]
                assert there is not None and here is not None
                assert as_sent([*there]) == as_sent([*here])
                assert all(np.array_equal(after[key], value) for key, value in healthy.pool.read(slot).items())


def test_a_round_that_fails_leaves_every_stream_as_it_was(
    runtime: FilterRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose readout came first, and were done: the scheduler asks for all of them again, one by one."""
    streams = Streams(runtime, 5, 6)
    readouts = [runtime.readout(*READOUTS[0]), runtime.readout(*READOUTS[3])]
    rows = [streams.row(slot)._replace(readout=readouts[i % 2]) for i, slot in enumerate(streams.slots)]
    before = {name: array.copy() for name, array in streams.pool.arrays.items()}

    def fail(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("rfa.runtime.uncertainty.draws.draw", fail)
        with pytest.raises(MemoryError):
            runtime.advance(streams.pool, rows)
    for name, array in streams.pool.arrays.items():
        assert array.tobytes() == before[name].tobytes(), name
    assert all(runtime.advance(streams.pool, rows))


def test_a_bad_row_has_no_samples_and_its_neighbours_have_theirs(runtime: FilterRuntime) -> None:
    streams, readout = Streams(runtime, 6, 4), runtime.readout(*READOUTS[3])
    rows = [streams.row(slot)._replace(readout=readout) for slot in streams.slots]
    for name in runtime.steps.fields:
        streams.pool.arrays[name][streams.slots[1].row] = np.nan
    found = runtime.advance(streams.pool, rows)
    assert [stepped is not None for stepped in found] == [True, False, True, True]
    assert all(stepped.step.samples.shape == (3, 2) for stepped in found if stepped is not None)


def test_a_packed_state_has_one_size_and_only_sound_ones_open(runtime: FilterRuntime) -> None:
    assert f"{runtime.state_bytes:,}" in (BUNDLES.parent / "docs" / "STATE.md").read_text()
    state = runtime.filter([0.0], [[1.0, 1.0]], seed=2**64 - 1).state
    data = runtime.pack(state)
    assert len(data) == len(runtime.pack(runtime.start())) == runtime.state_bytes
    opened = runtime.unpack(data)
    assert (opened.seed, opened.count, opened.time, opened.surprise) == (2**64 - 1, 1, 0.0, state.surprise)
    unsound = [
        data[:-1],
        data + b"\0",
        b"X" + data[1:],
        b"RFAF\x05" + data[5:],  # the format before this one
        runtime.pack(replace(state, time=math.nan)),
        runtime.pack(replace(state, surprise=math.inf)),
        runtime.pack(replace(state, count=2**63)),
        data[:-8] + np.array([np.inf], "<f8").tobytes(),
    ]
    for bad in unsound:
        with pytest.raises(InvalidInput, match="state"):
            runtime.unpack(bad)


def line(x: float, xs: list[float], ys: list[float]) -> float:
    """Straight lines between points, constant outside."""
    if x <= xs[0]:
        return ys[0]
    for (x0, x1), (y0, y1) in zip(itertools.pairwise(xs), itertools.pairwise(ys), strict=True):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return ys[-1]


def test_the_numbers_of_a_row_are_those_of_the_calibration_file(name: str, runtime: FilterRuntime) -> None:
    """Each row of a batch against the file's tables, read one number at a time; for scores see test_baseline.py."""
    tables = open_bundle(BUNDLES / name).calibration["recurrent"]
    streams = Streams(runtime, 12, 30)
    readout = runtime.readout((0.5, 0.9), (tables["forecast"]["horizons"][1],), 0)
    for _ in range(4):
        rows = [streams.row(slot)._replace(readout=readout) for slot in streams.slots]
        running = [float(streams.pool.arrays["clock.surprise"][slot.row]) for slot in streams.slots]
        for row, before, stepped in zip(rows, running, runtime.advance(streams.pool, rows), strict=True):
            assert stepped is not None
            step = stepped.step
            for level in ("0.5", "0.9"):
                column = tables["levels"].index(float(level))
                scale = tables["state"]["multipliers"][column] / math.sqrt(tables["state"]["variance_scale"])
                for mean, std, (low, high) in zip(step.mean, step.std, step.interval[level], strict=True):
                    assert math.isclose((high - low) / 2, std * scale, rel_tol=1e-9)
                    assert math.isclose((high + low) / 2, mean, rel_tol=1e-9, abs_tol=1e-12)
                point = step.forecast[0]
                shift = streams.pool.arrays["adaptive.shift"][row.slot.row][1]
                for k, (std, (low, high)) in enumerate(zip(point.std, point.interval[level], strict=True)):
                    adapted = max(
                        tables["forecast"]["multipliers"][1][j] * ((1 + float(v)) / (1 - float(v))) ** 3
                        for j, v in enumerate(shift[k][: column + 1])
                    )
                    scale = adapted / math.sqrt(tables["forecast"]["variance_scale"][1])
                    assert math.isclose((high - low) / 2, std * scale, rel_tol=1e-9)
            surprise = before
            if step.nis is not None:
                seen = sum(value is not None for value in row.observation or ())
                z = ((step.nis / seen) ** (1 / 3) - (1 - 2 / (9 * seen))) / math.sqrt(2 / (9 * seen))
                surprise = 0.8 * before + 0.2 * max(-4.0, min(4.0, z))
            confidence = tables["confidence"]
            expected = line(surprise, confidence["surprise"], confidence["inside"])
            assert math.isclose(step.confidence, expected, rel_tol=1e-9)
