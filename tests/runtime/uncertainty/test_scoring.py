"""Scoring one observation equals the NumPy reference of many rows, and is the same without a compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.novelty import running_novelty
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.graph_steps import _score_kernel
from rfa.runtime.filters.steps import streams_of
from rfa.runtime.filters.student import LEAST
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.adaptive import FIELDS
from rfa.runtime.uncertainty.anomaly import LEAST_VARIANCE
from rfa.runtime.uncertainty.baseline import COLUMNS, FIELD
from rfa.runtime.uncertainty.baseline import interpolate as inlined_interpolate
from rfa.runtime.uncertainty.calibration import SHORTEST, Calibration
from rfa.runtime.uncertainty.forecast_checks import OUTLIERS, PIT_LEVELS, columns
from rfa.runtime.uncertainty.learned_tail import FIRST
from rfa.runtime.uncertainty.scoring import scoring_entry
from rfa.runtime.uncertainty.step_outputs import FilterOutput, Scorer, StepOutputs
from rfa.runtime.uncertainty.steps import Readout
from tests.inlined import callable_from_python
from tests.runtime.uncertainty import baseline_reference, forecast_checks_reference
from tests.runtime.uncertainty.adaptive_reference import Adaptive, Horizons, adapt_half_widths
from tests.runtime.uncertainty.learned_tail_reference import RareTail

interpolate = callable_from_python(inlined_interpolate)

BUNDLES = Path(__file__).parents[3] / "bundles"
STREAMS, STEPS, SIZE = 5, 400, 2
HORIZON, LEVELS = (0.1, 0.2, 0.5, 3.0), (0.5, 0.77, 0.9)
# Fused multiply-adds and the order of a inverse_dof sums.
ROUNDING = 1e-12
# v and the learned normal are kept as float32: the last bit of what is added may turn one of theirs, and what follows
# from them is up to some times steeper.
KEPT = 2.0**-22
# One over the numbers that a deviation was learned from.
FEW = (0.0, 1e-4, 0.01, 0.2, 1.0)


class Rows:
    """The same in NumPy, all streams a step."""

    def __init__(self, calibration: Calibration, readout: Readout) -> None:
        self.calibration, self.readout = calibration, readout
        horizons = Horizons(calibration.horizons)
        self.streams = [Adaptive(horizons, SIZE, calibration.tables.miss_rates) for _ in range(STREAMS)]
        self.baseline = np.zeros((STREAMS, COLUMNS), np.float32)
        self.tails = [RareTail() for _ in range(STREAMS)]
        self.novelty, self.time, self.count = np.zeros(STREAMS), np.zeros(STREAMS), np.zeros(STREAMS, np.int64)

    def step(self, times: np.ndarray, values: np.ndarray, posterior: FilterOutput) -> dict[str, np.ndarray]:
        """Scores, tallies and the half widths of the forecasts."""
        tables, spec = self.calibration.tables, self.readout.spec
        present = ~np.isnan(values)
        seen, scored = present.sum(axis=1), present & (self.count > 0)[:, None]
        lags = np.where(self.count > 0, times - self.time, 0.0)
        nis = np.maximum(posterior.scalars[:, 2], 0.0)
        anomaly = [self._anomaly(i, nis[i], int(seen[i]), bool(scored[i].any())) for i in range(STREAMS)]
        spread = np.diagonal(posterior.innovation_covariance, axis1=1, axis2=2)
        scores = np.abs(posterior.innovation) / np.sqrt(np.maximum(spread, LEAST_VARIANCE))
        logs = np.log(np.maximum(lags, SHORTEST))
        lines = [np.interp(logs, tables.log_horizons, column) for column in tables.lines[:, 0].T]
        multipliers = np.stack(lines, axis=1)
        stretch = stretched(self.calibration.levels, posterior.inverse_dof[:, 0])
        for i, stream in enumerate(self.streams):
            stream.score_pending(times[i], lags[i], values[i])
        widths = np.stack(
            [
                stream.score_step(multipliers[i], scores[i], scored[i], stretch[i])
                for i, stream in enumerate(self.streams)
            ]
        )
        below, above = np.split(tables.pit_columns, 2)
        low, high = np.split(tables.pit_weights, 2)
        edges = (widths[..., below] * low + widths[..., above] * high) * stretched(
            PIT_LEVELS, posterior.inverse_dof[:, 0]
        )
        widths = widths * stretch
        weighted = posterior.scalars[:, 1] * nis
        tally = forecast_checks_reference.tally(scored, weighted, posterior.innovation > 0, scores, edges, widths)
        shift = np.stack([stream.shift[spec.horizon_index] for stream in self.streams])
        half_widths = adapt_half_widths(spec.multipliers[:, None], shift)
        deviation = np.sqrt(np.diagonal(posterior.forecast_covariance, axis1=2, axis2=3))
        below, above = np.split(spec.columns, 2)
        low, high = np.split(spec.weights[:, None], 2, axis=-1)
        halves = deviation[..., None] * (half_widths[..., below] * low + half_widths[..., above] * high)
        halves = halves * stretched(LEVELS, posterior.forecast_inverse_dof)
        half_widths = half_widths * stretched(self.calibration.levels, posterior.forecast_inverse_dof)
        radius = deviation[..., None] * half_widths
        # The first is a step, no two others have the same horizon.
        for k, index in list(enumerate(spec.horizon_index))[1:]:
            for i, stream in enumerate(self.streams):
                due, mean = times[i] + spec.horizon[k], posterior.forecast_mean[i, k]
                stream.store(index, spec.horizon[k], due, mean, radius[i, k])
        self.time, self.count = times, self.count + 1
        confidence = np.interp(self.novelty, tables.novelty, tables.confidence)
        return {"anomaly": np.array(anomaly), "confidence": confidence, "tally": tally, "half": halves}

    def _anomaly(self, i: int, nis: float, seen: int, is_scored: bool) -> float:
        """Of one row: behind the threshold by the tail, before it by the table."""
        tail, spread, model = self.tails[i], float(self.baseline[i, 1]), self.calibration.tables.tail_model

        def share_below(z: float) -> float:
            return baseline_reference.share_below(model, z)

        learned = baseline_reference.learn(self.baseline[i], nis, max(seen, 1), share_below, learns=is_scored)
        if seen:
            self.novelty[i] = running_novelty(self.novelty[i], learned.surprise)
        self.baseline[i] = learned.after
        score = max(7 / 9 + learned.scaled * math.sqrt(2) / 3, 0.0) ** 1.5
        p = tail.probability(score)
        if len(tail.first) < FIRST:
            p = max(1 - learned.share, 0.1 / (len(tail.first) + 1))
        elif p is None:
            z = (tail.threshold ** (2 / 3) - 7 / 9) / (math.sqrt(2) / 3)
            p = 1 - 0.9 * min(learned.share / share_below(z * np.exp(-spread)), 1.0)
        if is_scored:
            tail.learn(score, math.exp(learned.after[0] / 2))
            tail.keep()
        return 1 - p


def invented(rng: np.random.Generator) -> FilterOutput:
    """A posterior of random, inconsistent numbers."""
    spread = rng.uniform(0.2, 3, (STREAMS, SIZE))
    ahead = rng.uniform(0.5, 4, (STREAMS, len(HORIZON), SIZE))
    innovation = rng.standard_t(3, (STREAMS, SIZE)) * np.sqrt(spread)
    scalars = np.stack([np.ones(STREAMS), rng.random(STREAMS), (innovation**2 / spread).sum(axis=1), np.ones(STREAMS)])
    return FilterOutput(
        rng.normal(size=(STREAMS, SIZE)),
        np.tile(np.eye(SIZE), (STREAMS, 1, 1)),
        innovation,
        spread[..., None] * np.eye(SIZE),
        rng.normal(size=(STREAMS, len(HORIZON), SIZE)),
        ahead[..., None] * np.eye(SIZE),
        scalars.T.copy(),
        rng.choice(FEW, (STREAMS, 2, SIZE)),
        rng.choice(FEW, (STREAMS, len(HORIZON), SIZE)),
        np.zeros((STREAMS, len(HORIZON), SIZE, 0)),
        np.ones((STREAMS, SIZE), bool),
        np.full((STREAMS, 2), np.nan),
    )


def stretched(levels: Sequence[float], inverse_dof: np.ndarray) -> np.ndarray:
    """By what Student's t is wider at these levels than at one deviation, of 1/ν `[...]`, `[..., levels]`."""
    squares, inverse_dof = (
        np.array([NormalDist().inv_cdf((1 + level) / 2) ** 2 for level in levels]),
        inverse_dof[..., None],
    )
    with np.errstate(invalid="ignore"):
        scaled = ((8 + 3 * inverse_dof) / (8 + inverse_dof)) ** 2 * inverse_dof
        ratio = np.sqrt(np.expm1(scaled * squares) / squares / np.expm1(scaled))
    return np.where(inverse_dof > LEAST, ratio, 1.0)


def scorer_of(runtime: FilterRuntime, pool: StatePool, readout: Readout) -> Scorer:
    return Scorer.of(streams_of(pool), cast(Any, runtime.steps)._leads, readout)


def score(
    scorer: Scorer, readout: Readout, times: np.ndarray, values: np.ndarray, posterior: FilterOutput
) -> StepOutputs:
    """Outputs of an observation of each stream."""
    out = StepOutputs.allocate(STREAMS, SIZE, readout)
    batch = np.arange(STREAMS), times, values, np.ones(STREAMS)
    entry = scoring_entry(scorer, FilterOutput(*(part[0] for part in posterior)), out)
    _score_kernel()(entry, scorer, batch, posterior, np.ones(STREAMS, bool), np.arange(STREAMS), out)
    return out


def test_one_row_is_scored_as_many_are() -> None:
    rng = np.random.default_rng(3)
    runtime = FilterRuntime(open_bundle(BUNDLES / "oscillator"))
    readout = runtime.readout(LEVELS, HORIZON, 0)
    calibration = readout.calibration
    pool, rows = StatePool(runtime.state_fields, STREAMS), Rows(calibration, readout)
    scorer, times = scorer_of(runtime, pool, readout), np.zeros(STREAMS)
    for step in range(STEPS):
        # Half of the streams tick with the bundle's clock, so that forecasts meet their observations.
        times = np.round(times + np.where(np.arange(STREAMS) % 2, 0.1, rng.exponential(0.2, STREAMS)), 6)
        values = np.where(rng.random((STREAMS, SIZE)) < 0.15, np.nan, rng.normal(scale=2, size=(STREAMS, SIZE)))
        posterior = invented(rng)
        posterior = posterior._replace(innovation=np.where(np.isnan(values), 0.0, posterior.innovation))
        out = score(scorer, readout, times, values, posterior)
        expected = rows.step(times, values, posterior)
        assert out.is_good.all() and (out.position == step).all()
        seen = ~np.isnan(values).all(axis=1)
        np.testing.assert_allclose(out.anomaly[seen], expected["anomaly"][seen], rtol=0, atol=20 * KEPT)
        np.testing.assert_allclose(out.confidence, expected["confidence"], rtol=0, atol=20 * KEPT)
        half = (out.bands[..., 1] - out.bands[..., 0]).swapaxes(-1, -2) / 2
        np.testing.assert_allclose(half, expected["half"], rtol=20 * KEPT)
        out.tally[:, OUTLIERS] = 0  # test_diagnostics.py counts them again, and what there is by horizon
        np.testing.assert_allclose(out.tally[:, : columns(len(calibration.levels))], expected["tally"], rtol=ROUNDING)
    np.testing.assert_allclose(pool.arrays[FIELD], rows.baseline, rtol=KEPT, atol=KEPT)
    shift, due, mean, radius = (pool.arrays[name] for name in FIELDS)
    for i, stream in enumerate(rows.streams):
        np.testing.assert_allclose(shift[i], stream.shift, rtol=20 * KEPT, atol=KEPT)
        assert np.flatnonzero(radius[i, :, 0, -1]).tolist() == sorted(stream.pending)
        for k, (at, centre, width) in stream.pending.items():
            assert due[i, k] == at
            np.testing.assert_allclose(mean[i, k], centre, rtol=20 * KEPT)
            np.testing.assert_allclose(radius[i, k], width, rtol=20 * KEPT, atol=KEPT)
    assert (radius != 0).any() and np.ptp(shift) > 0.1


def two_sided(runtime: FilterRuntime) -> StatePool:
    """Streams whose forecasts have half widths below and above the mean."""
    sided = cast(Any, runtime.steps)._leads.fields(SIZE, len(runtime.levels), sides=2)
    return StatePool({**runtime.state_fields, **sided}, STREAMS)


def test_equal_half_widths_are_symmetric_intervals() -> None:
    rng = np.random.default_rng(5)
    runtime = FilterRuntime(open_bundle(BUNDLES / "oscillator"))
    readout = runtime.readout(LEVELS, HORIZON, 0)
    pools = StatePool(runtime.state_fields, STREAMS), two_sided(runtime)
    scorers = [scorer_of(runtime, pool, readout) for pool in pools]
    for step in range(200):
        values = rng.normal(scale=2, size=(STREAMS, SIZE))
        posterior = invented(rng)
        posterior = posterior._replace(
            inverse_dof=np.zeros_like(posterior.inverse_dof),
            forecast_inverse_dof=np.zeros_like(posterior.forecast_inverse_dof),
        )
        deviation = np.sqrt(np.diagonal(posterior.forecast_covariance, axis1=-2, axis2=-1))
        half_widths = np.tile(deviation[..., None] * readout.spec.multipliers[:, None], 2)
        times = np.full(STREAMS, round(0.1 * step, 6))
        given = posterior, posterior._replace(half_widths=half_widths)
        found = [score(scorer, readout, times, values, one) for scorer, one in zip(scorers, given, strict=True)]
        np.testing.assert_allclose(found[1].bands, found[0].bands, rtol=20 * KEPT)
    shifts = [pool.arrays[FIELDS[0]] for pool in pools]
    np.testing.assert_allclose(shifts[1], shifts[0], rtol=20 * KEPT, atol=KEPT)
    assert np.ptp(shifts[0]) > 0.1


@pytest.mark.parametrize("widest", [0, 1], ids=["below", "above"])
def test_a_forecast_is_scored_by_the_side_that_its_observation_is_on(widest: int) -> None:
    """All is above what was forecast: a wide side above holds it, one below does not."""
    rng = np.random.default_rng(6)
    runtime = FilterRuntime(open_bundle(BUNDLES / "oscillator"))
    readout = runtime.readout(LEVELS, HORIZON, 0)
    pool, levels = two_sided(runtime), len(runtime.levels)
    scorer = scorer_of(runtime, pool, readout)
    for step in range(100):
        posterior = invented(rng)
        half_widths = np.full((STREAMS, len(HORIZON), SIZE, 2 * levels), 1e-3)
        half_widths[..., widest * levels : (widest + 1) * levels] = 1e9
        posterior = posterior._replace(half_widths=half_widths, forecast_mean=np.zeros_like(posterior.forecast_mean))
        times = np.full(STREAMS, round(0.1 * step, 6))
        out = score(scorer, readout, times, np.full((STREAMS, SIZE), 5.0), posterior)
        assert (out.bands[..., 0] < 0).all() and (out.bands[..., 1] > 0).all()
    scored = pool.arrays[FIELDS[0]][:, 1:3]
    assert (scored < 0).all() if widest else (scored > 0.5).all()


@pytest.mark.parametrize("name", ["scalars", "covariance", "innovation", "forecast_mean", "forecast_covariance"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_leaves_its_stream_as_it_was(name: str, bad: float) -> None:
    runtime = FilterRuntime(open_bundle(BUNDLES / "oscillator"))
    readout = runtime.readout(LEVELS, HORIZON, 0)
    pool, posterior = StatePool(runtime.state_fields, STREAMS), invented(np.random.default_rng(1))
    getattr(posterior, name)[2].flat[-1] = bad
    out = score(scorer_of(runtime, pool, readout), readout, np.ones(STREAMS), np.ones((STREAMS, SIZE)), posterior)
    assert out.is_good.tolist() == [True, True, False, True, True]
    assert not any(array[2].any() for array in pool.arrays.values())
    assert pool.arrays["clock.count"].tolist() == [1, 1, 0, 1, 1]


def test_interpolation_is_that_of_numpy() -> None:
    """At the places, between and beyond them, and where several are equal."""
    places, values = np.array([-1.0, -1.0, -1.0, 0.5, 0.5, 2.0]), np.array([0.01, 0.03, 0.05, 0.4, 0.6, 0.9])
    for x in (-3.0, -1.0, np.nextafter(-1.0, 0), 0.2, 0.5, 1.0, 2.0, 5.0):
        assert interpolate(x, places, values) == np.interp(x, places, values)
