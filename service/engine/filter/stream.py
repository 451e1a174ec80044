"""Job of a live stream of observations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rfa.data.utc_offsets import UTC, UtcOffsets
from rfa.runtime.errors import InvalidInput, RefusedRow, not_monotonic
from rfa.runtime.outputs import FilterStep, FilterWarning, ForecastChecks
from rfa.runtime.uncertainty.alarms import NEVER, Alarm
from rfa.runtime.uncertainty.diagnostics import diagnose
from rfa.runtime.uncertainty.interface import UNLIMITED, LateOptions, ReadoutOptions, Row
from rfa.service.disconnect import ClientGone
from rfa.service.engine.filter.recurrent_job import PackedState, RecurrentJob
from rfa.service.engine.filter.stages import FilterStage
from rfa.service.errors import RowErrorReply, ServiceError
from rfa.service.schemas.filter_replies import EndReason


@dataclass(frozen=True)
class FilterStreamOptions:
    """Options of a live stream.

    Attributes:
        levels: Levels of the intervals.
        horizon: Horizons of the forecasts after each observation.
        samples: Number of samples of the state.
        seed: Random seed of the samples.
        alarm: Rule for alarms.
        passes: Number K of reweighting passes. If None, the default of the model is used.
        range: Limits of the estimates and forecasts.
        weights: Whether to return the weights of the models in a mixture.
        state: Unpacked state to continue from. If None, a new stream starts.
        state_every: Interval in steps between returned states. If 0, no step contains the state.
        wants_state: Whether to return the state at the end.
        utc_offsets: UTC offsets of local time.
        late: Window for late rows. If None, late rows are rejected.
    """

    levels: tuple[float, ...]
    horizon: tuple[float, ...]
    samples: int
    seed: int
    alarm: Alarm = NEVER
    passes: int | None = None
    range: tuple[float, float] = UNLIMITED
    weights: bool = False
    state: Any = None
    state_every: int = 0
    wants_state: bool = False
    utc_offsets: UtcOffsets = UTC
    late: LateOptions | None = None

    @property
    def readout(self) -> ReadoutOptions:
        """Options for the outputs of each step."""
        return ReadoutOptions("recurrent", self.alarm, self.passes, self.range, self.weights, self.utc_offsets)


class Observed(NamedTuple):
    """A validated observation. If `t` is None, the time is the number of earlier observations."""

    t: float | None
    y: list[float | None] | None
    noise: float
    input: list[float] | None = None


class StreamStep(NamedTuple):
    """Reply to one observation: the step, or an error if the observation was rejected. If there is a state, there are
    also warnings."""

    step: Any
    state: PackedState | None
    warnings: list[FilterWarning] | None = None


@dataclass(frozen=True)
class StreamEnd:
    """Last event of a stream that ends without an error. Its number of steps does not include those before the initial
    state."""

    steps: int
    log_likelihood: float
    calibration: ForecastChecks
    warnings: list[FilterWarning]
    reason: EndReason
    state: PackedState | None
    refused: int = 0


class StreamJob(RecurrentJob):
    """Job of a live stream. Replies are sent in the order of the observations.

    The event loop calls `push`, `close`, `leave` and `replies`.

    Args:
        limit: Number of unanswered observations at which `is_full` becomes True.
        answer_bytes: Memory in bytes of an observation until its reply is sent.
    """

    is_stream = True
    is_streamed = True

    def __init__(self, stage: FilterStage, options: FilterStreamOptions, *, limit: int, answer_bytes: int = 0) -> None:
        super().__init__(stage, options)
        self.answer_bytes = answer_bytes
        self.options = options
        self._limit = limit
        self._pending: deque[Observed | RefusedRow] = deque()
        self._closing: EndReason | None = None
        self._refusal: ServiceError | None = None
        self._steps = 0
        self._listener: Callable[[Sequence[Any]], bool] | None = None

    # The following methods run on the event loop.

    @property
    def is_full(self) -> bool:
        """Whether the client should wait before it sends more observations."""
        return self.unanswered * self.event_rows >= self._limit

    @property
    def unanswered(self) -> int:
        """Number of observations whose replies have not been delivered."""
        return len(self._pending) + self._backlog

    def push(self, observed: Observed | RefusedRow) -> None:
        """Add an observation to the queue. For a rejected row, an error is sent in its place."""
        self._pending.append(observed)
        if len(self._pending) == 1:
            self._wake()

    def close(self, refusal: ServiceError | None = None, reason: EndReason = "close") -> None:
        """End the stream after the observations in the queue. If `refusal` is set, it is sent as the last event."""
        self._refusal = refusal
        self._closing = reason
        self._wake()

    def leave(self) -> None:
        """End the stream because the client has disconnected."""
        self.cancel()
        self.deliver([ClientGone()])

    async def replies(self, most: int = 16) -> list[StreamStep] | StreamEnd:
        """Wait for replies, and return between one and `most` of them. After the last one, return the end of the
        stream.

        Raises:
            ServiceError: If the job failed, or an error was passed to `close`.
            ClientGone: If the client has disconnected.
        """
        if not self._inbox:
            await self._inbox.wait()
        ready: list[StreamStep] = []
        while self._inbox and len(ready) < most and isinstance(self._inbox[0], StreamStep):
            ready.append(self._inbox.popleft())
        if ready:
            self.consumed(len(ready))
            return ready
        if isinstance(self._inbox[0], Exception):
            raise self._inbox.popleft()  # no variable, to avoid a reference cycle of frame and error
        end: StreamEnd = self._inbox.popleft().result
        return end

    def listen(self, take: Callable[[Sequence[Any]], bool] | None) -> None:
        """Register a function that is called with the events that arrive while `replies` is waiting.

        The function must process all events and return True, or none and return False.
        """
        self._listener = take

    def consumed(self, count: int) -> None:
        """Record that `count` replies have been delivered."""
        if self._scheduler is not None:
            self._scheduler.consumed(self, count)

    def deliver(self, events: list[Any]) -> None:
        if not (self._inbox.is_awaited and self._listener is not None and self._listener(events)):
            super().deliver(events)

    def _wake(self) -> None:
        if self._scheduler is not None:
            self._scheduler.resume(self)

    # The following methods run on a worker thread or on the event loop.

    @property
    def runs_on_loop(self) -> bool:
        return self.rows == 1 and self.filtering.model.piece_rows > 1

    @property
    def is_idle(self) -> bool:
        return not self._pending and self._closing is None and not self.is_behind

    @property
    def has_next(self) -> bool:
        return bool(self._pending)

    @property
    def next_time(self) -> float | None:
        return self._pending[0].t

    @property
    def row_index(self) -> int:
        return self._steps + self.refused

    def check_next(self) -> bool:
        while self._pending and not self.done:
            try:
                self._check_order(self._pending[0])
            except InvalidInput as error:
                self.refuse(error.with_traceback(None))
            else:
                return True
        return False

    def _check_order(self, row: Observed | RefusedRow) -> None:
        if isinstance(row, RefusedRow):
            raise row
        if row.t is None:
            row = self._pending[0] = row._replace(t=float(self.count))
        if self.window is not None:
            self.add_to_window(self.observation_row(), "t")
        elif row.t is not None and row.t < self.time:
            raise not_monotonic("t")

    def refuse(self, error: InvalidInput) -> None:
        if self.answer_refused(error, self._pending.popleft().t):
            self._end("refused")

    def emit(self, event: Any) -> None:
        super().emit(StreamStep(event, None) if isinstance(event, RowErrorReply) else event)

    @property
    def field_name(self) -> str:
        return "y"

    def observation_row(self) -> Row:
        observed = self._pending[0]
        assert isinstance(observed, Observed) and observed.t is not None  # ensured by `check_next`
        return Row(
            self.ensure_pool_slot(), observed.t, observed.y, observed.noise, self.readout, self.seed, observed.input
        )

    def answer(self, step: FilterStep) -> None:
        self._refused_in_a_row = 0
        self._pending.popleft()
        self._steps += 1
        every = self.options.state_every
        if every and self._steps % every == 0:
            found = diagnose(self.filtering.model, self.checks(), step=self.typical_lag())
            self.emit(StreamStep(step, self.pack(), found))
        else:
            self.emit(StreamStep(step, None))

    def finish_if_done(self) -> None:
        if self.is_behind:
            return
        if self.interrupted:
            self._end("drain")
        elif self._closing is not None and not self._pending:
            if self._refusal is not None:
                refusal, self._refusal = self._refusal, None  # its traceback refers to this job
                self.fail(refusal)
            else:
                self._end(self._closing)

    def _end(self, reason: EndReason) -> None:
        state, checks = self.pack() if self.options.wants_state else None, self.checks()
        warnings = self.filtering.warn(checks, step=self.typical_lag())
        self.finish(StreamEnd(self._steps, self.log_likelihood, checks, warnings, reason, state, self.refused))
