"""Filter the series of a query. Compiled code updates the states of many series at a time.

Observations are processed in two steps. `admit` finds or reserves the slots of their series and drops late
observations; `apply` filters the resulting rows. A journal stores the rows. After a restart, `apply` filters them
again, which gives the same states, bit for bit.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from rfa.library.models import find_model, notify_on_compile
from rfa.library.watch.config import Query
from rfa.library.watch.selectors import Labels
from rfa.library.watch.states import MOST_UNPACKED, PackedStates
from rfa.runtime.filters.steps import Batch
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION
from rfa.runtime.uncertainty.rules import FIELDS as ALARM_FIELDS
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import limit_outputs

Array = np.ndarray[Any, Any]
# Rows per call. The outputs of a row take about 2 kB.
MOST_ROWS: Final = 4_096
# Values of a series in addition to the filter's state: time and value of its last observation, its forecast of the next
# one (mean, lower, upper), the number of alarms so far, its open incident as in `Scored`, and the time at which the
# incident began.
OWN_FIELDS: Final = {
    "watch.time": StateField((), np.float64),
    "watch.raw": StateField((), np.float64),
    "watch.ahead": StateField((3,), np.float64),
    "watch.alarms": StateField((), np.int64),
    "watch.incident": StateField((), np.float64),
    "watch.began": StateField((), np.float64),
}
INITIAL: Final = {"watch.time": -np.inf, "watch.raw": np.nan, "watch.ahead": np.nan}
# "alarm.incident" is the position of the first alarm of the current incident plus 1, or 0 without an incident.
INCIDENT: Final = ALARM_FIELDS[0]
# Outputs that are stored for the last row of each series.
LATEST: Final = ("times", "score", "alarm", "incident", "mean", "lower", "upper", "forecast")
MAGIC: Final = b"watch 2"


class Samples(NamedTuple):
    """Observations of one series, sorted by time."""

    labels: Labels
    times: Array
    values: Array


@dataclass
class Rows:
    """Observations that a query accepted, one per row, sorted by slot and time.

    Attributes:
        slots, times, values: Slot of the series, time and value of each row, `[R]`.
        new: Slots of new series, with their labels.
        gone: Slots of series that have expired.
    """

    slots: Array
    times: Array
    values: Array
    new: list[tuple[int, Labels]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True)
class Scored:
    """Outputs of filtered rows. Missing outputs are NaN.

    Attributes:
        slots, times, values: Slot of the series, time and value of each row, `[R]`.
        index: Position of the row in its series.
        score: Anomaly score of each row.
        alarm: 1 for an alarm and 0 otherwise.
        mean, lower, upper: Forecast of the row from the rows before it, and its interval.
        raised: Rule, first alarm, tail probability and component of an alarm. See `rfa.runtime.uncertainty.rules`.
        incident: Position of the first alarm of the incident that is open after the row, plus 1. If no incident is
            open, it is 0.
        incident_before: Value of `incident` before the row. It is only valid if these outputs contain a single row of
            the series.
        began: Time of the row at which the open incident, or the one that ended at this row, was first reported.
        forecast: Mean, lower and upper bound at each horizon, `[R, H, 3]`.
    """

    slots: Array
    times: Array
    values: Array
    index: Array
    score: Array
    alarm: Array
    raised: Array
    incident: Array
    incident_before: Array
    began: Array
    mean: Array
    lower: Array
    upper: Array
    forecast: Array

    def select(self, rows: Array) -> Scored:
        """Return the outputs of the selected rows."""
        return Scored(*(column[rows] for column in vars(self).values()))

    def joined(self, others: Scored) -> Scored:
        """Return the outputs of both objects in one, with those of `others` at the end."""
        return Scored(*map(np.concatenate, zip(vars(self).values(), vars(others).values(), strict=True)))


class QueryFilter:
    """Filters the series of one query.

    Args:
        query: Options of the query.
        step: Time between two observations of a series, in seconds.
        is_counter: Whether the values are counters. If so, their rates are filtered.

    Raises:
        ValueError, FileNotFoundError: If the model cannot be loaded.
    """

    def __init__(self, query: Query, step: float, *, is_counter: bool) -> None:
        model = find_model(query.model, 1)
        self.query, self.step, self.is_counter, self._runtime = query, step, is_counter, model.runtime
        options = query.options(step)
        self._readout = self._runtime.readout(options.levels, options.horizon, 0, options.readout)
        self.states = PackedStates(self._runtime)
        self.pool = StatePool(OWN_FIELDS, query.series_limit)
        self.slots: dict[Labels, int] = {}
        self.labels: dict[int, Labels] = {}
        # Slots of removed series, the last of which is reused first, and the first slot that was never used.
        self._free: dict[int, None] = {}
        self._unused = 0
        self._latest: StatePool | None = None
        self.dropped = {"late": 0, "future": 0, "limit": 0, "refused": 0}
        self.observations = self.alarms = 0
        identity = (MAGIC, model.digest.encode(), query.expr.encode(), bytes([is_counter]))
        self.digest = hashlib.sha256(b"\0".join(identity)).hexdigest()

    @property
    def state_bytes(self) -> int:
        """Memory of the states of all series, in bytes."""
        return self.states.bytes + len(self.labels) * self.pool.host_bytes_per_slot

    @property
    def fields(self) -> list[list[Any]]:
        """Name, type and shape of each field of a state."""
        found = {**OWN_FIELDS, **self._runtime.state_fields}
        return [[name, np.dtype(one.dtype).str, list(one.shape)] for name, one in found.items()]

    @property
    def latest(self) -> Mapping[str, Array]:
        """Outputs of the last row of each series by slot, with NaN for missing outputs. The mapping is empty before the
        first row."""
        return {} if self._latest is None else self._latest.arrays

    # Rows of observations.

    def admit(self, samples: Sequence[Samples], until: float = np.inf) -> Rows:
        """Convert observations to rows. Late observations, and series beyond the limit, are dropped and counted.

        Args:
            samples: Observations of each series.
            until: Latest accepted time. Observations after it are dropped, because after such an observation, all
                observations up to its time would be late.
        """
        new: list[tuple[int, Labels]] = []
        slots, kept = [], []
        for one in samples:
            slot = self.slots.get(one.labels)
            if slot is None:
                if not self._free and self._unused == self.pool.capacity:
                    self.dropped["limit"] += len(one.times)
                    continue
                slot = self._free.popitem()[0] if self._free else self._unused
                self._unused = max(self._unused, slot + 1)
                self.slots[one.labels] = slot
                self._clear(slot)
                new.append((slot, one.labels))
            slots.append(slot)
            kept.append(one)
        counts = [len(one.times) for one in kept]
        numbers = np.repeat(np.array(slots, np.int64), counts)
        times, values = (
            np.concatenate([np.asarray(part, np.float64) for part in parts]) if parts else np.empty(0)
            for parts in ([one.times for one in kept], [one.values for one in kept])
        )
        order = np.lexsort((times, numbers))
        numbers, times, values = numbers[order], times[order], values[order]
        is_taken = np.isfinite(values) if self.is_counter else np.ones(len(values), bool)
        self.dropped["future"] += int((is_taken & ~(times <= until)).sum())
        is_taken &= times <= until
        numbers, times, values = numbers[is_taken], times[is_taken], values[is_taken]
        is_next = times > self.pool.arrays["watch.time"][numbers]
        is_next[1:] &= (numbers[1:] != numbers[:-1]) | (times[1:] > times[:-1])
        self.dropped["late"] += int((~is_next).sum())
        return Rows(numbers[is_next], times[is_next], values[is_next], new)

    def expired(self, before: float, rows: Rows) -> list[int]:
        """Return the slots of series without an observation since `before`, including the observations in `rows`."""
        slots = np.array(list(self.labels), np.int64)
        is_old = self.pool.arrays["watch.time"][slots] < before
        found: list[int] = slots[is_old & ~np.isin(slots, rows.slots)].tolist()
        return found

    def apply(self, rows: Rows, *, is_history: bool = False) -> Iterator[Scored]:
        """Filter rows in batches. The results of a series do not depend on how its rows are divided into batches.

        Args:
            rows: Rows that `admit` returned.
            is_history: Whether the rows are history, which is not reported. If an incident is open at the end of the
                history, the first row after the history is reported as its start.
        """
        for slot, labels in rows.new:
            self._take(slot, labels)
        with notify_on_compile():
            for first, end in itertools.pairwise(_cuts(rows.slots)):
                part = slice(first, end)
                scored = self._filter(rows.slots[part], rows.times[part], rows.values[part])
                if not is_history:
                    last = scored.select(_is_last(scored.slots))
                    self.pool.arrays["watch.incident"][last.slots] = last.incident
                    self.pool.arrays["watch.began"][last.slots] = last.began
                    self._remember(last)
                yield scored
        for slot in rows.gone:
            self._forget(slot)

    def _filter(self, slots: Array, times: Array, values: Array) -> Scored:
        arrays, is_last = self.pool.arrays, _is_last(slots)
        observed, has_value = self._observed(slots, times, values)
        arrays["watch.time"][slots[is_last]], arrays["watch.raw"][slots[is_last]] = times[is_last], values[is_last]
        slots, times, observed = slots[has_value], times[has_value], observed[has_value]
        is_first = _is_first(slots)
        with self.states.unpacked(slots[is_first]) as pool:
            return self._score(pool, (slots, np.cumsum(is_first) - 1), times, observed)

    def _score(self, states: StatePool, series: tuple[Array, Array], times: Array, observed: Array) -> Scored:
        """Return the outputs of rows, given the slots of their series and the rows of their states in `states`."""
        slots, rows = series
        batch = Batch(rows, times, observed[:, None], np.ones(len(slots)))
        outputs, _ = self._runtime.step(states, batch, self._readout, traced=False)
        if not outputs.is_good.all():  # a rejected row stops the filter of its series, so continue with the next row
            refused = ~outputs.is_good & np.append(True, (slots[1:] != slots[:-1]) | outputs.is_good[:-1])
            self.dropped["refused"] += int(refused.sum())
            rest = ~outputs.is_good & ~refused
            good = outputs.is_good
            outputs = type(outputs)(*(column[good] for column in outputs))
            parts = self._outputs(
                slots[good], times[good], observed[good], outputs, states.arrays[INCIDENT][rows[good]]
            )
            if not rest.any():
                return parts
            return parts.joined(self._score(states, (slots[rest], rows[rest]), times[rest], observed[rest]))
        return self._outputs(slots, times, observed, outputs, states.arrays[INCIDENT][rows])

    def _outputs(self, slots: Array, times: Array, observed: Array, outputs: StepOutputs, incidents: Array) -> Scored:
        arrays, is_last = self.pool.arrays, _is_last(slots)
        limit_outputs(outputs, self._readout.options.range)
        ahead = np.concatenate((outputs.moments[:, :, :1, 0], outputs.bands[:, :, 0, 0, :]), axis=2)
        is_first = _is_first(slots)
        before = np.concatenate((np.full((1, 3), np.nan), ahead[:-1, 0]))[: len(slots)]
        before[is_first] = arrays["watch.ahead"][slots[is_first]]
        # The forecast for the actual time of the row is the value minus the innovation. The interval is available only
        # for a typical time step, so it is shifted to this forecast.
        mean = observed - outputs.innovation[:, 0]
        mean = np.where(np.isnan(mean) | (outputs.position == 0), before[:, 0], mean)
        lower, upper = (mean + (before[:, k] - before[:, 0]) for k in (1, 2))
        arrays["watch.ahead"][slots[is_last]] = ahead[is_last, 0]
        raised = np.flatnonzero(outputs.alarm == 1)
        np.add.at(arrays["watch.alarms"], slots[raised], 1)
        self.observations += len(slots)
        self.alarms += len(raised)
        incident, before_row = incidents[:, 0], arrays["watch.incident"][slots]
        began = np.where((incident > 0) & (incident != before_row), times, arrays["watch.began"][slots])
        arrays["watch.incident"][slots[is_last]], arrays["watch.began"][slots[is_last]] = (
            incident[is_last],
            began[is_last],
        )
        return Scored(
            slots, times, observed, outputs.position, outputs.anomaly, outputs.alarm, outputs.raised,
            incident, before_row, began, mean, lower, upper, ahead[:, 1:],
        )  # fmt: skip

    def _observed(self, slots: Array, times: Array, values: Array) -> tuple[Array, Array]:
        """Return the numbers to filter, with NaN for missing values, and whether each row contains a number. The first
        row of a counter contains none."""
        has_value = np.ones(len(slots), bool)
        observed = values.copy()
        if self.is_counter:
            arrays = self.pool.arrays
            is_first = _is_first(slots)
            raw, before = np.roll(values, 1), np.roll(times, 1)
            raw[is_first], before[is_first] = (
                arrays["watch.raw"][slots[is_first]],
                arrays["watch.time"][slots[is_first]],
            )
            has_value = np.isfinite(before)
            # If a counter has decreased, it was reset to 0 since the last row.
            with np.errstate(invalid="ignore", divide="ignore"):
                observed = np.where(values < raw, values, values - raw) / (times - before)
        with np.errstate(invalid="ignore"):
            return np.where(np.abs(observed) <= LARGEST_OBSERVATION, observed, np.nan), has_value

    # Series.

    def _clear(self, slot: int) -> None:
        self.states.begin(slot)
        for name, array in self.pool.arrays.items():
            array[slot] = INITIAL.get(name, 0)
        for array in self.latest.values():
            array[slot] = np.nan

    def _take(self, slot: int, labels: Labels) -> None:
        """Reserve a slot for a series. `admit` has already reserved it, unless a journal is being read."""
        if self.slots.get(labels) != slot:
            self._free |= dict.fromkeys(range(self._unused, slot + 1))
            self._unused = max(self._unused, slot + 1)
            del self._free[slot]
            self.slots[labels] = slot
            self._clear(slot)
        self.labels[slot] = labels

    def _forget(self, slot: int) -> None:
        labels = self.labels.pop(slot)
        del self.slots[labels]
        self.states.remove(slot)
        self._free[slot] = None

    def restore(self, series: dict[int, Labels], packed: Mapping[int, bytes]) -> None:
        """Reserve the slots of restored series. The caller writes their other fields into the pool."""
        self.labels = dict(series)
        self.states.restore(packed)
        self.slots = {labels: slot for slot, labels in series.items()}
        self._unused = max(series, default=-1) + 1
        self._free = dict.fromkeys(slot for slot in range(self._unused - 1, -1, -1) if slot not in series)

    def fits(self, other: QueryFilter) -> bool:
        """Return whether this filter can continue with the states of `other`."""
        return self.digest == other.digest and max(other.labels, default=-1) < self.pool.capacity

    def take_over(self, other: QueryFilter) -> None:
        """Continue with the states of `other`, for which `fits` must return True."""
        self.restore(other.labels, other.states.packed)
        slots = np.array(list(other.labels), np.int64)
        for name, array in self.pool.arrays.items():
            array[slots] = other.pool.arrays[name][slots]
        self.observations, self.alarms, self.dropped = other.observations, other.alarms, other.dropped

    def _remember(self, scored: Scored) -> None:
        """Store the latest outputs of each series, for `/metrics`."""
        if self._latest is None:
            fields = {name: StateField(getattr(scored, name).shape[1:], np.float64) for name in LATEST}
            self._latest = StatePool(fields, self.pool.capacity)
            for array in self.latest.values():
                array[list(self.slots.values())] = np.nan
        for name, array in self.latest.items():
            array[scored.slots] = getattr(scored, name)


def waves(rows: Rows) -> Iterator[Rows]:
    """Split rows into parts that contain at most one row of each series, and yield the parts."""
    begins = np.flatnonzero(_is_first(rows.slots))
    position = np.arange(len(rows)) - np.repeat(begins, np.diff(begins, append=len(rows)))
    last = int(position.max(initial=0))
    for k in range(last + 1):
        chosen = position == k
        new, gone = rows.new if k == 0 else [], rows.gone if k == last else []
        yield Rows(rows.slots[chosen], rows.times[chosen], rows.values[chosen], new, gone)


def _cuts(slots: Array) -> list[int]:
    """Return the indices at which rows are split, so that no part has too many rows or series."""
    begins = np.flatnonzero(_is_first(slots))[::MOST_UNPACKED].tolist()
    return sorted({*range(0, len(slots), MOST_ROWS), *begins, len(slots)})


def _is_first(slots: Array) -> Array:
    return np.diff(slots, prepend=-1) != 0


def _is_last(slots: Array) -> Array:
    return np.diff(slots, append=-1) != 0
