"""The model `auto`, a bank of local filters for series of any kind, which is applied to each column separately (see
`auto_numba`).

It requires neither training nor a bundle. Its intervals start from the normal distribution. They adapt to the errors of
the stream at each horizon by conformal factors (adaptive.py).

`auto-joint` has the same outputs for each column, but scores rows with the learned correlation of the columns
(`rfa.runtime.filters.correlation`).
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from rfa.runtime.bundle.novelty import NOVELTY_CAP
from rfa.runtime.compiling import disable_compilation, kernel_jit
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters import auto_bank_numba, auto_layout, auto_numba, auto_season_numba, correlation
from rfa.runtime.filters import observed as observed_module
from rfa.runtime.filters import steps as filter_steps
from rfa.runtime.filters.auto_layout import LEADS
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.observed import observed
from rfa.runtime.filters.steps import (
    SHORTEST_LAG,
    Batch,
    Traced,
    allocate_posterior,
    allocate_trace,
    store_trace,
    streams_of,
)
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.typical_lag import typical_step
from rfa.runtime.uncertainty import scoring
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.copy_arrays import copy1, copy2
from rfa.runtime.uncertainty.step_outputs import Observation, Scorer, StepOutputs
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray
NAME: Final = "auto"
JOINT_NAME: Final = "auto-joint"
NAMES: Final = (NAME, JOINT_NAME)
# Retired models, and the models that replace them for one version.
RETIRED: Final[Mapping[str, str]] = {"metrics": NAME}
MOST_COLUMNS: Final = 64
STATE, MEMORY, LEARNED = "auto.state", "auto.memory", "auto.correlation"
LEVELS = (0.5, 0.8, 0.9, 0.95)
SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_MADE_OF = (
    auto_bank_numba, auto_layout, auto_numba, auto_season_numba, correlation, filter_steps, observed_module,
    *scoring.SOURCES,
)  # fmt: skip
_NORMAL = NormalDist()
# First bytes of packed states.
MAGIC: Final = {NAME: b"RFAA\x08", JOINT_NAME: b"RFAJ\x06"}
_NOT_JOINT = np.empty((1, 0, 0))


def retirement_note(name: str) -> str:
    """Return the warning in a reply to a request with the name of a retired model."""
    new = RETIRED[name]
    return (
        f"model {name!r} was replaced by {new!r}, which computed this reply; request {new!r}, because the next "
        f"version rejects {name!r}"
    )


def calibration(levels: Sequence[float] = LEVELS, horizons: Sequence[float] = tuple(LEADS.tolist())) -> dict[str, Any]:
    """Return the calibration of a stream before it adapts, which is that of the normal distribution at every
    horizon."""
    quantiles = [_NORMAL.inv_cdf((1 + level) / 2) for level in levels]
    return {
        "levels": list(levels),
        "state": {"variance_scale": 1.0, "multipliers": quantiles},
        "forecast": {
            "own_steps": True, "horizons": list(horizons), "multipliers": [quantiles] * len(horizons),
            "variance_scale": [1.0] * len(horizons),
        },
        "anomaly": {
            "shares": list(SHARES), "quantiles": [_NORMAL.inv_cdf(share) for share in SHARES], "tail_scale": 1.0
        },
        "confidence": {"surprise": [-NOVELTY_CAP, NOVELTY_CAP], "inside": [0.9, 0.9]},
    }  # fmt: skip


def _filter_rows(score, scorer, arrays, batch, outputs, trace, buffers):
    """Filter the observations of a batch. After a rejected observation, the rest of its stream is rejected."""
    streams, spec = scorer.streams, scorer.spec
    state, memory, learned = arrays
    slots, times, values, noise = batch
    out, posterior, after, (z, factor) = buffers
    size, horizon = out.mean.shape[0], len(spec.horizon)
    is_joint = learned.shape[1] > 0
    refused = loaded = -1
    for row in range(len(slots)):
        slot = slots[row]
        if slot == refused:
            outputs.is_good[row] = False
            continue
        count = streams.counts[slot]
        lag = times[row] - streams.time[slot] if count > 0 else 0.0
        unit = typical_step(streams.step[slot], lag, count)
        unit = unit if unit > 0 else 1.0
        if slot != loaded:
            for a in range(size):
                for k in range(auto_layout.SMALL):
                    after[a, k] = state[slot, a, k]
        lag = lag if lag >= SHORTEST_LAG else 0.0
        joint = (z, learned[slot if is_joint else 0], factor)
        auto_numba.observe(
            after, state[slot], memory[slot], values[row], lag, unit, noise[row], out, posterior.inverse_dof, joint
        )
        is_finite = auto_numba.is_finite(after)
        for h in range(horizon):
            auto_numba.forecast(
                after, memory[slot], spec.horizon[h], unit, posterior.forecast_mean[h],
                posterior.forecast_covariance[h], posterior.forecast_inverse_dof[h],
            )  # fmt: skip
        observation = Observation(slot, times[row], values[row])
        if not scoring.score_observation(score, scorer, observation, posterior, is_finite, outputs, row):
            refused, loaded = slot, -1
            continue
        auto_numba.remember(after, state[slot], memory[slot], values[row], unit)
        if is_joint:
            correlation.learn(z, learned[slot])
        for a in range(size):
            for k in range(auto_layout.SMALL):
                state[slot, a, k] = after[a, k]
        loaded = slot
        if len(trace.state) > 0:
            store_trace(out, posterior, trace, row)
            copy1(out.mean, trace.mean[row])
            copy2(out.covariance, trace.state_covariance[row])


@functools.cache
def _kernel() -> Any:
    return kernel_jit(*_MADE_OF)(_filter_rows)


class AutoSteps:
    """Processes observations of some columns with the bank of filters. See `FilterSteps`.

    Args:
        size: Number of columns.
        leads: Horizons of the forecasts whose intervals adapt.
        is_joint: Whether to score rows with the correlation of their columns.
    """

    runtime = "compiled"
    rows = 512

    def __init__(self, size: int, leads: Horizons, *, is_joint: bool) -> None:
        self.size, self._leads, self.magic = size, leads, MAGIC[JOINT_NAME if is_joint else NAME]
        self.fields: Mapping[str, StateField] = {
            STATE: StateField((size, auto_layout.STATE), np.float64),
            MEMORY: StateField((size, auto_layout.MEMORY), np.float32),
        }
        if is_joint and size > 1:
            self.fields = {**self.fields, LEARNED: StateField((size + 1, size), np.float64)}
        self.initial: Mapping[str, Array] = {name: np.zeros(*field) for name, field in self.fields.items()}

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        rows, horizon = len(batch.slots), len(readout.horizon)
        outputs = StepOutputs.allocate(rows, self.size, readout)
        trace = allocate_trace(rows if traced else 0, self.size, self.size, 0, horizon)
        out = observed(self.size, self.size)
        np.fill_diagonal(out.transition, 1.0)
        posterior, scorer = allocate_posterior(out, horizon), Scorer.of(streams_of(pool), self._leads, readout)
        _kernel()(
            scoring.scoring_entry(scorer, posterior, outputs), scorer,
            (pool.arrays[STATE], pool.arrays[MEMORY], pool.arrays.get(LEARNED, _NOT_JOINT)), batch.packed(), outputs,
            trace,
            (
                out, posterior, np.empty((self.size, auto_layout.WORK)),
                (np.empty(self.size), np.empty((self.size + 1, self.size))),
            ),
        )  # fmt: skip
        return outputs, trace

    def disable_compilation(self) -> None:
        disable_compilation(_kernel())


class AutoRuntime(FilterRuntime):
    """The model `auto` or `auto-joint` for some columns.

    Args:
        size: Number of columns, at most MOST_COLUMNS.
        name: One of NAMES.
    """

    has_own_steps = True
    suits_any = True

    def __init__(self, size: int = 1, name: str = NAME) -> None:
        self.passes = PassesRange(1, 1)
        self._describe(name, NAME, np.eye(size), np.zeros(size))
        # The first horizon occurs twice, because errors after a long lag are separate from those after a typical lag.
        horizons = Horizons.of(np.concatenate((LEADS[:1], LEADS)), in_steps=True)
        steps = AutoSteps(size, horizons, is_joint=name == JOINT_NAME)
        self._set_up({"recurrent": Calibration(calibration())}, steps, horizons)

    @property
    def own_bytes(self) -> int:
        """Memory in bytes that each request reserves for the state of its stream. It is large for many columns."""
        return self.state_bytes

    @staticmethod
    @functools.lru_cache(32)
    def of(size: int, name: str = NAME) -> AutoRuntime:
        """Return the model `name` for a number of columns.

        Raises:
            InvalidInput: If there are too many columns.
        """
        if size > MOST_COLUMNS:
            message = f"model {name!r} supports up to {MOST_COLUMNS} columns, got {size}; send fewer columns"
            raise InvalidInput(message, param="observations", code="too_large")
        return AutoRuntime(size, name)

    def sized(self, size: int) -> FilterRuntime:
        """Return the same model for another number of columns.

        Raises:
            InvalidInput: If there are too many columns.
        """
        return AutoRuntime.of(size, self.name)


def compile_scoring() -> None:
    """Compile the scoring of observations, which the kernels of all filters call."""
    model = AutoRuntime.of(1)
    pool, readout = StatePool(model.state_fields, 1), model.readout((), (1.0,), 0)
    scorer = Scorer.of(streams_of(pool), Horizons.of(LEADS, in_steps=True), readout)
    posterior = allocate_posterior(observed(1, 1), 1)
    scoring.scoring_entry(scorer, posterior, StepOutputs.allocate(0, 1, readout))


def warm() -> None:
    """Compile the kernels, then disable compilation."""
    model = AutoRuntime.of(1)
    model.filter([0.0, 1.0], [[0.0], [1.0]], horizon=(1.0,))
    model.steps.disable_compilation()


def digest(name: str = NAME) -> str:
    """Return the digest of this version of the model `name`. States and replies contain the digest."""
    return hashlib.sha256(MAGIC[name] + repr(calibration()).encode()).hexdigest()
