"""A system that came with its request, or from a file: the compiled linear filter, and no bundle.

With a calendar the filter takes its pattern for the known bias of the sensor: it is taken from what comes, and put back
on to what is told.

Its intervals begin as a normal's and become the stream's own, as those of `auto` do. It has no
attention mode. The kernels are those of every linear filter: `warm` compiles them at the load of a server.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from rfa.runtime.choices import Mode
from rfa.runtime.compiling import CompileTask
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters import auto_numba, filter_numba
from rfa.runtime.filters.auto import calibration
from rfa.runtime.filters.calendar import is_moment
from rfa.runtime.filters.compiled_steps import CompiledSteps
from rfa.runtime.filters.driven_filter import MOST_STATES, DrivenSystem
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.sequence import FilterResult, Memory
from rfa.runtime.filters.state import FilterState, FilterStates
from rfa.runtime.filters.steps import Batch, Traced
from rfa.runtime.filters.system import System
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.alarms import NEVER, Alarm
from rfa.runtime.uncertainty.baseline import baseline_fields
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.interface import FilterOptions
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import Readout, Steps

if TYPE_CHECKING:
    from rfa.runtime.filters.calendar import Calendar

# Readouts, sets of horizons and lags of inputs that one of many systems keeps.
KEPT: Final = 2
KEPT_LAGS: Final = 256
NO_MOMENTS: Final = (
    "times: a system with a calendar takes times in seconds since 1970, from 1971 on, and those of rows: without times "
    "rows are counted, and no day is known."
)
# What metrics call all of them.
LABEL: Final = "system"
# Of states and components up to so many a call takes many observations; others are taken one by one.
SMALL: Final = 16
# The cube of the size, for an observation and each of its forecasts, comes to so much in a call at most, about a
# millisecond; and of a single observation to so much, some ten of them.
PIECE_WORK: Final = 1 << 20
MOST_STEP_WORK: Final = 1 << 24
MANY: Final = 256  # observations of a small one in a call
MOST_HORIZONS: Final = 256  # of a request
MODES: Final = 25  # matrices that its modes take, in as many bytes as F and Q
# Beside its matrices: readouts of all horizons, what counts the seats of its pool, and Python's objects.
OBJECTS_BYTES: Final = 1 << 20
LAG_BYTES: Final = 1 << 10


class SystemRuntime(FilterRuntime):
    """A system, ready to run.

    Args:
        system: that was checked.

    Attributes:
        digest: what its states are bound to.
    """

    def __init__(self, system: System) -> None:
        config = system.config
        self.calendar: Calendar | None = system.calendar
        self.name, self._family = system.name, "linear"
        version = CompiledSteps.magic + repr(calibration()).encode()
        self.digest = hashlib.sha256(version + system.digest.encode()).hexdigest()
        p, n = len(config.measurement_noise), len(config.drift)
        self.observation_size, self.state_size = p, n
        self.readout_matrix = np.eye(n) if config.observation is None else np.array(config.observation)
        self.readout_offset = np.zeros(p) if config.offset is None else np.array(config.offset)
        self._calibration = {"recurrent": Calibration(calibration())}
        self.levels = self._calibration["recurrent"].levels
        leads = Horizons.of(auto_numba.LEADS, in_steps=True)
        chooses = config.nu is not None and config.inner > 1
        self.passes = PassesRange(1 if chooses else config.inner, config.inner)
        self.steps = steps = CompiledSteps(config, leads, self.passes, KEPT)
        self._cube = max(n, p) ** 3
        steps.rows = MANY if max(n, p) <= SMALL else 1
        self._driven = None
        if n <= MOST_STATES:
            self._driven = DrivenSystem(np.array(config.drift), self.readout_matrix, lags=KEPT_LAGS, horizons=KEPT)
        driven = {} if self._driven is None else self._driven.fields
        fields = {**leads.fields(p, len(self.levels)), **baseline_fields(), **driven}
        FilterStates.__init__(self, steps.magic, steps.initial, steps.fields, fields)
        self._readouts = self._kept_readouts(KEPT)

    @property
    def label(self) -> str:
        return LABEL

    @property
    def has_own_steps(self) -> bool:
        return True

    @property
    def own_bytes(self) -> int:
        return self.kept_bytes + self.state_bytes

    @property
    def kept_bytes(self) -> int:
        """What it holds of memory beside the seats of its streams, an upper estimate."""
        n, p = self.state_size, self.observation_size
        moves, leads = 16 * n**2, KEPT * min(MOST_HORIZONS, MOST_STEP_WORK // self._cube)
        driven = 0 if self._driven is None else KEPT_LAGS * (moves + LAG_BYTES) + leads * 16 * n * p
        pattern = 0 if self.calendar is None else 2 * self.calendar.pattern.nbytes
        return pattern + OBJECTS_BYTES + (leads + MODES) * moves + driven

    def piece_rows_of(self, options: FilterOptions) -> int:
        """See `FilterRuntime`; fewer with many forecasts, so that nobody waits for long."""
        work = (1 + len(options.horizon)) * self._cube
        return max(1, min(super().piece_rows_of(options), PIECE_WORK // work))

    def work(self, options: FilterOptions, deadline: float = math.inf) -> Generator[Steps | None, None, FilterResult]:
        """See `run_sequence`.

        Raises:
            InvalidInput: also where a calendar has no such time.
        """
        if self.calendar is not None:
            ends = np.array([*options.times[:1], *options.times[-1:]])
            if not is_moment(ends).all():
                raise InvalidInput(NO_MOMENTS, param="times", code="no_dates")
        return super().work(options, deadline)

    def step(
        self, pool: StatePool, batch: Batch, readout: Readout, inputs: np.ndarray | None = None,
        memory: Memory | None = None, *, traced: bool,
    ) -> tuple[StepOutputs, Traced]:  # fmt: skip
        """See `FilterRuntime`. Where a calendar has no such time, the observation is refused as one out of range is."""
        if self.calendar is None:
            return super().step(pool, batch, readout, inputs, memory, traced=traced)
        leads = np.array([0.0, *readout.horizon])
        times = batch.times[:, None] + leads
        known: np.ndarray = np.logical_and.reduce(is_moment(times), axis=1)
        pattern = np.zeros((*times.shape, self.observation_size))
        pattern[known] = self.calendar.at(times[known].ravel()).reshape(-1, *pattern.shape[1:])
        seen, ahead = pattern[:, 0], pattern[:, 1:]
        values = np.where(known[:, None], batch.values - seen, np.inf)
        told, trace = super().step(pool, batch._replace(values=values), readout, inputs, memory, traced=traced)
        told.mean[:] += seen
        told.interval[:] += seen[:, None, :, None]
        told.moments[:, :, 0] += ahead
        told.bands[:] += ahead[:, :, None, :, None]
        return told, trace

    def pattern_at(self, times: np.ndarray) -> np.ndarray | None:
        """See `FilterRuntime`."""
        return None if self.calendar is None else self.calendar.at(times)

    def check_input(self, alarm: Alarm, state: FilterState | None, *, is_given: bool) -> None:
        """See `FilterRuntime`; a range is of all that is measured, the calendar with it."""
        if self.calendar is not None and (alarm.low, alarm.high) != (NEVER.low, NEVER.high):
            message = "alarm.range cannot be had with a system that has a calendar: leave one of them out."
            raise InvalidInput(message, param="alarm.range", code="range_with_calendar")
        super().check_input(alarm, state, is_given=is_given)

    def check_merges(self) -> None:
        """See `FilterRuntime`."""
        if self.calendar is not None:
            message = "system has a calendar, whose beliefs are of what it leaves: they are not merged."
            raise InvalidInput(message, param="system", code="no_merge")
        super().check_merges()

    def _make_readout(
        self,
        levels: tuple[float, ...],
        horizon: tuple[float, ...],
        samples: int,
        mode: Mode,
        alarm: Alarm,
        passes: int | None,
    ) -> Readout:
        if (1 + len(horizon)) * self._cube > MOST_STEP_WORK:
            message = (
                f"horizon: a system of {self.state_size} states and {self.observation_size} components takes up to "
                f"{MOST_STEP_WORK // self._cube - 1} leads."
            )
            raise InvalidInput(message, param="horizon", code="too_large")
        return super()._make_readout(levels, horizon, samples, mode, alarm, passes)


def tasks() -> tuple[CompileTask, CompileTask]:
    """What compiles the part of the kernel that takes longest, and what, after the parts of all filters, the rest:
    from then on nothing more is compiled."""
    model = SystemRuntime(System.from_document({"preset": "level", "process_noise": 1, "measurement_noise": 1}))
    steps = cast("CompiledSteps", model.steps)

    def run() -> None:
        model.filter([0.0, 1.0], [[0.0], [1.0]], horizon=(1.0,))
        steps.disable_compilation()

    return (filter_numba, steps.begin), (filter_numba, run)
