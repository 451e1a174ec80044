"""The filter on NumPy and ONNX Runtime: steps with calibrated intervals, forecasts, anomaly scores, samples and
smoothing.

One stream at a time, so a stream's numbers cannot depend on other requests. Random numbers are keyed by (seed, position
in the stream): a stream gives the same samples in one request, in segments and observation by observation.

Calibration: an interval's half width is std × multiplier(level, horizon). Between calibrated levels the ratio of the
multiplier to the normal quantile is interpolated (held constant outside); between horizons the multiplier is
interpolated in log time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from export.bundle import Bundle
from export.surprise import running_surprise, wilson_hilferty

Array = np.ndarray
Observation = Sequence[float | None] | None
Mode = Literal["recurrent", "attention"]

# Attention keeps one row per observation and looks at all of them at every step.
MAX_ATTENTION = 1024
CACHE_BLOCK = 128
STATE_MAGIC = b"RFAF\x01"
_HEADER = struct.Struct("<5sQdd")
_NORMAL = NormalDist()


class FilterInputError(ValueError):
    """A value that this filter cannot take; `param` names the field."""

    def __init__(self, message: str, param: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True)
class ForecastPoint:
    """A future observation."""

    t: float
    mean: list[float]
    std: list[float]
    interval: dict[str, list[list[float]]]


@dataclass(frozen=True)
class FilterStep:
    """The state in observation units after one observation; None where nothing was observed."""

    index: int
    t: float
    mean: list[float]
    std: list[float]
    precision: float
    confidence: float
    weight: float | None
    innovation: list[float | None] | None
    nis: float | None
    anomaly: float | None
    interval: dict[str, list[list[float]]]
    forecast: list[ForecastPoint]
    samples: list[list[float]]


@dataclass(frozen=True)
class SmoothedStep:
    """The state given all observations of the request."""

    index: int
    t: float
    mean: list[float]
    std: list[float]


@dataclass(frozen=True)
class FilterState:
    """tensors: the graph's state without batch; time of the last observation (meaningless at count 0); count so far."""

    tensors: dict[str, Array]
    time: float
    count: int
    surprise: float


@dataclass(frozen=True)
class FilterResult:
    """Everything about a sequence; `state` continues it."""

    steps: list[FilterStep]
    log_likelihood: float
    state: FilterState
    smoothed: list[SmoothedStep] | None


@dataclass(frozen=True)
class _Trace:
    """What smoothing needs of a step, in state coordinates, float64."""

    transition: Array
    predicted_mean: Array
    predicted_covariance: Array
    mean: Array
    covariance: Array


@dataclass(frozen=True)
class _Request:
    levels: tuple[float, ...]
    horizon: tuple[float, ...]
    samples: int
    seed: int
    mode: Mode


class Calibration:
    """The calibration of one mode; see export/filter_calibration.py for the fit."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.levels: tuple[float, ...] = tuple(document["levels"])
        self._quantiles = np.array([_NORMAL.inv_cdf((1 + level) / 2) for level in self.levels])
        self._state = np.array(document["state"]["multipliers"])
        self._state_scale = math.sqrt(document["state"]["variance_scale"])
        self._horizons = np.log(np.array(document["forecast"]["horizons"]))
        self._forecast = np.array(document["forecast"]["multipliers"])
        self._forecast_scale = np.sqrt(np.array(document["forecast"]["variance_scale"]))
        self._anomaly = document["anomaly"]
        self._confidence = document["confidence"]

    def _multiplier(self, multipliers: Array, level: float) -> float:
        ratio = np.interp(level, self.levels, multipliers / self._quantiles)
        return float(ratio) * _NORMAL.inv_cdf((1 + level) / 2)

    def state(self, level: float) -> float:
        """Half width of a state interval per model std."""
        return self._multiplier(self._state, level)

    @property
    def state_scale(self) -> float:
        return self._state_scale

    def _at(self, values: Array, horizon: float) -> Array:
        position = math.log(max(horizon, 1e-300))
        columns = values.reshape(len(self._horizons), -1).T
        return np.array([np.interp(position, self._horizons, column) for column in columns])

    def forecast(self, level: float, horizon: float) -> float:
        return self._multiplier(self._at(self._forecast, horizon), level)

    def forecast_scale(self, horizon: float) -> float:
        return float(self._at(self._forecast_scale, horizon)[0])

    def anomaly(self, z: float) -> float:
        """1 - tail probability of a surprise: the empirical table, then a normal tail that continues it."""
        table, shares = self._anomaly["quantiles"], self._anomaly["shares"]
        if z <= table[-1]:
            return float(np.interp(z, table, shares, left=0.0))
        tail = _NORMAL.inv_cdf(shares[-1]) + (z - table[-1]) / self._anomaly["tail_scale"]
        return min(1.0, _NORMAL.cdf(tail))

    def confidence(self, surprise: float) -> float:
        return float(np.interp(surprise, self._confidence["surprise"], self._confidence["inside"]))


class FilterRuntime:
    """A filter bundle, ready to run."""

    def __init__(self, bundle: Bundle) -> None:
        if bundle.kind != "filter":
            raise ValueError(f"bundle {bundle.name!r} is of kind {bundle.kind!r}, not a filter")
        self.name = bundle.name
        self._step = bundle.session("step")
        self._attend = bundle.session("prefill")
        self._forecast = bundle.session("forecast")
        self._outputs = [node.name for node in self._step.get_outputs()]
        self._attend_outputs = [node.name for node in self._attend.get_outputs()]
        weights = bundle.weights()
        self._names = [spec.name for spec in bundle.manifest.state]
        self._initial = {name: np.array(weights[f"initial.{name}"]) for name in self._names}
        self._readout = weights["initial.readout_matrix"].astype(np.float64)
        self._offset = weights["initial.readout_offset"].astype(np.float64)
        self.observation_size: int = self._readout.shape[0]
        self._rows = {
            node.name.removeprefix("cache."): tuple(node.shape[2:])
            for node in self._attend.get_inputs()
            if node.name.startswith("cache.")
        }
        document = bundle.calibration
        self._calibration: dict[str, Calibration] = {
            mode: Calibration(document[mode]) for mode in ("recurrent", "attention")
        }
        self.levels: tuple[float, ...] = self._calibration["recurrent"].levels

    def start(self) -> FilterState:
        """The state before the first observation."""
        return FilterState({name: array.copy() for name, array in self._initial.items()}, 0.0, 0, 0.0)

    def pack(self, state: FilterState) -> bytes:
        """Little-endian bytes: magic, count, time, surprise, then the tensors in the manifest's order as float32."""
        body = b"".join(state.tensors[name].astype("<f4").tobytes() for name in self._names)
        return _HEADER.pack(STATE_MAGIC, state.count, state.time, state.surprise) + body

    def unpack(self, data: bytes) -> FilterState:
        """The inverse of `pack`.

        Raises:
            FilterInputError: not a state of this filter.
        """
        sizes = {name: array.size for name, array in self._initial.items()}
        if len(data) != _HEADER.size + 4 * sum(sizes.values()) or not data.startswith(STATE_MAGIC):
            raise FilterInputError("state is not a state of this filter", "state", "state_invalid")
        _, count, time, surprise = _HEADER.unpack_from(data)
        values = np.frombuffer(data, "<f4", offset=_HEADER.size).astype(np.float32)
        if not (np.isfinite(values).all() and math.isfinite(time) and math.isfinite(surprise)):
            raise FilterInputError("state holds a value that is not finite", "state", "state_invalid")
        tensors, position = {}, 0
        for name in self._names:
            tensors[name] = values[position : position + sizes[name]].reshape(self._initial[name].shape)
            position += sizes[name]
        return FilterState(tensors, time, count, surprise)

    def step(
        self,
        state: FilterState,
        t: float,
        observation: Observation,
        *,
        noise: float | None = None,
        levels: Sequence[float] = (0.9,),
        horizon: Sequence[float] = (),
        samples: int = 0,
        seed: int = 0,
    ) -> tuple[FilterStep, FilterState]:
        """One observation of a stream, in recurrent mode."""
        result = self.filter(
            [t], [observation], noise=[noise], levels=levels, horizon=horizon, samples=samples, seed=seed, state=state
        )
        return result.steps[0], result.state

    def filter(
        self,
        times: Sequence[float],
        observations: Sequence[Observation],
        *,
        noise: Sequence[float | None] | None = None,
        levels: Sequence[float] = (0.5, 0.9),
        horizon: Sequence[float] = (),
        samples: int = 0,
        seed: int = 0,
        mode: Mode = "recurrent",
        smooth: bool = False,
        state: FilterState | None = None,
    ) -> FilterResult:
        """Filter a sequence.

        Args:
            observations: P numbers each; None = nothing observed, None inside = that component is missing.
            noise: factors on the standard deviation of each observation's measurement noise; None = 1.
            samples: draws of the state per step; with `smooth` they are trajectories given all observations.
            mode: "attention" looks at all earlier observations of the request (at most MAX_ATTENTION) and starts fresh.
            state: continue from here (recurrent mode).

        Raises:
            FilterInputError: naming the field.
        """
        carried = state if state is not None and state.count else self.start()
        values, present = self._check_observations(observations)
        self._check_times(times, len(observations), carried)
        scales = self._check_noise(noise, len(observations))
        request = self._check_request(levels, horizon, samples, seed, mode, carried, len(observations))
        cache = {name: np.zeros((1, 0, *shape), np.float32) for name, shape in self._rows.items()}
        steps: list[FilterStep] = []
        traces: list[_Trace] = []
        total = 0.0
        for i, t in enumerate(times):
            outputs = self._run(carried, t, values[i], present[i], scales[i], mode, cache, times, i)
            step, carried = self._finish(outputs, carried, float(t), present[i], request, draw=not smooth)
            steps.append(step)
            total += float(outputs["log_likelihood"][0])
            if smooth:
                traces.append(_trace(outputs))
        smoothed = None
        if smooth:
            smoothed = self._smooth(traces, steps, request)
            steps = self._with_trajectories(traces, steps, request)
        return FilterResult(steps, total, carried, smoothed)

    # Running the graphs.

    def _run(
        self,
        state: FilterState,
        t: float,
        value: Array,
        present: Array,
        scale: float,
        mode: str,
        cache: dict[str, Array],
        times: Sequence[float],
        i: int,
    ) -> dict[str, Array]:
        lag = t - state.time if state.count else 0.0
        inputs: dict[str, Array] = {
            "observation": value[None],
            "present": present[None],
            "dt": np.array([lag], np.float32),
            "noise_scale": np.array([scale], np.float32),
            **{f"state.{name}": tensor[None] for name, tensor in state.tensors.items()},
        }
        if mode == "recurrent":
            return dict(zip(self._outputs, self._step.run(None, inputs), strict=True))
        self._grow(cache, i)
        size = next(iter(cache.values())).shape[1]
        lags = np.zeros((1, size), np.float32)
        lags[0, :i] = t - np.asarray(times[:i])
        valid = np.zeros((1, size), np.float32)
        valid[0, :i] = 1
        inputs |= {"lag": lags, "valid": valid, **{f"cache.{name}": rows for name, rows in cache.items()}}
        outputs = dict(zip(self._attend_outputs, self._attend.run(None, inputs), strict=True))
        for name, rows in cache.items():
            rows[:, i] = outputs[f"row.{name}"]
        return outputs

    def _grow(self, cache: dict[str, Array], needed: int) -> None:
        for name, rows in cache.items():
            if rows.shape[1] <= needed:
                more = np.zeros((1, CACHE_BLOCK, *rows.shape[2:]), np.float32)
                cache[name] = np.concatenate([rows, more], axis=1)

    def _finish(
        self, outputs: dict[str, Array], state: FilterState, t: float, present: Array, request: _Request, *, draw: bool
    ) -> tuple[FilterStep, FilterState]:
        if not all(np.isfinite(array).all() for array in outputs.values()):
            raise FilterInputError("the numbers are too large for this filter", "observations", "out_of_range")
        calibration = self._calibration[request.mode]
        mean = outputs["mean"][0].astype(np.float64)
        covariance = outputs["covariance"][0].astype(np.float64)
        deviation = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
        seen = int(present.sum())
        nis = float(outputs["nis"][0])
        surprise, anomaly = state.surprise, None
        if seen:
            z = float(wilson_hilferty(nis, seen))
            surprise, anomaly = float(running_surprise(surprise, z)), calibration.anomaly(z)
        tensors = {name: outputs[f"next.{name}"][0] for name in self._names}
        following = FilterState(tensors, t, state.count + 1, surprise)
        innovation = [float(x) if p else None for x, p in zip(outputs["innovation"][0], present, strict=True)]
        samples = _draw(mean, covariance * calibration.state_scale**2, request, state.count) if draw else []
        step = FilterStep(
            index=state.count,
            t=t,
            mean=mean.tolist(),
            std=(deviation * calibration.state_scale).tolist(),
            precision=float(outputs["precision"][0]),
            confidence=calibration.confidence(surprise),
            weight=float(outputs["weight"][0]) if seen else None,
            innovation=innovation if seen else None,
            nis=nis if seen else None,
            anomaly=anomaly,
            interval={f"{level:g}": _bands(mean, deviation * calibration.state(level)) for level in request.levels},
            forecast=self._forecasts(following, t, request) if request.horizon else [],
            samples=samples,
        )
        return step, following

    def _forecasts(self, state: FilterState, t: float, request: _Request) -> list[ForecastPoint]:
        inputs = {f"state.{name}": tensor[None] for name, tensor in state.tensors.items()}
        inputs["horizon"] = np.array(request.horizon, np.float32)
        known = {node.name for node in self._forecast.get_inputs()}
        means, covariances = self._forecast.run(
            ["forecast_mean", "forecast_covariance"], {name: array for name, array in inputs.items() if name in known}
        )
        calibration = self._calibration[request.mode]
        points = []
        for i, lead in enumerate(request.horizon):
            mean = means[0, i].astype(np.float64)
            deviation = np.sqrt(np.maximum(np.diagonal(covariances[0, i]).astype(np.float64), 0.0))
            interval = {
                f"{level:g}": _bands(mean, deviation * calibration.forecast(level, lead)) for level in request.levels
            }
            scaled = (deviation * calibration.forecast_scale(lead)).tolist()
            points.append(ForecastPoint(t + lead, mean.tolist(), scaled, interval))
        return points

    # Smoothing.

    def _smooth(self, traces: list[_Trace], steps: list[FilterStep], request: _Request) -> list[SmoothedStep]:
        """Rauch-Tung-Striebel over the steps of this request."""
        scale = self._calibration[request.mode].state_scale
        mean, covariance = traces[-1].mean, traces[-1].covariance
        smoothed = [(mean, covariance)]
        for now, after in zip(traces[-2::-1], traces[:0:-1], strict=True):
            gain = _smoother_gain(now, after)
            mean = now.mean + gain @ (mean - after.predicted_mean)
            covariance = now.covariance + gain @ (covariance - after.predicted_covariance) @ gain.T
            smoothed.append((mean, covariance))
        result = []
        for step, (m, c) in zip(steps, reversed(smoothed), strict=True):
            variance = np.maximum(np.diagonal(self._readout @ c @ self._readout.T), 0.0)
            result.append(
                SmoothedStep(
                    step.index,
                    step.t,
                    (self._readout @ m + self._offset).tolist(),
                    (scale * np.sqrt(variance)).tolist(),
                )
            )
        return result

    def _with_trajectories(self, traces: list[_Trace], steps: list[FilterStep], request: _Request) -> list[FilterStep]:
        """Forward filter, backward sample: the k-th samples of all steps are one path."""
        if not request.samples:
            return steps
        scale = self._calibration[request.mode].state_scale
        last = traces[-1]
        paths = _draw_array(last.mean, scale**2 * last.covariance, request, steps[-1].index)
        drawn = [paths]
        for i in range(len(traces) - 2, -1, -1):
            now, after = traces[i], traces[i + 1]
            gain = _smoother_gain(now, after)
            left = now.covariance - gain @ after.predicted_covariance @ gain.T
            noise = _draw_array(np.zeros_like(now.mean), scale**2 * left, request, steps[i].index)
            paths = now.mean + (paths - after.predicted_mean) @ gain.T + noise
            drawn.append(paths)
        observed = [path @ self._readout.T + self._offset for path in reversed(drawn)]
        return [replace(step, samples=paths.tolist()) for step, paths in zip(steps, observed, strict=True)]

    # Validation.

    def _check_observations(self, observations: Sequence[Observation]) -> tuple[Array, Array]:
        if not len(observations):
            raise FilterInputError("observations must not be empty", "observations", "empty")
        size = self.observation_size
        values = np.zeros((len(observations), size), np.float32)
        present = np.zeros((len(observations), size), np.float32)
        for i, row in enumerate(observations):
            if row is None:
                continue
            if len(row) != size:
                raise FilterInputError(
                    f"observations[{i}] has {len(row)} values, model {self.name!r} takes {size}",
                    f"observations[{i}]",
                    "shape_mismatch",
                )
            for j, value in enumerate(row):
                if value is None:
                    continue
                # Squares of the values must fit into float32.
                if not abs(value) <= 1e15:
                    raise FilterInputError(
                        f"observations[{i}][{j}] must be finite and at most 1e15 in size",
                        f"observations[{i}][{j}]",
                        "out_of_range",
                    )
                values[i, j], present[i, j] = value, 1
        return values, present

    def _check_times(self, times: Sequence[float], length: int, state: FilterState) -> None:
        if len(times) != length:
            raise FilterInputError(f"times has {len(times)} values, observations {length}", "times", "shape_mismatch")
        previous = state.time if state.count else -math.inf
        for i, t in enumerate(times):
            if not math.isfinite(t):
                raise FilterInputError(f"times[{i}] must be finite", f"times[{i}]", "not_finite")
            if t < previous:
                raise FilterInputError(
                    f"times[{i}] lies before the time ahead of it; times must not decrease", f"times[{i}]", "not_sorted"
                )
            previous = t

    def _check_noise(self, noise: Sequence[float | None] | None, length: int) -> list[float]:
        if noise is None:
            return [1.0] * length
        if len(noise) != length:
            raise FilterInputError(f"noise has {len(noise)} values, observations {length}", "noise", "shape_mismatch")
        for i, scale in enumerate(noise):
            if scale is not None and not 1e-6 <= scale <= 1e6:
                raise FilterInputError(f"noise[{i}] must be between 1e-6 and 1e6", f"noise[{i}]", "out_of_range")
        return [1.0 if scale is None else float(scale) for scale in noise]

    def _check_request(
        self,
        levels: Sequence[float],
        horizon: Sequence[float],
        samples: int,
        seed: int,
        mode: Mode,
        state: FilterState,
        length: int,
    ) -> _Request:
        for i, level in enumerate(levels):
            if not 0 < level < 1:
                raise FilterInputError(f"levels[{i}] must lie between 0 and 1", f"levels[{i}]", "out_of_range")
        for i, lead in enumerate(horizon):
            if not 0 <= lead <= 1e30:
                raise FilterInputError(f"horizon[{i}] must be >= 0 and finite", f"horizon[{i}]", "out_of_range")
        if samples < 0:
            raise FilterInputError("samples must be >= 0", "samples", "out_of_range")
        if mode not in ("recurrent", "attention"):
            raise FilterInputError("mode must be 'recurrent' or 'attention'", "mode", "unknown_mode")
        if mode == "attention" and state.count:
            raise FilterInputError("a state continues in recurrent mode only", "mode", "state_needs_recurrent")
        if mode == "attention" and length > MAX_ATTENTION:
            raise FilterInputError(
                f"attention mode takes at most {MAX_ATTENTION} observations, got {length}", "observations", "too_long"
            )
        return _Request(tuple(levels), tuple(horizon), samples, seed, mode)


def _bands(mean: Array, half: Array) -> list[list[float]]:
    return np.stack([mean - half, mean + half], axis=-1).tolist()


def _trace(outputs: dict[str, Array]) -> _Trace:
    names = ("transition", "predicted_mean", "predicted_covariance", "next.mean", "next.covariance")
    return _Trace(*(outputs[name][0].astype(np.float64) for name in names))


def _smoother_gain(now: _Trace, after: _Trace) -> Array:
    # A pseudo-inverse: without process noise a long gap makes the predicted covariance singular.
    return now.covariance @ after.transition.T @ np.linalg.pinv(after.predicted_covariance, hermitian=True)


def _draw_array(mean: Array, covariance: Array, request: _Request, index: int) -> Array:
    """`samples` normal draws `[samples, n]`, keyed by (seed, index)."""
    key = np.array([request.seed & (2**64 - 1), index], np.uint64)
    normal = np.random.Generator(np.random.Philox(key=key)).standard_normal((request.samples, len(mean)))
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return mean + (normal * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def _draw(mean: Array, covariance: Array, request: _Request, index: int) -> list[list[float]]:
    return _draw_array(mean, covariance, request, index).tolist() if request.samples else []
