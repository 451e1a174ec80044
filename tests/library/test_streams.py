"""`rfa.Streams`: the numbers of `rfa.filter` and `rfa.Stream` of each series, to the bit, however rows are batched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import rfa
from rfa.library.many import BLOCK_ROWS, Streams, StreamsFull
from rfa.runtime.pool import StaleSlot

Array = np.ndarray
KEYS = ("kitchen", "hall", "cellar", "loft")


def rows_of_series(columns: int = 1, rows: int = 90) -> dict[str, tuple[Array, Array]]:
    """Times and values of some series, with steps of their own, missing numbers and spikes."""
    draw = np.random.default_rng(11)
    found = {}
    for number, key in enumerate(KEYS):
        count = rows - 7 * number
        values = 20 * number + draw.normal(size=(count, columns)).cumsum(axis=0)
        values[30:33] = np.nan
        values[50, 0], values[60, -1] = 300, np.nan
        found[key] = (60.0 + number) * np.arange(count) + draw.uniform(0, 20, count), values
    return found


def interleaved(series: dict[str, tuple[Array, Array]], seed: int) -> tuple[Array, Array, Array]:
    """The rows of all series in a random order, those of each series in its own."""
    keys = np.repeat(list(series), [len(times) for times, _ in series.values()])
    np.random.default_rng(seed).shuffle(keys)
    times, values = np.empty(len(keys)), np.empty((len(keys), next(iter(series.values()))[1].shape[1]))
    for key, (own_times, own_values) in series.items():
        times[keys == key], values[keys == key] = own_times, own_values
    return keys, times, values


def in_batches(streams: Streams, keys: Array, times: Array, values: Array, cuts: list[int]) -> dict[str, Array]:
    parts = [
        streams.step(keys[begin:end].tolist(), times[begin:end], values[begin:end])
        for begin, end in zip([0, *cuts], [*cuts, len(keys)], strict=True)
    ]
    names = [name for name in parts[0]._fields if name != "tally"]
    return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}


@pytest.mark.parametrize(("model", "columns"), [("auto", 1), ("auto", 3), ("auto-joint", 2), ("default", 1)])
def test_each_series_has_the_numbers_that_it_has_alone(model: str, columns: int) -> None:
    series = rows_of_series(columns)
    keys, times, values = interleaved(series, seed=1)
    options: Any = {"model": model, "levels": (0.5, 0.9), "alarm": 0.05}
    found = in_batches(Streams(columns, **options), keys, times, values, cuts=[1, 2, 57, 200])
    assert found["is_good"].all()
    for key, (own_times, own_values) in series.items():
        frame = pd.DataFrame(own_values, columns=[f"x{a}" for a in range(columns)])
        alone = rfa.filter(frame.assign(t=own_times), time="t", **options)
        own = {name: column[keys == key] for name, column in found.items()}
        assert np.array_equal(own["position"], np.arange(len(own_times)))
        for a in range(columns):
            assert np.array_equal(own["mean"][:, a], alone[f"x{a}_mean"])
            assert np.array_equal(own["std"][:, a], alone[f"x{a}_std"])
            assert np.array_equal(own["interval"][:, 1, a, 0], alone[f"x{a}_low90"])
            assert np.array_equal(own["interval"][:, 1, a, 1], alone[f"x{a}_high90"])
        for name in ("anomaly", "weight", "nis", "confidence"):
            assert np.array_equal(own[name], alone[name], equal_nan=True), name
        assert np.array_equal(own["alarm"] == 1, alone["alarm"])


@pytest.mark.parametrize("threads", [1, 3])
def test_any_order_and_any_split_give_the_same_bits(threads: int) -> None:
    series = rows_of_series()
    found = []
    for seed, cuts in ((1, []), (2, [40]), (3, list(range(1, 300, 7)))):
        keys, times, values = interleaved(series, seed)
        streams = Streams(model="auto", horizon=(60.0, 600.0), threads=threads)
        columns = in_batches(streams, keys, times, values, cuts)
        order = np.argsort(keys, kind="stable")
        found.append({name: column[order] for name, column in columns.items()})
    for other in found[1:]:
        for name, column in found[0].items():
            assert np.array_equal(column, other[name], equal_nan=True), name


def test_rows_of_many_blocks_of_one_series() -> None:
    draw = np.random.default_rng(5)
    times, values = np.arange(2.0 * BLOCK_ROWS + 100), draw.normal(size=2 * BLOCK_ROWS + 100)
    found = Streams(model="auto").step(["a"] * len(times), times, values)
    alone = rfa.filter(pd.DataFrame({"x": values, "t": times}), time="t", model="auto")
    assert np.array_equal(found.mean[:, 0], alone["x_mean"])


@pytest.mark.parametrize("model", ["auto", "default"])
def test_states_are_those_of_a_stream_and_go_on_in_both(model: str) -> None:
    series = rows_of_series()
    streams, others = Streams(model=model, horizon=(60.0,)), Streams(model=model, horizon=(60.0,))
    for key, (times, values) in series.items():
        stream = rfa.Stream(model=model, horizon=(60.0,))
        first = [stream.update(t, y) for t, y in zip(times[:50].tolist(), values[:50], strict=True)]
        assert np.array_equal(streams.step([key] * 50, times[:50], values[:50]).mean[:, 0], [s.mean[0] for s in first])
        assert streams.state(key) == stream.state
        others.restore(key, stream.state)
        resumed = rfa.Stream.resume(streams.state(key))
        rest = [stream.update(t, y) for t, y in zip(times[50:].tolist(), values[50:], strict=True)]
        again = [resumed.update(t, y) for t, y in zip(times[50:].tolist(), values[50:], strict=True)]
        found = others.step([key] * len(rest), times[50:], values[50:])
        assert [step.mean for step in rest] == [step.mean for step in again] == found.mean.tolist()
        assert [point.mean for step in rest for point in step.forecast] == found.moments[:, 0, 0].tolist()
        assert others.state(key) == stream.state == resumed.state
    assert others.count("hall") == len(series["hall"][0])


def test_refused_rows_change_nothing() -> None:
    times = np.array([0.0, 60.0, 30.0, 120.0, 119.0, np.nan, 180.0, np.inf, 240.0, 300.0, 360.0])
    values = np.array([1.0, 2.0, 3.0, np.inf, 1.5, 2.0, 1e13, 1.0, 2.5, -np.inf, 2.0])
    stream, means = rfa.Stream(model="auto"), []
    for t, y in zip(times.tolist(), values.tolist(), strict=True):
        try:
            means.append(stream.update(t, y).mean[0])
        except rfa.RefusedRow:
            means.append(np.nan)
    for cuts in ([], [2], [3, 5, 9]):
        streams = Streams(model="auto")
        keys = np.array(["a"] * len(times))
        found = in_batches(streams, keys, times, values[:, None], cuts)
        assert np.array_equal(found["mean"][:, 0], means, equal_nan=True)
        assert np.array_equal(found["is_good"], ~np.isnan(means))
        assert found["position"][~found["is_good"]].tolist() == [-1] * stream.refused
        assert streams.state("a") == stream.state


def test_a_row_beyond_the_network_is_refused_and_the_next_ones_are_not() -> None:
    values = np.concatenate((np.arange(20.0), [9e11, 21.0, 22.0, 9e11, 24.0]))
    stream, means = rfa.Stream(model="series"), []
    for t, y in enumerate(values.tolist()):
        try:
            means.append(stream.update(float(t), y).mean[0])
        except rfa.RefusedRow:
            means.append(np.nan)
    found = Streams(model="series").step(["a"] * len(values), np.arange(float(len(values))), values)
    assert np.array_equal(found.mean[:, 0], means, equal_nan=True)


def test_dates_are_seconds_since_1970() -> None:
    values = np.arange(5.0)
    days = np.datetime64("2026-03-01") + np.arange(5)
    seconds = days.astype("datetime64[s]").astype(np.float64)
    one, other = Streams(model="auto"), Streams(model="auto")
    assert np.array_equal(one.step(["a"] * 5, days, values).mean, other.step(["a"] * 5, seconds, values).mean)
    assert one.state("a") == other.state("a")


def test_the_number_of_series_is_limited_and_removed_series_begin_anew() -> None:
    streams = Streams(model="auto", limit=2)
    handles = streams.handles(["a", "b"])
    first = streams.step(handles, [0.0, 0.0], [1.0, 2.0])
    with pytest.raises(StreamsFull, match="there are already 2 series, which is the limit; remove some"):
        streams.step(["a", "c"], [60.0, 60.0], [1.0, 2.0])
    assert streams.count("a") == 1
    streams.remove(["b"])
    assert list(streams) == ["a"] and len(streams) == 1 and "b" not in streams
    with pytest.raises(StaleSlot, match=r"keys\[1\]"):
        streams.step(handles, [60.0, 60.0], [1.0, 2.0])
    again = streams.step(streams.handles(["c"]), [0.0], [2.0])
    assert again.mean[0, 0] == first.mean[1, 0] and again.position[0] == 0


def test_bad_arguments_name_themselves() -> None:
    streams = Streams(2, model="auto")
    with pytest.raises(ValueError, match="values must have 2 columns"):
        streams.step(["a"], [0.0], [1.0])
    with pytest.raises(ValueError, match="1 keys, 2 times and 1 values"):
        streams.step(["a"], [0.0, 1.0], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="times must be numbers or dates"):
        streams.step(["a"], ["now"], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="limit and threads must be at least 1"):
        Streams(limit=0)
    with pytest.raises(ValueError, match="does not belong to model 'auto' with 2 columns"):
        streams.restore("a", rfa.Stream(1, model="auto").state)
    with pytest.raises(ValueError, match="late rows"):
        Streams(model="auto").restore("a", rfa.Stream(model="auto", late=60.0).state)
    with pytest.raises(ValueError, match="not the state of a Stream"):
        streams.restore("a", b"x")
    assert len(streams) == 1  # of the refused shapes
