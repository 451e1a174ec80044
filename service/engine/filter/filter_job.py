"""Job of a request that filters a whole series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rfa.runtime.errors import InvalidInput, not_monotonic
from rfa.runtime.outputs import FilterStep, FilterWarning, ForecastChecks, LateStep
from rfa.runtime.uncertainty.incidents import Incidents
from rfa.runtime.uncertainty.interface import Ahead, FilterOptions, Piece, Row
from rfa.runtime.uncertainty.steps import Steps
from rfa.service.engine.filter.recurrent_job import PackedState, RecurrentJob
from rfa.service.errors import NotReady
from rfa.service.schemas.filter_replies import FilterFinishReason, FilterTimings

if TYPE_CHECKING:
    from rfa.runtime.filters.filter import FilterRuntime
    from rfa.service.engine.filter.stages import FilterStage


@dataclass(frozen=True)
class Filtered:
    """Result of a completed or interrupted filter request. The job has already emitted the steps."""

    smoothed: list[Any] | None
    log_likelihood: float
    calibration: ForecastChecks
    incidents: Incidents
    warnings: list[FilterWarning]
    timings: FilterTimings
    state: PackedState | None
    finish_reason: FilterFinishReason = "complete"
    ahead: Ahead | None = None
    refused: int = 0


class FilterJob(RecurrentJob):
    """Job of a request that filters a series recurrently. If the reply is not streamed, one event contains the columns
    of many observations."""

    def __init__(self, stage: FilterStage, options: FilterOptions) -> None:
        super().__init__(stage, options, deadline_seconds=options.deadline_seconds)
        self.options = options
        self.position = 0
        self.incidents = Incidents.empty(None if options.state is None else options.state.adaptive)

    @property
    def is_streamed(self) -> bool:
        return self.options.is_streamed

    @property
    def filtered(self) -> int:
        """Number of observations that have been filtered so far."""
        return self.position

    @property
    def has_next(self) -> bool:
        return self.position < len(self.options.observations)

    @property
    def next_time(self) -> float | None:
        t = float(self.options.times[self.position])
        return None if math.isnan(t) else t

    @property
    def row_index(self) -> int:
        return self.position

    def check_next(self) -> bool:
        while self.is_streamed and self.has_next and not self.done:
            try:
                self._check_order()
            except InvalidInput as error:
                self.refuse(error.with_traceback(None))
            else:
                return True
        return self.has_next

    def _check_order(self) -> None:
        error, t, param = self.options.refused.get(self.position), self.next_time, f"times[{self.position}]"
        if error is not None:
            raise error
        if self.window is not None:
            self.add_to_window(self.observation_row(), param)
        elif t is not None and t < self.time:
            raise not_monotonic(param)

    def refuse(self, error: InvalidInput) -> None:
        is_last = self.answer_refused(error, self.next_time)
        self.position += 1
        if is_last:
            self._finish_with("refused")

    @property
    def field_name(self) -> str:
        return f"observations[{self.position}]"

    def weight(self, event: Any) -> int:
        return len(event) if isinstance(event, Steps) else 1

    def observation_row(self) -> Row:
        options, i = self.options, self.position
        values = [None if value != value else value for value in options.observations[i].tolist()]  # noqa: PLR0124
        observation = None if values.count(None) == len(values) else values
        t, noise = float(options.times[i]), float(options.noise[i])
        held = None if options.inputs is None else options.inputs[i].tolist()
        return Row(self.ensure_pool_slot(), t, observation, noise, self.readout, options.seed, held)

    def answer(self, step: FilterStep) -> None:
        self._refused_in_a_row = 0
        if not isinstance(step, LateStep):  # a late step is out of order
            self.incidents.add_step(step, self.options.observations[self.position])
        self.position += 1
        self.emit(step)

    def next_piece(self, most: int) -> Piece:
        """Return the next observations to filter. Their cost is at most that of `most` observations with default
        options. `accept_piece` advances the job."""
        options, model = self.options, self.filtering.model
        most = min(most, model.piece_rows_of(options))
        series = Piece(
            self.ensure_pool_slot(), options.times, options.observations, options.noise, self.readout, options.seed,
            options.inputs,
        )  # fmt: skip
        return model.cut(self.filtering.pool, series.part(slice(self.position, self.position + most)), most)

    def accept_piece(self, steps: Steps) -> None:
        """Record the results of the observations that `next_piece` returned."""
        if len(steps):
            self.log_likelihood, self._sums = steps.add_to(self.log_likelihood, self._sums)
            rows = slice(self.position, self.position + len(steps))
            self.incidents.add(self.options.times[rows], self.options.observations[rows], steps.outputs)
            self.position += len(steps)
            self.emit(steps.without_tally)

    def finish_if_done(self) -> None:
        if self.is_behind:
            return
        if not self.has_next:
            self._finish_with("complete")
        elif self.is_overdue:
            if not self.position:
                self.emit(self.no_steps())
            self._finish_with("deadline")
        elif self.interrupted and self.is_streamed and self.position:
            self._finish_with("cancelled")  # a later request can continue after the steps that were sent
        elif self.interrupted:
            self.fail(NotReady("The server is shutting down; try again later."))

    def no_steps(self) -> Steps:
        """Return the outputs of a request without observations, which are empty."""
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
            Filtered(
                None, self.log_likelihood, checks, self.incidents, warnings, timings, state, reason, ahead, self.refused
            )
        )  # fmt: skip


def forecast_rows(model: FilterRuntime, state: Any, options: FilterOptions) -> Ahead:
    """Return the forecast of the future rows in the options, made from `state`."""
    return model.ahead(state, options.levels, options.ahead, options.readout, options.covariates_ahead)
