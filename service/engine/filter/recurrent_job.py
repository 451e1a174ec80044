"""Job of one stream of observations, which advances one observation at a time."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.late import LateWindow, Snapshot
from rfa.runtime.outputs import FilterStep, ForecastChecks
from rfa.runtime.pool import PoolSlot
from rfa.runtime.uncertainty.forecast_checks import no_checks, summarise
from rfa.runtime.uncertainty.interface import Row, Stepped, reply_rows
from rfa.service.engine.job import Job
from rfa.service.errors import RowErrorReply, as_service_error

# A stream ends after this number of consecutive rejected rows.
MOST_REFUSED = 100

if TYPE_CHECKING:
    from rfa.service.engine.filter.stages import FilterStage


@dataclass(frozen=True, slots=True)
class PackedState:
    """Packed state of a stream, and its number of observations."""

    payload: bytes
    count: int


class RecurrentJob(Job):
    """Base class of jobs that pass observations to a recurrent filter.

    A job has a pool slot from its first observation until it leaves the scheduler.
    """

    def __init__(self, stage: FilterStage, options: Any, *, deadline_seconds: float | None = None) -> None:
        super().__init__(stage, deadline_seconds=deadline_seconds)
        self.filtering = stage
        self.readout = stage.model.readout(options.levels, options.horizon, options.samples, options.readout)
        self.seed: int = options.seed
        self._resumed: Any = options.state
        self.pool_slot: PoolSlot | None = None
        self.log_likelihood = 0.0
        self._is_fresh = options.state is None or not options.state.count
        self._sums = no_checks(len(stage.model.levels), len(options.horizon), stage.model.observation_size)
        self._rows = reply_rows(options)
        self.refused = 0
        self._refused_in_a_row = 0
        fresh = self._is_fresh
        self.count: int = 0 if fresh else options.state.count
        self.time: float = -math.inf if fresh else options.state.time
        self.recomputed = 0
        self.window = self._open_window(options)

    @property
    def rows(self) -> int:
        """Cost of the next observation in rows. An expensive observation is processed in its own quantum."""
        if self.is_behind:
            t: float | None = self._late_window.next_row.t
        else:
            t = self.next_time if self.has_next else None
            t = t if t is None else max(t, self.time)
        return self._rows if t is None else self.filtering.model.weight(self._rows, t, self._tensor)

    @property
    def event_rows(self) -> int:
        return self._rows

    @property
    @abstractmethod
    def is_streamed(self) -> bool:
        """Whether each step is sent as soon as it is computed."""

    @property
    @abstractmethod
    def has_next(self) -> bool:
        """Whether an observation is waiting."""

    @property
    @abstractmethod
    def next_time(self) -> float | None:
        """Time of the next observation, or None if it has no time yet or is rejected."""

    @property
    @abstractmethod
    def row_index(self) -> int:
        """Position of the next observation in this request or stream."""

    def check_next(self) -> bool:
        """Return whether there is a valid observation to filter next. In a stream, invalid observations before it are
        skipped, and errors are sent for them."""
        return self.has_next

    @property
    @abstractmethod
    def field_name(self) -> str:
        """Name of the request field that contains the next observation."""

    def next_row(self) -> Row:
        """Return the observation to filter next. After a late observation, this may be one that must be filtered again.
        `accept` advances the job."""
        if self.window is None:
            return self.observation_row()
        row = self.window.next_row
        return row._replace(slot=self.ensure_pool_slot(), readout=self.readout, seed=self.seed)

    @abstractmethod
    def observation_row(self) -> Row:
        """Return the next observation of the request or stream."""

    def accept(self, stepped: Stepped) -> None:
        """Record the result for the observation that `next_row` returned. Send it, unless the observation was filtered
        again after a late one."""
        if self.window is None or self.window.is_counted:
            self.log_likelihood += stepped.log_likelihood
            self._sums += stepped.tally
        if self.window is None:
            self.count += 1
            self.time = stepped.step.t
            self.answer(stepped.step)
        else:
            self.window.accept(stepped, None, self._snapshot)
            self._answer_late()

    def reject(self, error: InvalidInput) -> None:
        """Skip the observation that `next_row` returned, because its results are not finite. Only a stream can continue
        afterwards; other jobs fail."""
        if not self.is_streamed:
            self.fail(error)
        elif self.window is None:
            self.refuse(error)
        else:
            self.window.accept(None, error, self._snapshot)
            self._answer_late()

    @abstractmethod
    def answer(self, step: FilterStep) -> None:
        """Send the step of the next observation."""

    @abstractmethod
    def refuse(self, error: InvalidInput) -> None:
        """Send an error for the next observation of a stream, and skip it. Too many consecutive errors end the
        stream."""

    # Late rows.

    @property
    def is_behind(self) -> bool:
        """Whether observations must still be filtered again after a late observation. Until then, the current state
        does not include all observations."""
        return self.window is not None and self.window.is_behind

    @property
    def _late_window(self) -> LateWindow:
        assert self.window is not None
        return self.window

    def add_to_window(self, row: Row, param: str) -> None:
        """Add an observation to the window for late rows. If it is late, the state is set back to an earlier one.

        Raises:
            InvalidInput: See `LateWindow.add`.
        """
        snapshot = self._late_window.add(row, param=param)
        if snapshot is not None:
            self.filtering.model.put(self.filtering.pool, self.ensure_pool_slot(), snapshot.state)
            self.log_likelihood, sums = snapshot.totals
            self._sums = sums.copy()

    def _open_window(self, options: Any) -> LateWindow | None:
        late = options.late
        if late is None:
            return None
        totals = self.log_likelihood, self._sums.copy()
        if not late.packed:
            return LateWindow(late.length, Snapshot(0, self._first_state(), totals))
        window = LateWindow.unpack(late.packed, self.filtering.model, late.length, totals)
        if window.is_behind:
            self._resumed = window.first_state
        return window

    def _snapshot(self, index: int) -> Snapshot:
        return Snapshot(index, self.current_state(), (self.log_likelihood, self._sums.copy()))

    def _answer_late(self) -> None:
        self.recomputed += 1
        window = self._late_window
        if window.is_behind:
            return
        self.count, self.time = window.count, window.newest
        answer = window.take_answer()
        if answer is None:
            return
        self.recomputed -= 1  # does not count the observation itself
        if isinstance(answer, InvalidInput):
            self.refuse(answer)
        else:
            self.answer(answer)

    def answer_refused(self, error: InvalidInput, t: float | None) -> bool:
        """Send an error for the next observation. Return whether there were too many consecutive errors."""
        self.emit(RowErrorReply(as_service_error(error).payload().error, self.row_index, t))
        self.refused += 1
        self._refused_in_a_row += 1
        return self._refused_in_a_row >= MOST_REFUSED

    def checks(self) -> ForecastChecks:
        """Return the checks of the forecasts up to the current observation."""
        model, horizon = self.filtering.model, self.readout.horizon
        return summarise(self._sums, model.levels, model.observation_size, horizon, is_fresh=self._is_fresh)

    @abstractmethod
    def finish_if_done(self) -> None:
        """Complete the job if no more observations will arrive."""

    def ensure_pool_slot(self) -> PoolSlot:
        """Return the pool slot of this job. The first call reserves it and writes the state into it."""
        if self.pool_slot is None:
            self.pool_slot = self.filtering.pool.acquire()
            self.filtering.model.put(self.filtering.pool, self.pool_slot, self._first_state())
            self._resumed = None
        return self.pool_slot

    def pack(self) -> PackedState:
        """Return the current state and the window for late rows as bytes, with the number of observations. Call this on
        the worker thread of the job."""
        state, model = self.current_state(), self.filtering.model
        window = b"" if self.window is None else self.window.pack(model)
        return PackedState(model.pack(state) + window, state.count)

    def current_state(self) -> Any:
        """Return the current state. Call this on the worker thread of the job."""
        if self.pool_slot is None:
            return self._first_state()
        return self.filtering.model.get(self.filtering.pool, self.pool_slot, self.seed)

    def typical_lag(self) -> float:
        """Return the typical time step of the stream. Return 0 if it is not known, or if there are no horizons."""
        return float(self.current_state().step) if self.readout.horizon else 0.0

    def _first_state(self) -> Any:
        if self._resumed is None or not self._resumed.count:
            return self.filtering.model.start(self.seed)
        return replace(self._resumed, seed=self.seed)

    def _tensor(self, name: str) -> Any:
        """Return a tensor of the current state. Return None before the first observation."""
        if self.pool_slot is not None:
            return self.filtering.pool.arrays[name][self.pool_slot.row]
        state = self._resumed
        return None if state is None or not state.count else state.tensors[name]

    def release(self) -> None:
        if self.pool_slot is not None:
            self.filtering.pool.release(self.pool_slot)
            self.pool_slot = None
