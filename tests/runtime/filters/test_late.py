"""Late rows: any order within the window gives the numbers of the stream in the order of time, bit for bit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.late import (
    MOST_BACK,
    MOST_KEPT,
    MOST_SNAPSHOTS,
    REPLAYED,
    LateWindow,
    Snapshot,
    packed_bytes,
    split_state,
)
from rfa.runtime.outputs import FilterStep, LateStep
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.input import window_of
from rfa.runtime.uncertainty.interface import Row
from tests.service.models import FakeFilter

MODEL: Any = FakeFilter()


class Decaying(FakeFilter):
    """Forgets earlier observations by their distance in time, so that every order has other numbers."""

    def _observe(self, state: Any, t: float, observation: Any, requested: Any) -> Any:
        decay = math.exp(-0.1 * (t - state.time)) if state.count else 1.0
        assert decay <= 1.0
        return super()._observe(replace(state, sums=decay * state.sums), t, observation, requested)


class Stream:
    """A stream with a window, in one slot of a pool."""

    def __init__(self, length: float, payload: bytes = b"", model: Any = None) -> None:
        self.model: Any = model or Decaying()
        self.pool = StatePool(self.model.state_fields, 1)
        self.slot = self.pool.acquire()
        self.total = 0.0
        self.filtered = 0
        packed, window = split_state(payload, self.model)
        state = self.model.unpack(packed) if payload else self.model.start(0)
        self.model.put(self.pool, self.slot, state)
        self.window = (
            LateWindow.unpack(window, self.model, length, 0.0)
            if window
            else LateWindow(length, Snapshot(0, state, 0.0))
        )
        if self.window.is_behind:
            self.model.put(self.pool, self.slot, self.window.first_state)
        self.catch_up()

    def update(self, t: float, y: list[float | None] | None, noise: float = 1.0) -> Any:
        readout = self.model.readout((0.5,), (), 0)
        snapshot = self.window.add(Row(self.slot, t, y, noise, readout, 0))
        if snapshot is not None:
            self.model.put(self.pool, self.slot, snapshot.state)
            self.total = snapshot.totals
        self.catch_up()
        answer = self.window.take_answer()
        if isinstance(answer, InvalidInput):
            raise answer
        return answer

    def catch_up(self) -> None:
        readout = self.model.readout((0.5,), (), 0)
        while self.window.is_behind:
            row = self.window.next_row._replace(slot=self.slot, readout=readout)
            (stepped,) = self.model.advance(self.pool, [row])
            self.filtered += 1
            if stepped is not None and self.window.is_counted:
                self.total += sum(stepped.step.mean)
            self.window.accept(stepped, None if stepped else InvalidInput("bad", code="out_of_range"), self._snapshot)

    def _snapshot(self, index: int) -> Snapshot:
        return Snapshot(index, self.state, self.total)

    @property
    def state(self) -> Any:
        return self.model.get(self.pool, self.slot, 0)

    @property
    def payload(self) -> bytes:
        return self.model.pack(self.state) + self.window.pack(self.model)


def shown(step: FilterStep) -> dict[str, Any]:
    return {
        name: value for name, value in vars(step).items() if name not in ("late", "recomputed", "weights", "samples")
    }


def rows_of(draw: random.Random, count: int) -> list[tuple[float, Any, float]]:
    """Rows in the order of time, some at equal times, some without values."""

    def values() -> Any:
        both = [draw.gauss(0, 1), draw.gauss(0, 1)]
        return both if draw.random() < 0.8 else draw.choice([None, [both[0], None]])

    times = sorted(draw.choice([draw.uniform(0, count), float(draw.randrange(count))]) for _ in range(count))
    return [(t, values(), draw.choice([1.0, 2.0])) for t in times]


def arrivals(draw: random.Random, rows: list[Any], length: float) -> Iterator[Any]:
    """The rows in a random order, each at most `length` after it is due."""
    due = sorted(rows, key=lambda row: row[0] + (draw.uniform(0, length) if draw.random() < 0.4 else 0.0))
    newest = -math.inf
    for row in due:
        newest = max(newest, row[0])
        assert row[0] >= newest - length
        yield row


@pytest.mark.parametrize("seed", range(300))
def test_any_order_within_the_window_is_the_ordered_stream(seed: int) -> None:
    draw = random.Random(seed)
    length = draw.choice([0.5, 5.0, 40.0])
    came = list(arrivals(draw, rows_of(draw, draw.choice([3, 30, 120])), length))
    unique: dict[str, Any] = {repr(row): row for row in came}
    came = list(unique.values())
    stream, cut = Stream(length), draw.randrange(len(came))
    compared = {len(came) - 1, *(draw.randrange(len(came)) for _ in range(3))}
    for number, row in enumerate(came):
        if number == cut:  # saved and restored
            stream = Stream(length, stream.payload)
        step = stream.update(*row)
        if number in compared:
            ordered, so_far = Stream(1e-9), sorted(came[: number + 1], key=lambda row: row[0])
            steps = [shown(ordered.update(*one)) for one in so_far]
            place = len(so_far) - 1 - [id(one) for one in reversed(so_far)].index(id(row))
            assert shown(step) == steps[place]
            is_late = place < number
            assert isinstance(step, LateStep) == is_late
            assert not is_late or (step.late, step.recomputed) == (True, number - place)
            assert MODEL.pack(stream.state) == MODEL.pack(ordered.state)
            assert cut <= number or stream.total == ordered.total


def test_work_and_memory_are_bounded() -> None:
    """Of a window much longer than the rows that are kept; a late row costs few rows more than it goes back."""
    stream, draw = Stream(1e9), random.Random(1)
    for t in range(1_500):
        stream.update(float(t), [1.0, 2.0])
        assert len(stream.window._rows) <= MOST_KEPT and len(stream.window._snapshots) <= MOST_SNAPSHOTS
        if t > 1000 and t % 50 == 0:
            back, before = draw.randrange(1, MOST_BACK - 50), stream.filtered
            stream.update(t - back + 0.25 + draw.uniform(0, 0.5), [draw.gauss(0, 1), None])
            assert back <= stream.filtered - before <= 3 * back + 16
        if t % 400 == 399:
            payload = stream.payload
            assert len(payload) - MODEL.state_bytes <= packed_bytes(MODEL)
            stream = Stream(1e9, payload)
    with pytest.raises(InvalidInput) as caught:
        stream.update(100.5, None)
    assert caught.value.code == "too_late"


@pytest.mark.parametrize("rows", [REPLAYED - 50, REPLAYED + 50, pytest.param(3 * REPLAYED, marks=pytest.mark.slow)])
def test_cuts_after_every_row_go_on_with_the_same_reach(rows: int) -> None:
    whole, cut = Stream(1e9), Stream(1e9)
    for t in range(rows):
        whole.update(float(t), [float(t % 5), 1.0])
        cut.update(float(t), [float(t % 5), 1.0])
        if t % 40 == 39:
            cut = Stream(1e9, cut.payload)
    late, too_late = rows - MOST_BACK + 0.5, rows - MOST_BACK - 1.5
    for stream in (whole, cut):
        with pytest.raises(InvalidInput, match="before the window for late rows"):
            stream.update(too_late, None)
    assert shown(whole.update(late, [9.0, 9.0])) == shown(cut.update(late, [9.0, 9.0]))
    assert MODEL.pack(whole.state) == MODEL.pack(cut.state)


def test_rows_outside_the_window_and_repeats_are_refused_and_change_nothing() -> None:
    stream = Stream(5.0)
    for t in range(20):
        stream.update(float(t), [float(t), 0.0])
    before, rows = stream.payload, list(stream.window._rows)
    for t, y, code in (
        (13.9, [0.0, 0.0], "too_late"),
        (17.0, [17.0, 0.0], "repeated"),
        (19.0, [19.0, 0.0], "repeated"),
    ):
        with pytest.raises(InvalidInput) as caught:
            stream.update(t, y)
        assert caught.value.code == code
    assert stream.payload == before and stream.window._rows == rows
    assert stream.update(19.0, [19.0, 1.0]).index == 20  # another measurement at the same time
    assert stream.update(14.0, [0.0, 0.0]).index == 15


def test_a_row_whose_numbers_are_not_finite_is_left_out() -> None:
    """A late one, and an earlier one that is not finite after it."""
    plain, poisoned = Stream(50.0), Stream(50.0, model=Decaying(poison=666.0))
    for t in range(20):
        plain.update(float(t), [float(t), 0.0])
        poisoned.update(float(t), [float(t), 0.0])
    with pytest.raises(InvalidInput, match="bad"):
        poisoned.update(7.5, [666.0, 0.0])
    assert poisoned.payload == plain.payload
    poisoned.model.poison = 15.0
    assert poisoned.update(7.5, [1.0, 1.0]).index == 8
    ordered = Stream(1e-9)
    for t in sorted([*range(15), *range(16, 20), 7.5]):
        ordered.update(float(t), [1.0, 1.0] if t == 7.5 else [float(t), 0.0])
    assert MODEL.pack(poisoned.state) == MODEL.pack(ordered.state)


def test_a_stream_that_continues_without_a_window_has_it_from_there_on() -> None:
    stream = Stream(5.0)
    stream.update(10.0, [1.0, 1.0])
    later = Stream(5.0, MODEL.pack(stream.state))
    with pytest.raises(InvalidInput, match="before the window for late rows"):
        later.update(9.0, [1.0, 1.0])
    later.update(12.0, [2.0, 2.0])
    assert later.update(10.5, [3.0, 3.0]).index == 1


@pytest.mark.parametrize(("text", "length"), [("5min", 300.0), ("0.5 h", 1800.0), (7, 7.0), (0.25, 0.25)])
def test_a_window_is_a_number_or_a_span(text: Any, length: float) -> None:
    assert window_of(text) == length


@pytest.mark.parametrize("text", ["", "5", "soon", "-5min", 0, -1.0, math.inf, math.nan, True, None, 1e30])
def test_other_windows_are_refused(text: Any) -> None:
    with pytest.raises(InvalidInput, match="late"):
        window_of(text)


def test_bytes_that_are_no_window_are_refused() -> None:
    stream = Stream(5.0)
    for t in range(5):
        stream.update(float(t), [1.0, 2.0])
    window = stream.window.pack(MODEL)
    assert len(LateWindow.unpack(window, MODEL, 5.0, 0.0)._rows) == 5
    for data in (b"", window[:-1], window[:20], window[:8] + b"x" + window[9:], b"RFAL\x02" + window[5:]):
        with pytest.raises(InvalidInput, match="state"):
            LateWindow.unpack(data, MODEL, 5.0, 0.0)


def test_arrays_in_rows_are_packed_as_lists() -> None:
    stream = Stream(5.0)
    stream.update(0.0, [1.0, 2.0])
    (kept,) = stream.window._rows
    stream.window._rows[0] = kept._replace(row=kept.row._replace(input=np.ones(2)))
    found = LateWindow.unpack(stream.window.pack(MODEL), MODEL, 5.0, 0.0)
    assert found._rows[0].row.input == [1.0, 1.0]
