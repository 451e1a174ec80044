"""Process observations of deep filters with ONNX graphs in float32. One call processes one observation of each of many
streams.

The number of rows is padded to one of a few sizes, which are multiples of the vector width. Therefore, the loops of the
graphs have no scalar tail, and the results of a row do not depend on the other rows.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rfa.runtime.batching import BatchSizes
from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.compiling import disable_compilation, kernel_jit
from rfa.runtime.filters.step_call import StepCall
from rfa.runtime.filters.steps import SHORTEST_LAG, Batch, Traced, streams_of
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.uncertainty import scoring
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.step_outputs import FilterOutput, Observation, Scorer, StepOutputs
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray

# These are multiples of the vector widths of all loops in the graphs.
ROW_COUNTS = (16, 32, 64, 128, 256)
# From this horizon on, rows are forecast one by one and without padding, because each fills the vectors.
LONG_HORIZON = 16
# Logarithm of the smallest float32. It replaces the log-likelihood of an extreme outlier, whose likelihood underflows
# to 0 in the graph.
LOWEST_LOG_LIKELIHOOD = float(np.log(np.finfo(np.float32).smallest_subnormal))
# Squares of accepted numbers may exceed the range of float32. The standard deviation of the measurement noise is then
# multiplied by the first of these factors that gives finite results. The last two are used if this standard deviation
# exceeds the range.
NOISE_RETRIES = (1e2, 1e4, 1e8, 1e-3, 1e-6)
_SCALARS = ("precision", "weight", "nis", "log_likelihood")
_MOMENTS = ("mean", "covariance", "innovation", "innovation_covariance")
_TRACED = ("transition", "predicted_mean", "predicted_covariance")


@functools.cache
def _score_kernel() -> Any:
    @kernel_jit(*scoring.SOURCES)
    def score_rows(score, scorer, batch, posteriors, is_finite, rows, out):
        """Score the observations `rows` of a batch."""
        slots, times, values, _ = batch
        for i in range(len(rows)):
            row = rows[i]
            posterior = FilterOutput(
                posteriors.mean[i], posteriors.covariance[i], posteriors.innovation[i],
                posteriors.innovation_covariance[i], posteriors.forecast_mean[i], posteriors.forecast_covariance[i],
                posteriors.scalars[i], posteriors.inverse_dof[i], posteriors.forecast_inverse_dof[i],
                posteriors.half_widths[i], posteriors.has_forecast[i], posteriors.tail[i],
            )  # fmt: skip
            observation = Observation(slots[row], times[row], values[row])
            scoring.score_observation(score, scorer, observation, posterior, is_finite[i], out, row)

    return score_rows


class GraphSteps:
    """Processes observations of a deep filter. See `FilterSteps`.

    Args:
        bundle: Bundle of kind "filter".
        leads: Horizons of the forecasts whose intervals adapt.
    """

    runtime = "onnx"
    magic = b"RFAF\x0f"
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
        """Process the first observations of all streams, then the second ones, and so on. Return the outputs and the
        trace. See `FilterSteps`."""
        call = StepCall.allocate(pool, batch, readout, (self.size, self.state_size), traced=traced)
        order = _order_in_stream(batch.slots)
        failed: set[int] = set()
        for k in range(int(order.max(initial=-1)) + 1):
            rows = [row for row in np.flatnonzero(order == k).tolist() if int(batch.slots[row]) not in failed]
            failed.update(int(batch.slots[row]) for row in self._step_rows(call, rows, None))
        return call.outputs, call.trace

    def disable_compilation(self) -> None:
        disable_compilation(_score_kernel())

    def attend(self, pool: StatePool, batch: Batch, readout: Readout, memory: Any) -> tuple[StepOutputs, Traced]:
        """Process one observation of one stream by attention over the earlier observations. Return the outputs and the
        trace."""
        call = StepCall.allocate(pool, batch, readout, (self.size, self.state_size), traced=True)
        self._step_rows(call, [0], memory)
        return call.outputs, call.trace

    def _step_rows(self, call: StepCall, rows: list[int], memory: Any) -> list[int]:
        """Process one observation of each stream. Rows with non-finite results are processed again, with the standard
        deviation of the measurement noise multiplied by each factor in NOISE_RETRIES in turn. Return the rows whose
        results are still not finite."""
        for factor in (1.0, *NOISE_RETRIES):
            if not rows:
                break
            self._try_rows(call, np.array(rows, np.int64), factor, memory)
            rows = [row for row in rows if not call.outputs.is_good[row]]
        return rows

    def _try_rows(self, call: StepCall, rows: Array, factor: float, memory: Any) -> None:
        count = len(rows)
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are checked below
            inputs = self._inputs(call, rows, factor, count if memory else self.sizes.padded(count))
        names = [*_SCALARS, *_MOMENTS, *(f"next.{name}" for name in self._names)]
        if len(call.trace.state):
            names += _TRACED
        if memory is None:
            found = self._step.run(names, inputs)
        else:
            names += [f"row.{name}" for name in self.cache_shapes]
            found = self._attend.run(names, inputs | memory.inputs(float(call.batch.times[0])))
        outputs = dict(zip(names, found, strict=True))
        with np.errstate(all="ignore"):  # non-finite rows are marked and not stored
            self._score_rows(call, rows, outputs)
        good = call.outputs.is_good[rows]
        slots = call.batch.slots[rows][good]
        for name in self._names:
            call.pool.arrays[name][slots] = outputs[f"next.{name}"][:count][good]
        if memory is not None and good.all():
            memory.add(outputs)

    def _inputs(self, call: StepCall, rows: Array, factor: float, size: int) -> dict[str, Array]:
        arrays, batch = call.pool.arrays, call.batch
        padded = np.concatenate([rows, np.full(size - len(rows), rows[0])])
        slots, values = batch.slots[padded], batch.values[padded]
        present = ~np.isnan(values)
        is_begun = arrays["clock.count"].take(slots) > 0
        lags = np.where(is_begun, batch.times[padded] - arrays["clock.time"].take(slots), 0.0)
        lags[lags < SHORTEST_LAG] = 0.0
        lags[len(rows) :] = 0.0
        return {
            "observation": np.where(present, values, 0.0).astype(np.float32),
            "present": present.astype(np.float32),
            "dt": lags.astype(np.float32),
            "noise_scale": (batch.noise[padded] * factor).astype(np.float32),
            **{f"state.{name}": arrays[name].take(slots, axis=0) for name in self._names},
        }

    def _score_rows(self, call: StepCall, rows: Array, outputs: dict[str, Array]) -> None:
        count, horizon, trace = len(rows), call.readout.horizon, call.trace
        likelihood = outputs["log_likelihood"]
        likelihood[np.isneginf(likelihood)] = LOWEST_LOG_LIKELIHOOD
        means, covariances = self._forecast_rows(outputs, horizon, count)
        is_finite = _finite_rows([outputs[f"next.{name}"][:count] for name in self._names])
        scalars = np.stack([outputs[name][:count] for name in _SCALARS], axis=1).astype(np.float64)
        ahead = count, len(horizon), self.size
        mean, covariance, innovation, spread = (outputs[name][:count].astype(np.float64) for name in _MOMENTS)
        posteriors = FilterOutput(
            mean, covariance, innovation, spread, means, covariances, scalars,
            np.zeros((count, 2, self.size)), np.zeros(ahead), np.zeros((*ahead, 0)),
            np.ones((count, self.size), np.bool_), np.full((count, 2), np.nan),
        )  # fmt: skip
        scorer = Scorer.of(streams_of(call.pool), self._leads, call.readout)
        first = FilterOutput(*(part[0] for part in posteriors))
        score = scoring.scoring_entry(scorer, first, call.outputs)
        _score_kernel()(score, scorer, call.batch.packed(), posteriors, is_finite, rows, call.outputs)
        if len(trace.state):
            trace.scalars[rows] = scalars
            trace.covariance[rows] = posteriors.covariance
            trace.innovation_covariance[rows] = posteriors.innovation_covariance
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
            used = {name: array for name, array in inputs.items() if name in self._forecast_inputs}
            found = self._forecast.run(["forecast_mean", "forecast_covariance"], used)
            means.append(found[0][: len(piece)])
            covariances.append(found[1][: len(piece)])
        return np.concatenate(means).astype(np.float64), np.concatenate(covariances).astype(np.float64)


def _order_in_stream(slots: Array) -> Array:
    """Return the index of each observation within its stream. The observations of a stream must be adjacent."""
    is_first = np.diff(slots, prepend=-1) != 0
    begin = np.flatnonzero(is_first)[np.cumsum(is_first) - 1] if len(slots) else slots
    return np.arange(len(slots)) - begin


def _finite_rows(arrays: Sequence[Array]) -> Array:
    """Return whether each row is finite in every array."""
    finite = np.ones(len(arrays[0]), bool)
    for array in arrays:
        finite &= np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return finite
