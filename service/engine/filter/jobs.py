"""Filter requests: observations to take one after the other, or a sequence to look at as a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rfa.runtime.outputs import FilterWarning, ForecastChecks
from rfa.runtime.pool import PoolSlot
from rfa.runtime.uncertainty.forecast_checks import no_checks, summarise
from rfa.runtime.uncertainty.interface import Ahead, FilterOptions, Piece, Row, Stepped, reply_rows
from rfa.runtime.uncertainty.steps import Steps
from rfa.service.engine.job import Job
from rfa.service.errors import NotReady
from rfa.service.schemas.filter_replies import FilterFinishReason, FilterTimings

if TYPE_CHECKING:
    from rfa.service.engine.filter.stages import FilterStage, SequenceStage


@dataclass(frozen=True, slots=True)
class PackedState:
    """A stream's state, and how many observations are in it."""

    payload: bytes
    count: int


@dataclass(frozen=True)
class Filtered:
    """A finished sequence, or one that its deadline or the server's end cut short; its steps were emitted before."""

    smoothed: list[Any] | None
    log_likelihood: float
    calibration: ForecastChecks
    warnings: list[FilterWarning]
    timings: FilterTimings
    state: PackedState | None
    finish_reason: FilterFinishReason = "complete"
    ahead: Ahead | None = None


class RecurrentJob(Job):
    """A job that feeds observations to a recurrent filter, one after the other.

    Its seat is taken with its first observation and given back when it leaves the scheduler.
    """

    def __init__(self, stage: FilterStage, options: Any, *, deadline_seconds: float | None = None) -> None:
        super().__init__(stage, deadline_seconds=deadline_seconds)
        self.filtering = stage
        self.readout = stage.model.readout(
            options.levels, options.horizon, options.samples, alarm=options.alarm, passes=options.passes
        )
        self.seed: int = options.seed
        self._resumed: Any = options.state
        self.pool_slot: PoolSlot | None = None
        self.log_likelihood = 0.0
        self._is_fresh = options.state is None or not options.state.count
        self._sums = no_checks(len(stage.model.levels), len(options.horizon), stage.model.observation_size)
        self._rows = reply_rows(options)

    @property
    def rows(self) -> int:
        """What its next observation costs, so that a dear one shares its quantum with no other."""
        if not self.has_next:
            return self._rows
        return self.filtering.model.weight(self._rows, self.next_time, self._kept)

    @property
    def event_rows(self) -> int:
        return self._rows

    @property
    def is_watched(self) -> bool:
        """Whether each answer is sent as it is made."""
        raise NotImplementedError

    @property
    def has_next(self) -> bool:
        """Whether an observation is there."""
        raise NotImplementedError

    @property
    def next_time(self) -> float:
        """Of the next observation."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """The field that the next observation came in."""
        raise NotImplementedError

    def next_row(self) -> Row:
        """The next observation, which stays the next one until `accept`."""
        raise NotImplementedError

    def accept(self, stepped: Stepped) -> None:
        """Take the answer to the next observation."""
        self.log_likelihood += stepped.log_likelihood
        self._sums += stepped.tally

    def checks(self) -> ForecastChecks:
        """What became of the forecasts so far."""
        model, horizon = self.filtering.model, self.readout.horizon
        return summarise(self._sums, model.levels, model.observation_size, horizon, is_fresh=self._is_fresh)

    def settle(self) -> None:
        """Finish if nothing more will come."""
        raise NotImplementedError

    def ensure_pool_slot(self) -> PoolSlot:
        """The seat, set to the state on first use."""
        if self.pool_slot is None:
            self.pool_slot = self.filtering.pool.acquire()
            self.filtering.model.put(self.filtering.pool, self.pool_slot, self._first_state())
            self._resumed = None
        return self.pool_slot

    def pack(self) -> PackedState:
        """The state as it is now; on the worker that has the job."""
        state = self.state_now()
        return PackedState(self.filtering.model.pack(state), state.count)

    def state_now(self) -> Any:
        """The state, as the model has it; on the worker that has the job."""
        if self.pool_slot is None:
            return self._first_state()
        return self.filtering.model.get(self.filtering.pool, self.pool_slot, self.seed)

    def typical_lag(self) -> float:
        """The stream's usual step so far; 0 where there was none, or no lead was asked for, of which it is needed."""
        return float(self.state_now().step) if self.readout.horizon else 0.0

    def _first_state(self) -> Any:
        if self._resumed is None or not self._resumed.count:
            return self.filtering.model.start(self.seed)
        return replace(self._resumed, seed=self.seed)

    def _kept(self, name: str) -> Any:
        """What the stream keeps under a name; None before its first observation."""
        if self.pool_slot is not None:
            return self.filtering.pool.arrays[name][self.pool_slot.row]
        state = self._resumed
        return None if state is None or not state.count else state.tensors[name]

    def release(self) -> None:
        if self.pool_slot is not None:
            self.filtering.pool.release(self.pool_slot)
            self.pool_slot = None


class FilterJob(RecurrentJob):
    """A recurrent filter request. What nobody watches is told in columns, many observations an event."""

    def __init__(self, stage: FilterStage, options: FilterOptions) -> None:
        super().__init__(stage, options, deadline_seconds=options.deadline_seconds)
        self.options = options
        self.position = 0

    @property
    def is_watched(self) -> bool:
        return self.options.is_streamed

    @property
    def taken(self) -> int:
        """Observations taken so far."""
        return self.position

    @property
    def has_next(self) -> bool:
        return self.position < len(self.options.observations)

    @property
    def next_time(self) -> float:
        return float(self.options.times[self.position])

    @property
    def place(self) -> str:
        return f"observations[{self.position}]"

    def weight(self, event: Any) -> int:
        return len(event) if isinstance(event, Steps) else 1

    def next_row(self) -> Row:
        options, i = self.options, self.position
        values = [None if value != value else value for value in options.observations[i].tolist()]  # noqa: PLR0124
        observation = None if values.count(None) == len(values) else values
        t, noise = float(options.times[i]), float(options.noise[i])
        held = None if options.inputs is None else options.inputs[i].tolist()
        return Row(self.ensure_pool_slot(), t, observation, noise, self.readout, options.seed, held)

    def accept(self, stepped: Stepped) -> None:
        super().accept(stepped)
        self.position += 1
        self.emit(stepped.step)

    def next_piece(self, most: int) -> Piece:
        """The next observations, which cost no more than so many plain ones and stay the next ones until
        `accept_piece`."""
        options, model = self.options, self.filtering.model
        most = min(most, model.piece_rows_of(options))
        series = Piece(
            self.ensure_pool_slot(), options.times, options.observations, options.noise, self.readout, options.seed,
            options.inputs,
        )  # fmt: skip
        return model.cut(self.filtering.pool, series.part(slice(self.position, self.position + most)), most)

    def accept_piece(self, steps: Steps) -> None:
        """Take the answers to the next observations."""
        if len(steps):
            self.log_likelihood, self._sums = steps.add_to(self.log_likelihood, self._sums)
            self.position += len(steps)
            self.emit(steps.without_tally)

    def settle(self) -> None:
        if not self.has_next:
            self._conclude("complete")
        elif self.is_overdue:
            if not self.position:
                self.emit(self.no_steps())
            self._conclude("deadline")
        elif self.interrupted and self.is_watched and self.position:
            self._conclude("cancelled")  # its steps are out: the state says where to go on
        elif self.interrupted:
            self.fail(NotReady("The server is shutting down."))

    def no_steps(self) -> Steps:
        """What is told where no observation was taken."""
        return self.filtering.model.no_steps(self.readout)

    def _conclude(self, reason: FilterFinishReason) -> None:
        state = self.pack() if self.options.wants_state or reason == "cancelled" else None
        ahead = None
        if self.options.ahead and self.position:
            ahead = self.filtering.model.ahead(self.state_now(), self.options.levels, self.options.ahead)
        timings, checks = self.filtering.observe_end(self), self.checks()
        is_whole = self._is_fresh and reason == "complete"
        warnings = self.filtering.warn(
            checks, step=self.typical_lag(), ahead=self.options.ahead, is_whole=is_whole, followed=self.options.followed
        )
        self.finish(Filtered(None, self.log_likelihood, checks, warnings, timings, state, reason, ahead))


class SequenceJob(Job):
    """A filter request that needs its whole sequence at once."""

    def __init__(self, stage: SequenceStage, options: FilterOptions) -> None:
        super().__init__(stage, deadline_seconds=options.deadline_seconds)
        self.options = options
        self.sequences = stage
        self.work = stage.model.work(options, self.deadline)
        self.steps = 0
        self._rows = reply_rows(options)

    @property
    def taken(self) -> int:
        """Observations told about so far."""
        return self.steps

    def no_steps(self) -> Steps:
        """What is told where no observation was taken."""
        requested, model = self.options, self.sequences.model
        return model.no_steps(model.readout(requested.levels, requested.horizon, requested.samples, requested.mode))

    def weight(self, event: Any) -> int:
        return len(event) if isinstance(event, Steps) else 1

    @property
    def event_rows(self) -> int:
        return self._rows
