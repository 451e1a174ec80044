"""Deep filters on their ONNX graphs, float32: one observation of each of many streams a call.

Rows are padded to one of a few counts, at which a row's numbers are bit for bit the same whatever its neighbours are:
the vector loops of the graphs have no scalar tail.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rfa.runtime.batching import BatchSizes
from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.compiling import disable_compilation, kernel_jit
from rfa.runtime.filters.steps import SHORTEST_LAG, Batch, Traced, streams_of, trace_room
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.uncertainty import scoring
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.step_outputs import FilterOutput, Observation, Scorer, StepOutputs
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray

# Multiples of every vector width of the graphs' loops; see the module's page.
ROW_COUNTS = (16, 32, 64, 128, 256)
# A longer horizon fills the vectors alone: such rows are forecast one by one, without padding.
LONG_HORIZON = 16
# Log of the smallest float32. The graph's likelihood of an absurd outlier underflows to 0; the state is sound then.
LOWEST_LOG_LIKELIHOOD = float(np.log(np.finfo(np.float32).smallest_subnormal))
# Squares and ratios of numbers at the ends of what is accepted leave float32's 38 decades. An observation at which they
# do is taken as so many times noisier, by the first of these that helps: it moves the state less, and the next ones go
# on from there. The last two are for a noise that leaves them itself.
RESCUES = (1e2, 1e4, 1e8, 1e-3, 1e-6)
_SCALARS = ("precision", "weight", "nis", "log_likelihood")
_KNOWN = ("mean", "covariance", "innovation", "innovation_covariance")
_TRACED = ("transition", "predicted_mean", "predicted_covariance")


@functools.cache
def _score_kernel() -> Any:
    @kernel_jit(*scoring.SOURCES)
    def score_rows(scorer, batch, known, is_finite, rows, told):
        """Score the rows of a batch that `rows` names."""
        seats, times, values, _ = batch
        for i in range(len(rows)):
            row = rows[i]
            one = FilterOutput(
                known.mean[i], known.covariance[i], known.innovation[i], known.innovation_covariance[i],
                known.forecast_mean[i], known.forecast_covariance[i], known.scalars[i], known.inverse_dof[i],
                known.forecast_inverse_dof[i], known.half_widths[i], known.has_forecast[i],
            )  # fmt: skip
            observation = Observation(seats[row], times[row], values[row])
            scoring.score_observation(scorer, observation, one, is_finite[i], told, row)

    return score_rows


class GraphSteps:
    """Steps of a deep filter; see `FilterSteps`.

    Args:
        bundle: of kind "filter".
        leads: that forecasts are followed as.
    """

    runtime = "onnx"
    magic = b"RFAF\x0a"
    rows = 1

    def __init__(self, bundle: Bundle, leads: Horizons) -> None:
        self._leads = leads
        self.sizes = BatchSizes(ROW_COUNTS)
        self._step = bundle.session("step")
        self._attend = bundle.session("prefill")
        self._forecast = bundle.session("forecast")
        self._forecast_inputs = {node.name for node in self._forecast.get_inputs()}
        weights = bundle.weights()
        self.size, self.state_size = weights["initial.readout_matrix"].shape
        self._names = [spec.name for spec in bundle.manifest.state]
        self.initial: Mapping[str, Array] = {
            name: np.array(weights[f"initial.{name}"], np.float32) for name in self._names
        }
        self.fields: Mapping[str, StateField] = {
            name: StateField(array.shape, np.float32) for name, array in self.initial.items()
        }
        self.cache_shapes: Mapping[str, tuple[int, ...]] = {
            node.name.removeprefix("cache."): tuple(node.shape[2:])
            for node in self._attend.get_inputs()
            if node.name.startswith("cache.")
        }

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        """See `FilterSteps`: the first observations of all streams, then the second ones, and so on."""
        told, trace = self._room(batch, readout, traced=traced)
        turns = _turns(batch.seats)
        lost: set[int] = set()
        for turn in range(int(turns.max(initial=-1)) + 1):
            rows = [row for row in np.flatnonzero(turns == turn).tolist() if int(batch.seats[row]) not in lost]
            left = self._try(pool, batch, readout, rows, told, trace, None)
            lost.update(int(batch.seats[row]) for row in left)
        return told, trace

    def disable_compilation(self) -> None:
        """See `FilterSteps`."""
        disable_compilation(_score_kernel())

    def attend(self, pool: StatePool, batch: Batch, readout: Readout, memory: Any) -> tuple[StepOutputs, Traced]:
        """One observation of one stream, by attention over those before it."""
        told, trace = self._room(batch, readout, traced=True)
        self._try(pool, batch, readout, [0], told, trace, memory)
        return told, trace

    def _room(self, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        rows, horizon = len(batch.seats), len(readout.horizon)
        told = StepOutputs.allocate(rows, self.size, readout)
        return told, trace_room(rows if traced else 0, self.size, self.state_size, 0, horizon)

    def _try(
        self,
        pool: StatePool,
        batch: Batch,
        readout: Readout,
        rows: list[int],
        told: StepOutputs,
        trace: Traced,
        memory: Any,
    ) -> list[int]:
        """Take one observation of each stream; returns the rows that are not finite, whatever the noise."""
        for factor in (1.0, *RESCUES):
            if not rows:
                break
            self._once(pool, batch, readout, np.array(rows, np.int64), factor, told, trace, memory)
            rows = [row for row in rows if not told.is_good[row]]
        return rows

    def _once(
        self, pool: StatePool, batch: Batch, readout: Readout, rows: Array, factor: float, told: StepOutputs,
        trace: Traced, memory: Any,
    ) -> None:  # fmt: skip
        count = len(rows)
        with np.errstate(over="ignore"):  # beyond float32: infinite, and told so
            inputs = self._inputs(pool, batch, rows, factor, count if memory else self.sizes.padded(count))
        names = [*_SCALARS, *_KNOWN, *(f"next.{name}" for name in self._names)]
        if len(trace.state):
            names += _TRACED
        if memory is None:
            found = self._step.run(names, inputs)
        else:
            names += [f"row.{name}" for name in self.cache_shapes]
            found = self._attend.run(names, inputs | memory.inputs(float(batch.times[0])))
        outputs = dict(zip(names, found, strict=True))
        with np.errstate(all="ignore"):  # what is not finite is told so, and not kept
            self._score_rows(pool, batch, readout, rows, outputs, told, trace)
        good = told.is_good[rows]
        seats = batch.seats[rows][good]
        for name in self._names:
            pool.arrays[name][seats] = outputs[f"next.{name}"][:count][good]
        if memory is not None and good.all():
            memory.add(outputs)

    def _inputs(self, pool: StatePool, batch: Batch, rows: Array, factor: float, size: int) -> dict[str, Array]:
        padded = np.concatenate([rows, np.full(size - len(rows), rows[0])])
        seats, values = batch.seats[padded], batch.values[padded]
        present = ~np.isnan(values)
        is_begun = pool.arrays["clock.count"].take(seats) > 0
        lags = np.where(is_begun, batch.times[padded] - pool.arrays["clock.time"].take(seats), 0.0)
        lags[lags < SHORTEST_LAG] = 0.0
        lags[len(rows) :] = 0.0
        return {
            "observation": np.where(present, values, 0.0).astype(np.float32),
            "present": present.astype(np.float32),
            "dt": lags.astype(np.float32),
            "noise_scale": (batch.noise[padded] * factor).astype(np.float32),
            **{f"state.{name}": pool.arrays[name].take(seats, axis=0) for name in self._names},
        }

    def _score_rows(
        self, pool: StatePool, batch: Batch, readout: Readout, rows: Array, outputs: dict[str, Array],
        told: StepOutputs, trace: Traced,
    ) -> None:  # fmt: skip
        count = len(rows)
        likelihood = outputs["log_likelihood"]
        likelihood[np.isneginf(likelihood)] = LOWEST_LOG_LIKELIHOOD
        means, covariances = self._forecast_rows(outputs, readout.horizon, count)
        fit = _finite_rows([outputs[f"next.{name}"][:count] for name in self._names])
        parts = [outputs[name][:count].astype(np.float64) for name in _KNOWN]
        scalars = np.stack([outputs[name][:count] for name in _SCALARS], axis=1).astype(np.float64)
        mean, covariance, innovation, spread = parts
        few, ahead = np.zeros((count, 2, self.size)), (count, len(readout.horizon), self.size)
        known = FilterOutput(
            mean, covariance, innovation, spread, means, covariances, scalars, few, np.zeros(ahead),
            np.zeros((*ahead, 0)), np.ones((count, self.size), np.bool_),
        )  # fmt: skip
        scorer = Scorer.of(streams_of(pool), self._leads, readout)
        _score_kernel()(scorer, batch.packed(), known, fit, rows, told)
        if len(trace.state):
            trace.scalars[rows] = scalars
            trace.covariance[rows] = known.covariance
            trace.innovation_covariance[rows] = known.innovation_covariance
            for name in _TRACED:
                getattr(trace, name)[rows] = outputs[name][:count]
            trace.mean[rows] = outputs["next.mean"][:count]
            trace.state_covariance[rows] = outputs["next.covariance"][:count]
            trace.forecast_mean[rows], trace.forecast_covariance[rows] = means, covariances

    def _forecast_rows(self, outputs: dict[str, Array], horizon: Sequence[float], count: int) -> tuple[Array, Array]:
        if not horizon:
            return np.empty((count, 0, self.size)), np.empty((count, 0, self.size, self.size))
        means, covariances = [], []
        is_long = len(horizon) >= LONG_HORIZON
        for piece in [[row] for row in range(count)] if is_long else [list(range(count))]:
            size = 1 if is_long else self.sizes.padded(len(piece))
            rows = piece + piece[:1] * (size - len(piece))
            inputs = {f"state.{name}": outputs[f"next.{name}"][rows] for name in self._names}
            inputs["horizon"] = np.array(horizon, np.float32)
            known = {name: array for name, array in inputs.items() if name in self._forecast_inputs}
            found = self._forecast.run(["forecast_mean", "forecast_covariance"], known)
            means.append(found[0][: len(piece)])
            covariances.append(found[1][: len(piece)])
        return np.concatenate(means).astype(np.float64), np.concatenate(covariances).astype(np.float64)


def _turns(seats: Array) -> Array:
    """The how-manieth of its stream each observation is; those of a stream lie side by side."""
    is_first = np.diff(seats, prepend=-1) != 0
    begin = np.flatnonzero(is_first)[np.cumsum(is_first) - 1] if len(seats) else seats
    return np.arange(len(seats)) - begin


def _finite_rows(arrays: Sequence[Array]) -> Array:
    """Which rows are finite in every array."""
    finite = np.ones(len(arrays[0]), bool)
    for array in arrays:
        finite &= np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return finite
