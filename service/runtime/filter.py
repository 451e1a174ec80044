"""The filter on NumPy and ONNX Runtime: one step of many streams at once, whole sequences, portable states.

Streams keep their state in seats of a pool. A step takes any rows of it, pads them to one of a few row counts, runs
the graph once and writes the new states back. At these counts a row's numbers are bit for bit the same whatever its
neighbours are: the vector loops of the graph have no scalar tail. Random numbers are keyed by (seed, position in the
stream). So a stream gives the same numbers alone or in a crowd, in one request, in segments or one by one.

A row whose numbers are not finite is left as it was, and its neighbours go on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rfa.export.bundle import Bundle
from rfa.service.engine.filter.adaptive import (
    Leads,
    Tracks,
    adaptive_fields,
    radii,
    read_tracks,
    score_step,
    score_waiting,
    wait_for,
    write_tracks,
)
from rfa.service.engine.filter.calibration import Calibration
from rfa.service.engine.filter.forecast_checks import tally
from rfa.service.engine.filter.input import Observation, check_readout
from rfa.service.engine.filter.learned_normal import FIELD as NORMAL
from rfa.service.engine.filter.learned_normal import normal_fields
from rfa.service.engine.filter.model import FilterOptions, Row, Stepped
from rfa.service.engine.filter.smoothing import TRACE_OUTPUTS
from rfa.service.engine.filter.steps import (
    Readout,
    RowFacts,
    Scores,
    by_readout,
    describe,
    draw_states,
    forecasts,
    score,
)
from rfa.service.runtime.batching import BatchSizes
from rfa.service.runtime.filter_sequence import FilteredSequence, FilterResult, Memory, run_sequence
from rfa.service.runtime.filter_state import FilterState, FilterStates
from rfa.service.runtime.pool import StatePool
from rfa.service.schemas.base import Mode
from rfa.service.schemas.replies import FilterStepReply

Array = np.ndarray

# Multiples of every vector width of the graph's loops; see the module's docstring.
ROW_COUNTS = (16, 32, 64, 128, 256)
# A longer horizon fills the vectors alone: such rows are forecast one by one, without padding.
LONG_HORIZON = 16
KEPT_READOUTS = 64  # of 90 kB, with 256 horizons and 16 levels
# Log of the smallest float32. The graph's likelihood of an absurd outlier underflows to 0; the state is sound then.
LOWEST_LOG_LIKELIHOOD = float(np.log(np.finfo(np.float32).smallest_subnormal))
_NUMBERS = ("mean", "covariance", "precision", "weight", "innovation", "innovation_covariance", "nis", "log_likelihood")
# Squares and ratios of numbers at the ends of what is accepted leave float32's 38 decades. An observation at which they
# do is taken as so many times noisier, by the first of these that helps: it moves the state less, and the next ones go
# on from there. The last two are for a noise that leaves them itself.
RESCUES = (1e2, 1e4, 1e8, 1e-3, 1e-6)
# A shorter lag is none: a bundle that measures time in typical lags divides by it.
SHORTEST_LAG = 1e-20
# A variance that rounding took to zero or below.
LEAST_VARIANCE = 1e-300


@dataclass(frozen=True)
class _Batch:
    rows: Sequence[Row]
    index: Array  # rows of the pool, padded with the first
    inputs: dict[str, Array]
    facts: RowFacts
    tracks: Tracks
    times: Array  # [padded]
    values: Array  # [padded, P], NaN where missing


class FilterRuntime(FilterStates):
    """A filter bundle, ready to run.

    Args:
        bundle: of kind "filter".
    """

    def __init__(self, bundle: Bundle) -> None:
        if bundle.kind != "filter":
            raise ValueError(f"bundle {bundle.name!r} is of kind {bundle.kind!r}, not a filter")
        self.name = bundle.name
        self._sizes = BatchSizes(ROW_COUNTS)
        self._step = bundle.session("step")
        self._attend = bundle.session("prefill")
        self._forecast = bundle.session("forecast")
        self._forecast_inputs = {node.name for node in self._forecast.get_inputs()}
        weights = bundle.weights()
        self.readout_matrix = weights["initial.readout_matrix"].astype(np.float64)
        self.readout_offset = weights["initial.readout_offset"].astype(np.float64)
        self.observation_size: int
        self.state_size: int
        self.observation_size, self.state_size = self.readout_matrix.shape
        self.cache_shapes = {
            node.name.removeprefix("cache."): tuple(node.shape[2:])
            for node in self._attend.get_inputs()
            if node.name.startswith("cache.")
        }
        self._calibration: dict[str, Calibration] = {
            mode: Calibration(bundle.calibration[mode]) for mode in ("recurrent", "attention")
        }
        recurrent = self._calibration["recurrent"]
        self.levels: tuple[float, ...] = recurrent.levels
        self._leads = Leads(recurrent.horizons)
        adaptive = {**adaptive_fields(self._leads, self.observation_size, len(self.levels)), **normal_fields()}
        names = [spec.name for spec in bundle.manifest.state]
        super().__init__({name: np.array(weights[f"initial.{name}"], np.float32) for name in names}, adaptive)
        self._next = [f"next.{name}" for name in names]
        self.readout = functools.lru_cache(KEPT_READOUTS)(self._make_readout)

    # One step of many streams.

    def advance(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        """One observation of each row; None for a row whose numbers are not finite: its seat stays as it was.

        Rows have been checked: shapes, finite values, times that do not decrease.
        """
        stepped = self._advance_once(pool, rows)
        for factor in RESCUES:
            lost = [i for i, found in enumerate(stepped) if found is None]
            if not lost:
                break
            again = self._advance_once(pool, [rows[i]._replace(noise=rows[i].noise * factor) for i in lost])
            for i, found in zip(lost, again, strict=True):
                stepped[i] = found
        return stepped

    def _advance_once(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        batch = self._gather(pool, rows, self._sizes.padded(len(rows)))
        outputs = self._run(self._step, [*_NUMBERS, *self._next], batch.inputs)
        return self._conclude(pool, batch, outputs, "recurrent")

    def _gather(self, pool: StatePool, rows: Sequence[Row], size: int) -> _Batch:
        count = len(rows)
        index = np.empty(size, np.int64)
        index[:count] = pool.rows([row.seat for row in rows])
        index[count:] = index[0]
        values = np.full((size, self.observation_size), np.nan)
        nothing = [None] * self.observation_size
        values[:count] = np.array([nothing if row.observation is None else row.observation for row in rows], np.float64)
        present = ~np.isnan(values)
        times = np.zeros(size)
        times[:count] = [row.t for row in rows]
        noise = np.ones(size, np.float32)
        noise[:count] = [row.noise for row in rows]
        counts = pool.arrays["clock.count"].take(index)
        lags = np.where(counts > 0, times - pool.arrays["clock.time"].take(index), 0.0)
        lags[count:] = 0.0
        lags[lags < SHORTEST_LAG] = 0.0
        inputs = {
            "observation": np.where(present, values, 0.0).astype(np.float32),
            "present": present.astype(np.float32),
            "dt": lags.astype(np.float32),
            "noise_scale": noise,
            **{f"state.{name}": pool.arrays[name].take(index, axis=0) for name in self._names},
        }
        facts = RowFacts(
            counts=counts[:count].tolist(),
            times=[row.t for row in rows],
            seeds=[row.seed for row in rows],
            readouts=[row.readout for row in rows],
            present=present,
            surprise=pool.arrays["clock.surprise"].take(index),
            normal=pool.arrays[NORMAL].take(index, axis=0),
            lags=lags,
            scored=present & (counts > 0)[:, None],
        )
        tracks = read_tracks(pool, index, times[:count], lags[:count], self._leads)
        return _Batch(rows, index, inputs, facts, tracks, times, values)

    @staticmethod
    def _run(session: object, names: list[str], inputs: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, inputs), strict=True))  # type: ignore[attr-defined]

    def _conclude(
        self, pool: StatePool, batch: _Batch, outputs: dict[str, Array], mode: Mode, *, draws: bool = True
    ) -> list[Stepped | None]:
        """Describe and commit the rows whose numbers are all finite."""
        count, facts = len(batch.rows), batch.facts
        likelihoods = outputs["log_likelihood"]
        likelihoods[np.isneginf(likelihoods)] = LOWEST_LOG_LIKELIHOOD
        with np.errstate(all="ignore"):  # rows that are not finite are dropped below
            scores = score(outputs, facts, self._calibration[mode])
            tallies = self._adapt(batch, outputs, self._calibration[mode])
            fit = _finite_rows([*outputs.values(), scores.surprise, scores.anomaly, scores.normal])[:count]
            good = np.flatnonzero(fit).tolist()
            steps = describe(outputs, facts, scores, good)
            for readout, members in by_readout(facts.readouts, good):
                if readout.horizon:
                    self._add_forecasts(batch, outputs, steps, readout, members)
        if draws:
            for row in good:
                if row in steps and facts.readouts[row].samples:
                    steps[row].samples = draw_states(outputs, facts, row)
        self._commit(pool, batch, outputs, scores, [row for row in good if row in steps])
        sums = likelihoods.tolist()
        return [Stepped(steps[row], sums[row], tallies[row]) if row in steps else None for row in range(count)]

    def _adapt(self, batch: _Batch, outputs: dict[str, Array], calibration: Calibration) -> Array:
        """Hold earlier forecasts against the observations, and follow them; a tally per row."""
        facts, tracks = batch.facts, batch.tracks
        variance = np.diagonal(outputs["innovation_covariance"], axis1=1, axis2=2).astype(np.float64)
        innovation = outputs["innovation"].astype(np.float64)
        scores = np.abs(innovation) / np.sqrt(np.maximum(variance, LEAST_VARIANCE))
        rates = calibration.miss_rates
        score_waiting(tracks, batch.values, facts.present, self._leads, rates)
        widths = score_step(tracks.shift, calibration.at_lags(facts.lags), scores, facts.scored, rates)
        weighted_nis = outputs["weight"].astype(np.float64) * np.maximum(outputs["nis"], 0.0)
        edges = calibration.pit(widths[:, None])[:, 0]
        return tally(facts.scored, weighted_nis, innovation > 0, scores, edges, widths)

    def _commit(
        self, pool: StatePool, batch: _Batch, outputs: dict[str, Array], scores: Scores, rows: list[int]
    ) -> None:
        chosen = slice(len(rows)) if len(rows) == len(batch.rows) else np.array(rows, np.int64)
        index = batch.index[chosen]
        for name in self._names:
            pool.arrays[name][index] = outputs[f"next.{name}"][chosen]
        pool.arrays["clock.time"][index] = batch.times[chosen]
        pool.arrays["clock.count"][index] += 1
        pool.arrays["clock.surprise"][index] = scores.surprise[chosen]
        pool.arrays[NORMAL][index] = scores.normal[chosen]
        write_tracks(pool, batch.tracks, chosen)

    # Forecasts.

    def _add_forecasts(
        self,
        batch: _Batch,
        outputs: dict[str, Array],
        steps: dict[int, FilterStepReply],
        readout: Readout,
        members: list[int],
    ) -> None:
        """Forecast rows of one readout; a row whose forecast is not finite loses its step."""
        pieces = [[row] for row in members] if len(readout.horizon) >= LONG_HORIZON else [members]
        for piece in pieces:
            size = 1 if len(readout.horizon) >= LONG_HORIZON else self._sizes.padded(len(piece))
            means, covariances = self._forecast_rows(outputs, readout, piece + piece[:1] * (size - len(piece)))
            finite = _finite_rows([means, covariances])
            rows, mean = np.array(piece), means[: len(piece)].astype(np.float64)
            variance = np.diagonal(covariances[: len(piece)], axis1=2, axis2=3).astype(np.float64)
            deviation = np.sqrt(np.maximum(variance, 0.0))
            widths = radii(readout.multipliers, batch.tracks.shift[rows][:, readout.leads])
            points = forecasts(readout, [batch.facts.times[row] for row in piece], mean, deviation, widths)
            lead, column = readout.followed
            if len(lead):
                due = batch.times[rows, None] + readout.ahead
                radius = deviation[:, column, :, None] * widths[:, column]
                wait_for(batch.tracks, self._leads, rows, lead, readout.ahead, due, mean[:, column], radius)
            for i, row in enumerate(piece):
                if finite[i]:
                    steps[row].forecast = points[i]
                else:
                    del steps[row]

    def _forecast_rows(self, outputs: dict[str, Array], readout: Readout, rows: list[int]) -> tuple[Array, Array]:
        inputs = {f"state.{name}": outputs[f"next.{name}"][rows] for name in self._names}
        inputs["horizon"] = np.array(readout.horizon, np.float32)
        known = {name: array for name, array in inputs.items() if name in self._forecast_inputs}
        means, covariances = self._forecast.run(["forecast_mean", "forecast_covariance"], known)
        return means, covariances

    def _make_readout(
        self, levels: tuple[float, ...], horizon: tuple[float, ...], samples: int, mode: Mode = "recurrent"
    ) -> Readout:
        """What a request wants to be told; equal requests share one, and share the work.

        Raises:
            InvalidRequest: naming the field.
        """
        check_readout(levels, horizon, samples)
        return Readout(self._calibration[mode], levels, horizon, samples)

    # Whole sequences.

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
        lag: int | None = None,
        state: FilterState | None = None,
    ) -> FilteredSequence:
        """Filter a sequence.

        Args:
            observations: P numbers each; None = nothing observed, None inside = that component is missing.
            noise: factors on the standard deviation of each observation's measurement noise; None = 1.
            samples: draws of the state per step; with `smooth` they are trajectories given all observations.
            lag: with `smooth`, the smoothed states are given the observations up to so many after each, not all.
            mode: "attention" looks at all earlier observations of the request (at most MAX_ATTENTION) and starts fresh.
            state: continue from here (recurrent mode).

        Raises:
            InvalidRequest: naming the field.
        """
        options = FilterOptions(
            times, observations, noise, tuple(levels), tuple(horizon), samples, seed, mode, smooth, lag, state=state
        )
        return FilteredSequence.collect(self.work(options))

    def work(self, options: FilterOptions) -> Generator[FilterStepReply | None, None, FilterResult]:
        """See `run_sequence`."""
        return run_sequence(self, options)

    def advance_alone(
        self, pool: StatePool, row: Row, memory: Memory | None, *, smooth: bool
    ) -> tuple[Stepped, dict[str, Array]] | None:
        """`advance` for one observation of one sequence, with the outputs that smoothing needs."""
        names = [*_NUMBERS, *self._next]
        if smooth:
            names += [name for name in TRACE_OUTPUTS if name not in names]
        if memory is not None:
            names += [f"row.{name}" for name in self.cache_shapes]
        mode: Mode = "recurrent" if memory is None else "attention"
        for factor in (1.0, *RESCUES):
            noisy = row._replace(noise=row.noise * factor)
            batch = self._gather(pool, [noisy], self._sizes.padded(1) if memory is None else 1)
            if memory is None:
                outputs = self._run(self._step, names, batch.inputs)
            else:
                outputs = self._run(self._attend, names, batch.inputs | memory.inputs(row.t))
            (stepped,) = self._conclude(pool, batch, outputs, mode, draws=not smooth)
            if stepped is not None:
                if memory is not None:
                    memory.add(outputs)
                return stepped, outputs
        return None


def _finite_rows(arrays: Iterable[Array]) -> Array:
    """Which rows are finite in every array."""
    numbers = np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)
    if math.isfinite(numbers.sum(dtype=np.float64)):
        return np.ones(len(numbers), bool)
    finite: Array = np.isfinite(numbers).all(axis=1)
    return finite
