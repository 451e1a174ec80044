"""Filter requests: one observation at a time, or a whole sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rfa.runtime.outputs import FilterWarning, ForecastChecks
from rfa.runtime.pool import PoolSlot
from rfa.runtime.uncertainty.forecast_checks import no_checks, summarise
from rfa.runtime.uncertainty.incidents import Incidents
from rfa.runtime.uncertainty.interface import Ahead, FilterOptions, Piece, Row, Stepped, reply_rows
from rfa.runtime.uncertainty.steps import Steps
from rfa.service.engine.job import Job
from rfa.service.errors import NotReady
from rfa.service.schemas.filter_replies import FilterFinishReason, FilterTimings

if TYPE_CHECKING:
    from rfa.runtime.filters.filter import FilterRuntime
    from rfa.service.engine.filter.stages import FilterStage, SequenceStage


@dataclass(frozen=True, slots=True)
class PackedState:
    """A stream's state, and its number of observations."""

    payload: bytes
    count: int


@dataclass(frozen=True)
class Filtered:
    """A finished or interrupted sequence; its steps were emitted before."""

    smoothed: list[Any] | None
    log_likelihood: float
    calibration: ForecastChecks
    incidents: Incidents
    warnings: list[FilterWarning]
    timings: FilterTimings
    state: PackedState | None
    finish_reason: FilterFinishReason = "complete"
    ahead: Ahead | None = None


class RecurrentJob(Job):
    """A job that feeds observations to a recurrent filter.

    It has a pool slot from its first observation until it leaves the scheduler.
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

    @property
    def rows(self) -> int:
        """Cost of the next observation, so that an expensive one has its own quantum."""
        if not self.has_next:
            return self._rows
        return self.filtering.model.weight(self._rows, self.next_time, self._tensor)

    @property
    def event_rows(self) -> int:
        return self._rows

    @property
    def is_streamed(self) -> bool:
        """Whether each answer is sent immediately."""
        raise NotImplementedError

    @property
    def has_next(self) -> bool:
        """Whether an observation is waiting."""
        raise NotImplementedError

    @property
    def next_time(self) -> float:
        """Time of the next observation."""
        raise NotImplementedError

    @property
    def field_name(self) -> str:
        """The request's field with the next observation."""
        raise NotImplementedError

    def next_row(self) -> Row:
        """The next observation; `accept` advances."""
        raise NotImplementedError

    def accept(self, stepped: Stepped) -> None:
        """Record the answer to the next observation."""
        self.log_likelihood += stepped.log_likelihood
        self._sums += stepped.tally

    def checks(self) -> ForecastChecks:
        """Checks of the forecasts so far."""
        model, horizon = self.filtering.model, self.readout.horizon
        return summarise(self._sums, model.levels, model.observation_size, horizon, is_fresh=self._is_fresh)

    def finish_if_done(self) -> None:
        """Finish if no more observations will come."""
        raise NotImplementedError

    def ensure_pool_slot(self) -> PoolSlot:
        """The pool slot, with the state from its first use."""
        if self.pool_slot is None:
            self.pool_slot = self.filtering.pool.acquire()
            self.filtering.model.put(self.filtering.pool, self.pool_slot, self._first_state())
            self._resumed = None
        return self.pool_slot

    def pack(self) -> PackedState:
        """The current state, packed; on the job's worker."""
        state = self.current_state()
        return PackedState(self.filtering.model.pack(state), state.count)

    def current_state(self) -> Any:
        """The current state; on the job's worker."""
        if self.pool_slot is None:
            return self._first_state()
        return self.filtering.model.get(self.filtering.pool, self.pool_slot, self.seed)

    def typical_lag(self) -> float:
        """The stream's usual time step; 0 without one, or if no horizon needs it."""
        return float(self.current_state().step) if self.readout.horizon else 0.0

    def _first_state(self) -> Any:
        if self._resumed is None or not self._resumed.count:
            return self.filtering.model.start(self.seed)
        return replace(self._resumed, seed=self.seed)

    def _tensor(self, name: str) -> Any:
        """A tensor of the state; None before the first observation."""
        if self.pool_slot is not None:
            return self.filtering.pool.arrays[name][self.pool_slot.row]
        state = self._resumed
        return None if state is None or not state.count else state.tensors[name]

    def release(self) -> None:
        if self.pool_slot is not None:
            self.filtering.pool.release(self.pool_slot)
            self.pool_slot = None


class FilterJob(RecurrentJob):
    """A recurrent filter request. Without streaming, an event has columns of many observations."""

    def __init__(self, stage: FilterStage, options: FilterOptions) -> None:
        super().__init__(stage, options, deadline_seconds=options.deadline_seconds)
        self.options = options
        self.position = 0
        self.incidents = Incidents.empty()

    @property
    def is_streamed(self) -> bool:
        return self.options.is_streamed

    @property
    def filtered(self) -> int:
        """Number of observations filtered so far."""
        return self.position

    @property
    def has_next(self) -> bool:
        return self.position < len(self.options.observations)

    @property
    def next_time(self) -> float:
        return float(self.options.times[self.position])

    @property
    def field_name(self) -> str:
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
        self.incidents.add_step(stepped.step, self.options.observations[self.position])
        self.position += 1
        self.emit(stepped.step)

    def next_piece(self, most: int) -> Piece:
        """The next observations, with the cost of at most `most` plain ones; `accept_piece` advances."""
        options, model = self.options, self.filtering.model
        most = min(most, model.piece_rows_of(options))
        series = Piece(
            self.ensure_pool_slot(), options.times, options.observations, options.noise, self.readout, options.seed,
            options.inputs,
        )  # fmt: skip
        return model.cut(self.filtering.pool, series.part(slice(self.position, self.position + most)), most)

    def accept_piece(self, steps: Steps) -> None:
        """Record the answers to the next observations."""
        if len(steps):
            self.log_likelihood, self._sums = steps.add_to(self.log_likelihood, self._sums)
            rows = slice(self.position, self.position + len(steps))
            self.incidents.add(self.options.times[rows], self.options.observations[rows], steps.outputs)
            self.position += len(steps)
            self.emit(steps.without_tally)

    def finish_if_done(self) -> None:
        if not self.has_next:
            self._finish_with("complete")
        elif self.is_overdue:
            if not self.position:
                self.emit(self.no_steps())
            self._finish_with("deadline")
        elif self.interrupted and self.is_streamed and self.position:
            self._finish_with("cancelled")  # its steps were sent; the state continues after them
        elif self.interrupted:
            self.fail(NotReady("The server is shutting down."))

    def no_steps(self) -> Steps:
        """Outputs without observations."""
        return self.filtering.model.no_steps(self.readout)

    def _finish_with(self, reason: FilterFinishReason) -> None:
        state = self.pack() if self.options.wants_state or reason == "cancelled" else None
        ahead = None
        if self.options.ahead and self.position:
            ahead = forecast_rows(self.filtering.model, self.current_state(), self.options)
        timings, checks = self.filtering.observe_end(self), self.checks()
        is_whole = self._is_fresh and reason == "complete"
        warnings = self.filtering.warn(
            checks, step=self.typical_lag(), ahead=self.options.ahead, is_whole=is_whole,
            followed=self.options.followed, names=self.options.names,
        )  # fmt: skip
        self.finish(
            Filtered(None, self.log_likelihood, checks, self.incidents, warnings, timings, state, reason, ahead)
        )


def forecast_rows(model: FilterRuntime, state: Any, options: FilterOptions) -> Ahead:
    """The forecast of the rows to come."""
    return model.ahead(state, options.levels, options.ahead, options.readout, options.covariates_ahead)


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
    def filtered(self) -> int:
        """Number of observations answered so far."""
        return self.steps

    def no_steps(self) -> Steps:
        """Outputs without observations."""
        requested, model = self.options, self.sequences.model
        return model.no_steps(model.readout(requested.levels, requested.horizon, requested.samples, requested.readout))

    def weight(self, event: Any) -> int:
        return len(event) if isinstance(event, Steps) else 1

    @property
    def event_rows(self) -> int:
        return self._rows
