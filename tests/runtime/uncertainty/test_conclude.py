"""What is told about an observation is what the functions of many rows say of it, and the same without a compiler."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.surprise import running_surprise
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.graph_steps import _conclude
from rfa.runtime.filters.steps import streams_of
from rfa.runtime.filters.student import LEAST
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.adaptive import FIELDS
from rfa.runtime.uncertainty.calibration import SHORTEST, Calibration
from rfa.runtime.uncertainty.conclude import LEAST_VARIANCE, Known, Told, room, scratch
from rfa.runtime.uncertainty.forecast_checks import OUTLIERS, PIT_LEVELS, columns
from rfa.runtime.uncertainty.learned_normal import COLUMNS, FIELD, interpolate
from rfa.runtime.uncertainty.learned_tail import FIRST
from rfa.runtime.uncertainty.steps import Readout
from tests.runtime.uncertainty import adaptive_reference as adaptive_rows
from tests.runtime.uncertainty import forecast_checks_reference
from tests.runtime.uncertainty import learned_normal_reference as normal_rows
from tests.runtime.uncertainty.learned_tail_reference import RareTail

BUNDLES = Path(__file__).parents[3] / "bundles"
STREAMS, STEPS, SIZE = 5, 400, 2
HORIZON, LEVELS = (0.1, 0.2, 0.5, 3.0), (0.5, 0.77, 0.9)
# Fused multiply-adds and the order of a few sums.
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
        self.leads = adaptive_rows.Leads(calibration.horizons)
        fields = adaptive_rows.adaptive_fields(self.leads, SIZE, len(calibration.levels))
        self.pool = StatePool(fields, STREAMS)
        self.normal = np.zeros((STREAMS, COLUMNS), np.float32)
        self.tails = [RareTail() for _ in range(STREAMS)]
        self.surprise, self.time, self.count = np.zeros(STREAMS), np.zeros(STREAMS), np.zeros(STREAMS, np.int64)

    def step(self, times: np.ndarray, values: np.ndarray, known: Known) -> dict[str, np.ndarray]:
        """Scores, tallies and the half widths of the forecasts."""
        tables, wanted, index = self.calibration.tables, self.readout.wanted, np.arange(STREAMS)
        present = ~np.isnan(values)
        seen, scored = present.sum(axis=1), present & (self.count > 0)[:, None]
        lags = np.where(self.count > 0, times - self.time, 0.0)
        nis = np.maximum(known.scalars[:, 2], 0.0)
        learned = normal_rows.learn(self.normal, nis, seen, SIZE, scored.any(axis=1), tables.rarity)
        anomaly = [self._anomaly(i, learned, bool(scored[i].any())) for i in range(STREAMS)]
        self.surprise = np.where(seen > 0, running_surprise(self.surprise, learned.surprise), self.surprise)
        self.normal = learned.after.astype(np.float32)
        tracks = adaptive_rows.read_tracks(self.pool, index, times, lags, self.leads)
        spread = np.diagonal(known.innovation_covariance, axis1=1, axis2=2)
        scores = np.abs(known.innovation) / np.sqrt(np.maximum(spread, LEAST_VARIANCE))
        adaptive_rows.score_waiting(tracks, values, present, self.leads, tables.miss_rates)
        logs = np.log(np.maximum(lags, SHORTEST))
        lines = [np.interp(logs, tables.log_horizons, column) for column in tables.lines[:, 0].T]
        multipliers = np.stack(lines, axis=1)
        before = tracks.shift.copy()
        widths = adaptive_rows.score_step(tracks.shift, multipliers, scores, scored, tables.miss_rates)
        below, above = np.split(tables.pit_columns, 2)
        low, high = np.split(tables.pit_weights, 2)
        edges = (widths[..., below] * low + widths[..., above] * high) * stretched(PIT_LEVELS, known.few[:, 0])
        widths = widths * stretched(self.calibration.levels, known.few[:, 0])
        first = before[:, 0].astype(np.float64)
        after = adaptive_rows.follow(first, widths < scores[..., None], tables.miss_rates)
        tracks.shift[:, 0] = np.where(scored[..., None], after, first)
        weighted = known.scalars[:, 1] * nis
        tally = forecast_checks_reference.tally(scored, weighted, known.innovation > 0, scores, edges, widths)
        radii = adaptive_rows.radii(wanted.multipliers[:, None], tracks.shift[:, wanted.lead])
        deviation = np.sqrt(np.diagonal(known.forecast_covariance, axis1=2, axis2=3))
        below, above = np.split(wanted.columns, 2)
        low, high = np.split(wanted.weights[:, None], 2, axis=-1)
        halves = deviation[..., None] * (radii[..., below] * low + radii[..., above] * high)
        halves = halves * stretched(LEVELS, known.forecast_few)
        radii = radii * stretched(self.calibration.levels, known.forecast_few)
        followed = np.array([1, 2, 3])  # the first is a step, no two others have the same lead
        lead, ahead = wanted.lead[followed], wanted.horizon[followed]
        assert (np.diff([0, *lead]) > 0).all()
        radius = deviation[:, followed, :, None] * radii[:, followed]
        adaptive_rows.wait_for(
            tracks, self.leads, index, lead, ahead, times[:, None] + ahead, known.forecast_mean[:, followed], radius
        )
        adaptive_rows.write_tracks(self.pool, tracks, slice(STREAMS))
        self.time, self.count = times, self.count + 1
        confidence = np.interp(self.surprise, tables.surprise, tables.inside)
        return {"anomaly": np.array(anomaly), "confidence": confidence, "tally": tally, "half": halves}

    def _anomaly(self, i: int, learned: normal_rows.Learned, is_scored: bool) -> float:
        """Of one row: behind the threshold by the tail, before it by the table."""
        tail, share, spread = self.tails[i], float(learned.share[i]), float(self.normal[i, 1])
        score = max(7 / 9 + float(learned.scaled[i]) * math.sqrt(2) / 3, 0.0) ** 1.5
        p = tail.probability(score)
        if len(tail.first) < FIRST:
            p = max(1 - share, 0.1 / (len(tail.first) + 1))
        elif p is None:
            z = (tail.threshold ** (2 / 3) - 7 / 9) / (math.sqrt(2) / 3)
            edge = normal_rows.shares_below(self.calibration.tables.rarity, z * np.exp(-spread))
            p = 1 - 0.9 * min(share / edge, 1.0)
        if is_scored:
            tail.learn(score, float(np.exp(learned.after[i, 0] / 2)))
            tail.keep()
        return 1 - p


def invented(rng: np.random.Generator) -> Known:
    """What a filter might know: nothing of it fits together."""
    spread = rng.uniform(0.2, 3, (STREAMS, SIZE))
    ahead = rng.uniform(0.5, 4, (STREAMS, len(HORIZON), SIZE))
    innovation = rng.standard_t(3, (STREAMS, SIZE)) * np.sqrt(spread)
    scalars = np.stack([np.ones(STREAMS), rng.random(STREAMS), (innovation**2 / spread).sum(axis=1), np.ones(STREAMS)])
    return Known(
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
    )


def stretched(levels: Sequence[float], few: np.ndarray) -> np.ndarray:
    """By what Student's t is wider at these levels than at one deviation, of 1/ν `[...]`, `[..., levels]`."""
    squares, few = np.array([NormalDist().inv_cdf((1 + level) / 2) ** 2 for level in levels]), few[..., None]
    with np.errstate(invalid="ignore"):
        scaled = ((8 + 3 * few) / (8 + few)) ** 2 * few
        ratio = np.sqrt(np.expm1(scaled * squares) / squares / np.expm1(scaled))
    return np.where(few > LEAST, ratio, 1.0)


def test_a_row_is_told_what_many_rows_are() -> None:
    rng = np.random.default_rng(3)
    runtime = FilterRuntime(open_bundle(BUNDLES / "oscillator"))
    readout = runtime.readout(LEVELS, HORIZON, 0)
    calibration = readout.calibration
    pool, rows = StatePool(runtime.state_fields, STREAMS), Rows(calibration, readout)
    followed = streams_of(pool), cast(Any, runtime.steps)._leads, calibration.tables, readout.wanted
    times, work = np.zeros(STREAMS), scratch(streams_of(pool), calibration.tables, readout.wanted)
    for step in range(STEPS):
        # Half of the streams tick with the bundle's clock, so that forecasts meet their observations.
        times = np.round(times + np.where(np.arange(STREAMS) % 2, 0.1, rng.exponential(0.2, STREAMS)), 6)
        values = np.where(rng.random((STREAMS, SIZE)) < 0.15, np.nan, rng.normal(scale=2, size=(STREAMS, SIZE)))
        known = invented(rng)
        known = known._replace(innovation=np.where(np.isnan(values), 0.0, known.innovation))
        told = room(STREAMS, SIZE, len(LEVELS), len(HORIZON), len(calibration.levels))
        batch = np.arange(STREAMS), times, values, np.ones(STREAMS)
        _conclude()(followed, batch, known, np.ones(STREAMS, bool), np.arange(STREAMS), told, work)
        expected = rows.step(times, values, known)
        assert told.is_good.all() and (told.position == step).all()
        seen = ~np.isnan(values).all(axis=1)
        np.testing.assert_allclose(told.anomaly[seen], expected["anomaly"][seen], rtol=0, atol=20 * KEPT)
        np.testing.assert_allclose(told.confidence, expected["confidence"], rtol=0, atol=20 * KEPT)
        half = (told.bands[..., 1] - told.bands[..., 0]).swapaxes(-1, -2) / 2
        np.testing.assert_allclose(half, expected["half"], rtol=20 * KEPT)
        told.tally[:, OUTLIERS] = 0  # test_doubts.py counts them again, and what there is by horizon
        np.testing.assert_allclose(told.tally[:, : columns(len(calibration.levels))], expected["tally"], rtol=ROUNDING)
    np.testing.assert_allclose(pool.arrays[FIELD], rows.normal, rtol=KEPT, atol=KEPT)
    for name in FIELDS:
        np.testing.assert_allclose(pool.arrays[name], rows.pool.arrays[name], rtol=20 * KEPT, atol=KEPT)
    assert (pool.arrays[FIELDS[3]] != 0).any() and np.ptp(pool.arrays[FIELDS[0]]) > 0.1


def two_sided(runtime: FilterRuntime) -> StatePool:
    """Streams whose forecasts have sides of their own."""
    sided = cast(Any, runtime.steps)._leads.fields(SIZE, len(runtime.levels), sides=2)
    return StatePool({**runtime.state_fields, **sided}, STREAMS)


def test_sides_that_are_alike_are_a_deviation() -> None:
    rng = np.random.default_rng(5)
    runtime = FilterRuntime(open_bundle(BUNDLES / "oscillator"))
    readout = runtime.readout(LEVELS, HORIZON, 0)
    pools = StatePool(runtime.state_fields, STREAMS), two_sided(runtime)
    tables, wanted = readout.calibration.tables, readout.wanted
    works = [scratch(streams_of(pool), tables, wanted) for pool in pools]
    for step in range(200):
        values = rng.normal(scale=2, size=(STREAMS, SIZE))
        known = invented(rng)
        known = known._replace(few=np.zeros_like(known.few), forecast_few=np.zeros_like(known.forecast_few))
        deviation = np.sqrt(np.diagonal(known.forecast_covariance, axis1=-2, axis2=-1))
        sides = np.tile(deviation[..., None] * wanted.multipliers[:, None], 2)
        batch = np.arange(STREAMS), np.full(STREAMS, round(0.1 * step, 6)), values, np.ones(STREAMS)
        found = []
        for pool, work, one in zip(pools, works, (known, known._replace(sides=sides)), strict=True):
            told = room(STREAMS, SIZE, len(LEVELS), len(HORIZON), len(runtime.levels))
            followed = streams_of(pool), cast(Any, runtime.steps)._leads, tables, wanted
            _conclude()(followed, batch, one, np.ones(STREAMS, bool), np.arange(STREAMS), told, work)
            found.append(told)
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
    followed = streams_of(pool), cast(Any, runtime.steps)._leads, readout.calibration.tables, readout.wanted
    work = scratch(followed[0], followed[2], followed[3])
    for step in range(100):
        known = invented(rng)
        sides = np.full((STREAMS, len(HORIZON), SIZE, 2 * levels), 1e-3)
        sides[..., widest * levels : (widest + 1) * levels] = 1e9
        known = known._replace(sides=sides, forecast_mean=np.zeros_like(known.forecast_mean))
        told = room(STREAMS, SIZE, len(LEVELS), len(HORIZON), levels)
        batch = (
            np.arange(STREAMS),
            np.full(STREAMS, round(0.1 * step, 6)),
            np.full((STREAMS, SIZE), 5.0),
            np.ones(STREAMS),
        )
        _conclude()(followed, batch, known, np.ones(STREAMS, bool), np.arange(STREAMS), told, work)
        assert (told.bands[..., 0] < 0).all() and (told.bands[..., 1] > 0).all()
    scored = pool.arrays[FIELDS[0]][:, 1:3]
    assert (scored < 0).all() if widest else (scored > 0.5).all()


@pytest.mark.parametrize("name", ["scalars", "covariance", "innovation", "forecast_mean", "forecast_covariance"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_leaves_its_stream_as_it_was(name: str, bad: float) -> None:
    runtime = FilterRuntime(open_bundle(BUNDLES / "oscillator"))
    readout = runtime.readout(LEVELS, HORIZON, 0)
    pool, known = StatePool(runtime.state_fields, STREAMS), invented(np.random.default_rng(1))
    getattr(known, name)[2].flat[-1] = bad
    told: Told = room(STREAMS, SIZE, len(LEVELS), len(HORIZON), len(runtime.levels))
    followed = streams_of(pool), cast(Any, runtime.steps)._leads, readout.calibration.tables, readout.wanted
    batch = np.arange(STREAMS), np.ones(STREAMS), np.ones((STREAMS, SIZE)), np.ones(STREAMS)
    work = scratch(streams_of(pool), followed[2], followed[3])
    _conclude()(followed, batch, known, np.ones(STREAMS, bool), np.arange(STREAMS), told, work)
    assert told.is_good.tolist() == [True, True, False, True, True]
    assert not any(array[2].any() for array in pool.arrays.values())
    assert pool.arrays["clock.count"].tolist() == [1, 1, 0, 1, 1]


SERIES = """
import json, sys
if sys.argv[2] == "bare":
    sys.modules["numba"] = None
import numpy as np
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.compiling import HAS_COMPILER
from rfa.runtime.filters.filter import FilterRuntime
runtime = FilterRuntime(open_bundle(sys.argv[1]))
rng = np.random.default_rng(4)
values = [None if rng.random() < 0.1 else rng.normal(size=2).tolist() for _ in range(60)]
found = runtime.filter(np.arange(60) / 10, values, horizon=(0.1, 0.5))
names = "mean", "std", "anomaly", "confidence", "precision"
steps = [[*(getattr(s, n) for n in names), s.interval["0.9"], s.forecast[1].interval["0.9"]] for s in found.steps]
print(json.dumps([HAS_COMPILER, steps]))
"""


def flat(value: Any) -> list[float]:
    if isinstance(value, list):
        return [number for part in value for number in flat(part)]
    return [0.0 if value is None else float(value)]


def test_it_is_the_same_without_a_compiler() -> None:
    found = {}
    for kind in ("bare", "compiled"):
        command = [sys.executable, "-W", "error", "-c", SERIES, str(BUNDLES / "oscillator"), kind]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[kind] = json.loads(printed)
    assert (found["bare"][0], found["compiled"][0]) == (False, True)
    np.testing.assert_allclose(flat(found["bare"][1]), flat(found["compiled"][1]), rtol=20 * KEPT)


def test_interpolation_is_that_of_numpy() -> None:
    """At the places, between and beyond them, and where several are equal."""
    places, values = np.array([-1.0, -1.0, -1.0, 0.5, 0.5, 2.0]), np.array([0.01, 0.03, 0.05, 0.4, 0.6, 0.9])
    for x in (-3.0, -1.0, np.nextafter(-1.0, 0), 0.2, 0.5, 1.0, 2.0, 5.0):
        assert interpolate(x, places, values) == np.interp(x, places, values)
