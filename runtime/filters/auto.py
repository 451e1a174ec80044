"""The model `auto`: a bank of local filters for any numbers, each column by itself; see `auto_numba`.

It needs no bundle: nothing of it was trained. Its errors are followed on the stream itself for every lead, so its
intervals begin as a normal's, and become the stream's own by the conformal factors of adaptive.py.

`auto-joint` tells the same of each column, but how strange a row is by the correlation of its columns, which it learns:
see `rfa.runtime.filters.correlation`.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, Final

import numpy as np

import rfa.runtime.filters.observed as told_of_one
from rfa.runtime.bundle.novelty import NOVELTY_CAP
from rfa.runtime.compiling import disable_compilation, kernel_jit
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters import auto_numba, correlation
from rfa.runtime.filters import steps as filter_steps
from rfa.runtime.filters.filter import KEPT_READOUTS, FilterRuntime
from rfa.runtime.filters.observed import observed
from rfa.runtime.filters.state import FilterStates
from rfa.runtime.filters.steps import (
    SHORTEST_LAG,
    Batch,
    Traced,
    keep_trace,
    room_of_known,
    streams_of,
    trace_room,
)
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.uncertainty import scoring
from rfa.runtime.uncertainty.adaptive import Horizons, typical_step
from rfa.runtime.uncertainty.baseline import baseline_fields
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.copy_arrays import copy1, copy2
from rfa.runtime.uncertainty.step_outputs import Observation, Scorer, StepOutputs
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray
NAME: Final = "auto"
JOINT_NAME: Final = "auto-joint"
NAMES: Final = (NAME, JOINT_NAME)
# Models that were retired, each with the one that answers requests that name it, for one version.
RETIRED: Final[Mapping[str, str]] = {"metrics": NAME}
MOST_COLUMNS: Final = 64
STATE, MEMORY, LEARNED = "auto.state", "auto.memory", "auto.correlation"
LEVELS = (0.5, 0.8, 0.9, 0.95)
SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_MADE_OF = auto_numba, correlation, filter_steps, told_of_one, *scoring.SOURCES
_NORMAL = NormalDist()
# What states begin with.
MAGIC: Final = {NAME: b"RFAA\x03", JOINT_NAME: b"RFAJ\x01"}
_NOT_JOINT = np.empty((1, 0, 0))


def retirement_note(name: str) -> str:
    """What a reply says where it was asked for by a name in RETIRED."""
    by = RETIRED[name]
    return f"model {name!r} is retired and was answered by {by!r}: name {by!r}, the next version refuses {name!r}"


def calibration() -> dict[str, Any]:
    """What is told before a stream has taught anything: a normal's intervals at every lead."""
    quantiles = [_NORMAL.inv_cdf((1 + level) / 2) for level in LEVELS]
    leads = auto_numba.LEADS.tolist()
    return {
        "levels": list(LEVELS),
        "state": {"variance_scale": 1.0, "multipliers": quantiles},
        "forecast": {
            "own_steps": True, "horizons": leads, "multipliers": [quantiles] * len(leads),
            "variance_scale": [1.0] * len(leads),
        },
        "anomaly": {
            "shares": list(SHARES), "quantiles": [_NORMAL.inv_cdf(share) for share in SHARES], "tail_scale": 1.0
        },
        "confidence": {"surprise": [-NOVELTY_CAP, NOVELTY_CAP], "inside": [0.9, 0.9]},
    }  # fmt: skip


def _take_rows(out, state, memory, learned, scorer, batch, told, trace, known, after, apart):
    """All observations of a batch; those of a stream after one that was not taken are not taken either."""
    streams, spec = scorer.streams, scorer.spec
    seats, times, values, noise = batch
    size, horizon = out.mean.shape[0], len(spec.horizon)
    z, factor = apart
    is_joint = learned.shape[1] > 0
    lost = held = -1
    for row in range(len(seats)):
        seat = seats[row]
        if seat == lost:
            told.is_good[row] = False
            continue
        count = streams.counts[seat]
        lag = times[row] - streams.time[seat] if count > 0 else 0.0
        unit = typical_step(streams.step[seat], lag, count)
        unit = unit if unit > 0 else 1.0
        if seat != held:
            for a in range(size):
                for k in range(auto_numba.SMALL):
                    after[a, k] = state[seat, a, k]
        lag = lag if lag >= SHORTEST_LAG else 0.0
        joint = (z, learned[seat if is_joint else 0], factor)
        auto_numba.observe(
            after, state[seat], memory[seat], values[row], lag, unit, noise[row], out, known.inverse_dof, joint
        )
        is_finite = auto_numba.is_finite(after)
        for h in range(horizon):
            auto_numba.forecast(
                after, memory[seat], spec.horizon[h], unit, known.forecast_mean[h], known.forecast_covariance[h],
                known.forecast_inverse_dof[h],
            )  # fmt: skip
        observation = Observation(seat, times[row], values[row])
        if not scoring.score_observation(scorer, observation, known, is_finite, told, row):
            lost, held = seat, -1
            continue
        auto_numba.remember(after, state[seat], memory[seat], values[row], unit)
        if is_joint:
            correlation.learn(z, learned[seat])
        for a in range(size):
            for k in range(auto_numba.SMALL):
                state[seat, a, k] = after[a, k]
        held = seat
        if len(trace.state) > 0:
            keep_trace(out, known, trace, row)
            copy1(out.mean, trace.mean[row])
            copy2(out.covariance, trace.state_covariance[row])


@functools.cache
def _kernel() -> Any:
    return kernel_jit(*_MADE_OF)(_take_rows)


class AutoSteps:
    """Steps of the bank for some columns; see `FilterSteps`.

    Args:
        size: columns.
        leads: that forecasts are followed as.
        is_joint: rows are told by the correlation of their columns.
    """

    runtime = "compiled"
    rows = 512

    def __init__(self, size: int, leads: Horizons, *, is_joint: bool) -> None:
        self.size, self._leads, self.magic = size, leads, MAGIC[JOINT_NAME if is_joint else NAME]
        self.fields: Mapping[str, StateField] = {
            STATE: StateField((size, auto_numba.STATE), np.float64),
            MEMORY: StateField((size, auto_numba.MEMORY), np.float32),
        }
        if is_joint and size > 1:
            self.fields = {**self.fields, LEARNED: StateField((size + 1, size), np.float64)}
        self.initial: Mapping[str, Array] = {name: np.zeros(*field) for name, field in self.fields.items()}

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        """See `FilterSteps`."""
        rows, horizon = len(batch.seats), len(readout.horizon)
        told = StepOutputs.allocate(rows, self.size, readout)
        trace = trace_room(rows if traced else 0, self.size, self.size, 0, horizon)
        out = observed(self.size, self.size)
        np.fill_diagonal(out.transition, 1.0)
        _kernel()(
            out, pool.arrays[STATE], pool.arrays[MEMORY], pool.arrays.get(LEARNED, _NOT_JOINT),
            Scorer.of(streams_of(pool), self._leads, readout), batch.packed(), told, trace,
            room_of_known(out, horizon), np.empty((self.size, auto_numba.WORK)),
            (np.empty(self.size), np.empty((self.size + 1, self.size))),
        )  # fmt: skip
        return told, trace

    def disable_compilation(self) -> None:
        """See `FilterSteps`."""
        disable_compilation(_kernel())


class AutoRuntime(FilterRuntime):
    """The model `auto` for some columns, ready to run.

    Args:
        size: columns, at most MOST_COLUMNS.
        name: of NAMES.
    """

    def __init__(self, size: int = 1, name: str = NAME) -> None:
        self.name, self._family = name, NAME
        self.readout_matrix, self.readout_offset = np.eye(size), np.zeros(size)
        self.observation_size = self.state_size = size
        self._calibration = {"recurrent": Calibration(calibration())}
        self.levels = self._calibration["recurrent"].levels
        # An error after a long lag does not tell how far off a forecast of a typical one is: that has its own place.
        leads = Horizons.of(np.concatenate((auto_numba.LEADS[:1], auto_numba.LEADS)), in_steps=True)
        self.steps = AutoSteps(size, leads, is_joint=name == JOINT_NAME)
        self._driven = None
        self.passes = PassesRange(1, 1)
        fields = {**leads.fields(size, len(self.levels)), **baseline_fields()}
        FilterStates.__init__(self, self.steps.magic, self.steps.initial, self.steps.fields, fields)
        self._readouts = self._kept_readouts(KEPT_READOUTS)

    @property
    def has_own_steps(self) -> bool:
        return True

    @property
    def suits_any(self) -> bool:
        return True

    @property
    def own_bytes(self) -> int:
        """See `FilterRuntime`: a seat, which many columns make large."""
        return self.state_bytes

    @staticmethod
    @functools.lru_cache(32)
    def of(size: int, name: str = NAME) -> AutoRuntime:
        """For so many columns; the name is one of NAMES.

        Raises:
            InvalidInput: they are too many.
        """
        if size > MOST_COLUMNS:
            message = f"model {name!r} takes up to {MOST_COLUMNS} columns at a time, not {size}: send some of them"
            raise InvalidInput(message, param="observations", code="too_large")
        return AutoRuntime(size, name)

    def sized(self, size: int) -> FilterRuntime:
        """The same model for so many columns; the errors are those of `of`."""
        return AutoRuntime.of(size, self.name)


def warm() -> None:
    """Compile what runs, and no more from then on."""
    model = AutoRuntime.of(1)
    model.filter([0.0, 1.0], [[0.0], [1.0]], horizon=(1.0,))
    model.steps.disable_compilation()


def digest(name: str = NAME) -> str:
    """What states and replies know this version of a model by."""
    return hashlib.sha256(MAGIC[name] + repr(calibration()).encode()).hexdigest()
