"""Linear system that a request or a file defines. It runs without a bundle.

The pattern of a calendar is a known bias of the sensor. It is subtracted from observations and added to the outputs.
Intervals start from the normal distribution and adapt to the stream, as in `auto`. Attention mode is not supported. The
kernels are those of every linear filter, which a server compiles at startup.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from rfa.runtime.compiling import CompileTask
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters import filter_numba
from rfa.runtime.filters.auto import calibration
from rfa.runtime.filters.auto_layout import LEADS
from rfa.runtime.filters.calendar import is_moment
from rfa.runtime.filters.compiled_steps import CompiledSteps
from rfa.runtime.filters.driven_filter import MOST_STATES, DrivenSystem, shift
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.sequence import FilterResult, Memory
from rfa.runtime.filters.state import FilterState
from rfa.runtime.filters.steps import Batch, Traced
from rfa.runtime.filters.system import System
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.alarms import NEVER, Alarm
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.interface import FilterOptions, Inputs
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import Readout, Steps

if TYPE_CHECKING:
    from rfa.runtime.filters.calendar import Calendar

# Numbers of readouts and sets of horizons that a system caches, and number of lags of inputs that it caches.
KEPT: Final = 2
KEPT_LAGS: Final = 256
NO_MOMENTS: Final = (
    "times: a system with a calendar requires the time of every row, in seconds since 1970, in the years 1971 to 9999."
)
# Name of every system in metrics.
LABEL: Final = "system"
# Systems with at most this many states and components process many observations per call, larger systems one.
SMALL: Final = 16
# Limits on the work per call (about a millisecond) and per observation (about ten milliseconds). The unit is the cube
# of the size, for each observation and forecast.
PIECE_WORK: Final = 1 << 20
MOST_STEP_WORK: Final = 1 << 24
MANY: Final = 256  # observations of a small system per call
MOST_HORIZONS: Final = 256  # per request
MODES: Final = 25  # memory of the modes, in pairs of F and Q
# Memory in addition to the matrices: readouts of all horizons, the index of the pool, and Python objects.
OBJECTS_BYTES: Final = 1 << 20
LAG_BYTES: Final = 1 << 10


class SystemRuntime(FilterRuntime):
    """A linear system that is ready to process observations.

    Attributes:
        digest: Digest of the system. Only a system with the same digest can continue its states.
    """

    has_own_steps = True

    def __init__(self, system: System) -> None:
        config = system.config
        self.calendar: Calendar | None = system.calendar
        version = CompiledSteps.magic + repr(calibration()).encode()
        self.digest = hashlib.sha256(version + system.digest.encode()).hexdigest()
        p, n = len(config.measurement_noise), len(config.drift)
        matrix = np.eye(n) if config.observation is None else np.array(config.observation)
        self._describe(system.name, "linear", matrix, np.zeros(p) if config.offset is None else np.array(config.offset))
        horizons = Horizons.of(LEADS, in_steps=True)
        chooses = config.nu is not None and config.inner > 1
        self.passes = PassesRange(1 if chooses else config.inner, config.inner)
        steps = CompiledSteps(config, horizons, self.passes, KEPT)
        self._cube = max(n, p) ** 3
        steps.rows = MANY if max(n, p) <= SMALL else 1
        driven = None
        if n <= MOST_STATES:
            driven = DrivenSystem(np.array(config.drift), matrix, lags=KEPT_LAGS, horizons=KEPT)
        self._set_up({"recurrent": Calibration(calibration())}, steps, horizons, driven, readouts=KEPT)

    @property
    def label(self) -> str:
        return LABEL

    @property
    def own_bytes(self) -> int:
        return self.kept_bytes + self.state_bytes

    @property
    def kept_bytes(self) -> int:
        """Maximum memory in bytes that the system retains between requests. The pool is not included."""
        n, p = self.state_size, self.observation_size
        moves, leads = 16 * n**2, KEPT * min(MOST_HORIZONS, MOST_STEP_WORK // self._cube)
        driven = 0 if self._driven is None else KEPT_LAGS * (moves + LAG_BYTES) + leads * 16 * n * p
        pattern = 0 if self.calendar is None else 2 * self.calendar.pattern.nbytes
        return pattern + OBJECTS_BYTES + (leads + MODES) * moves + driven

    def piece_rows_of(self, options: FilterOptions) -> int:
        """Return the maximum number of observations per call. See `FilterRuntime`. It is smaller with many forecasts,
        to bound the time per call."""
        work = (1 + len(options.horizon)) * self._cube
        return max(1, min(super().piece_rows_of(options), PIECE_WORK // work))

    def work(self, options: FilterOptions, deadline: float = math.inf) -> Generator[Steps | None, None, FilterResult]:
        """Filter a sequence as `run_sequence` does. See there for the values that the generator yields and returns.

        Raises:
            InvalidInput: If a time is outside the range of calendars, or for a reason that `run_sequence` states.
        """
        if self.calendar is not None:
            ends = np.array([*options.times[:1], *options.times[-1:]])
            if not is_moment(ends).all():
                raise InvalidInput(NO_MOMENTS, param="times", code="no_dates")
        return super().work(options, deadline)

    def step(
        self, pool: StatePool, batch: Batch, readout: Readout, inputs: Inputs | None = None,
        memory: Memory | None = None, *, traced: bool,
    ) -> tuple[StepOutputs, Traced]:  # fmt: skip
        """Process observations, and return their outputs and their trace. Observations outside the range of calendars
        are rejected. See `FilterRuntime`."""
        if self.calendar is None:
            return super().step(pool, batch, readout, inputs, memory, traced=traced)
        times = batch.times[:, None] + np.array([0.0, *readout.horizon])
        is_valid: np.ndarray = np.logical_and.reduce(is_moment(times), axis=1)
        pattern = np.zeros((*times.shape, self.observation_size))
        pattern[is_valid] = self.calendar.at(times[is_valid].ravel()).reshape(-1, *pattern.shape[1:])
        seen, ahead = pattern[:, 0], pattern[:, 1:]
        values = np.where(is_valid[:, None], batch.values - seen, np.inf)
        out, trace = super().step(pool, batch._replace(values=values), readout, inputs, memory, traced=traced)
        shift(out, seen, ahead)
        return out, trace

    def pattern_at(self, times: np.ndarray) -> np.ndarray | None:
        return None if self.calendar is None else self.calendar.at(times)

    def check_input(self, alarm: Alarm, state: FilterState | None, *, is_given: bool) -> None:
        """See `FilterRuntime`. An alarm range is rejected, because it would be compared with the measurements minus the
        pattern of the calendar.
        """
        if self.calendar is not None and (alarm.rule.low, alarm.rule.high) != (NEVER.rule.low, NEVER.rule.high):
            message = "alarm.range cannot be combined with a system that has a calendar; leave out one of them."
            raise InvalidInput(message, param="alarm.range", code="range_with_calendar")
        super().check_input(alarm, state, is_given=is_given)

    def check_merges(self) -> None:
        if self.calendar is not None:
            message = "states of a system with a calendar cannot be merged, because they do not include its pattern."
            raise InvalidInput(message, param="system", code="no_merge")
        super().check_merges()

    def check_horizon(self, horizon: tuple[float, ...]) -> None:
        if (1 + len(horizon)) * self._cube > MOST_STEP_WORK:
            message = (
                f"horizon: a system with {self.state_size} states and {self.observation_size} components supports at "
                f"most {MOST_STEP_WORK // self._cube - 1} horizons."
            )
            raise InvalidInput(message, param="horizon", code="too_large")


def tasks() -> tuple[CompileTask, CompileTask]:
    """Return two compile tasks. The first compiles the part of the kernel that compiles most slowly. The second
    compiles the rest and must run after it."""
    model = SystemRuntime(System.from_document({"preset": "level", "process_noise": 1, "measurement_noise": 1}))
    steps = cast("CompiledSteps", model.steps)

    def run() -> None:
        model.filter([0.0, 1.0], [[0.0], [1.0]], horizon=(1.0,))
        steps.disable_compilation()

    return (filter_numba, steps.begin), (filter_numba, run)
