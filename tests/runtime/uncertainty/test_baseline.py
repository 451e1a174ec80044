"""The anomaly score is as rare as it says on streams that are not what the model expects, and outliers teach it little.

What is promised, with the bundle `linear` and noise of a quarter, once and four times what it expects: after BURN_IN
observations the share of scores up to any level is within GAP of it; a change of the noise by four is learned as well
within BURN_IN observations.
"""

from __future__ import annotations

import bisect
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.baseline import COLUMNS, COUNT, LEVEL, MEMORY, PRIOR, SPREAD
from rfa.runtime.uncertainty.baseline import learn as inlined_learn
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.interface import Row
from rfa.runtime.uncertainty.learned_tail import EARLY
from tests.inlined import callable_from_python
from tests.model.joint_gaussian import van_loan
from tests.runtime.uncertainty import baseline_reference

learn = callable_from_python(inlined_learn)

BUNDLES = Path(__file__).parents[3] / "bundles"
SCALES = (0.25, 1.0, 4.0)
STREAMS, BURN_IN, CLEAN, CHANGED = 32, 200, 500, 350
GAP = 0.05
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
# The system of `linear`: dx = A x dt + noise of density q, observed with variance r at every LAG.
DRIFT, DENSITY, VARIANCE, LAG = np.array([[0.9, -2.0], [1.0, -1.1]]), 0.3, 0.5, 0.1


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    tables: dict[str, Any] = open_bundle(BUNDLES / "linear").calibration["recurrent"]
    return tables


@pytest.fixture(scope="module")
def calibration(table: dict[str, Any]) -> Calibration:
    return Calibration(table)


# The recursion.


def bundles_place(anomaly: dict[str, Any], z: float) -> tuple[float, float]:
    """F and T of the module's page, by the calibration file and the normal distribution itself."""
    xs, ys = anomaly["quantiles"], anomaly["shares"]
    if z > xs[-1]:
        place = NormalDist().inv_cdf(ys[-1]) + (z - xs[-1]) / anomaly["tail_scale"]
        return ys[-1], math.erfc(place / math.sqrt(2)) / 2 / (1 - ys[-1])
    i = min(bisect.bisect_right(xs, z) - 1, len(xs) - 2)
    return (0.0 if i < 0 else ys[i] + (ys[i + 1] - ys[i]) * (z - xs[i]) / (xs[i + 1] - xs[i])), 1.0


def bundles_score(anomaly: dict[str, Any], z: float) -> float:
    share, tail = bundles_place(anomaly, z)
    return share if tail == 1 else 1 - (1 - anomaly["shares"][-1]) * tail


class Placed(NamedTuple):
    """Of every stream: z with λ alone, the share of smaller ones, and what is learned after it."""

    z: np.ndarray
    share: np.ndarray
    after: np.ndarray


def place(
    calibration: Calibration, taught: np.ndarray, nis: np.ndarray, size: np.ndarray | int, *, learns: bool = True
) -> Placed:
    """One observation of every stream."""
    after, sizes = np.empty(taught.shape), np.broadcast_to(size, len(taught))
    roots = (nis / np.maximum(sizes, 1)) ** (1 / 3)
    table = calibration.tables.tail_model
    found = [
        learn(before, root, max(d, 1), learns, table, out)
        for before, root, d, out in zip(taught, roots.tolist(), sizes.tolist(), after, strict=True)
    ]
    z, share = np.array(found).T
    return Placed(z, share, after)


def test_it_is_the_recursion_of_its_page(table: dict[str, Any], calibration: Calibration) -> None:
    """Sixteen streams of one or two components, calm, noisy, with outliers, with a change, all at once.

    The tail is tabulated to 2e-5 of p < 0.05 and the state is kept in float32, whose rounding the recursion damps."""
    rng = np.random.default_rng(0)
    size = rng.choice([1, 2], (16, 400))
    nis = rng.chisquare(size) * 10.0 ** rng.uniform(-2, 2, (16, 1))
    nis[:4, 200:] *= 100
    nis[4:8] *= np.where(rng.random((4, 400)) < 0.05, 1e5, 1)
    taught = np.zeros((16, COLUMNS), np.float32)
    expected = [[0.0] * COLUMNS for _ in range(16)]
    for t in range(400):
        found = place(calibration, taught, nis[:, t], size[:, t])
        taught = found.after.astype(np.float32)
        for i in range(16):
            by_page = baseline_reference.learn(
                expected[i], float(nis[i, t]), int(size[i, t]), lambda z: bundles_score(table["anomaly"], z)
            )
            expected[i] = by_page.after
            assert found.share[i] == pytest.approx(by_page.share, abs=2e-5)
        assert np.abs(taught - expected).max() < 2e-3  # of n, which reaches hundreds
    assert taught[:4, COUNT].max() < 250 < taught[8:, COUNT].min()


def after_clean(calibration: Calibration, d: int, count: int, rows: int = 16) -> np.ndarray:
    taught = np.zeros((rows, COLUMNS), np.float32)
    rng = np.random.default_rng(d)
    for _ in range(count):
        taught = place(calibration, taught, rng.chisquare(d, rows), d).after.astype(np.float32)
    return taught


def test_before_it_has_learned_the_score_is_the_bundles(table: dict[str, Any], calibration: Calibration) -> None:
    nis = 2 * np.geomspace(1e-6, 1e12, 512)
    learned = place(calibration, np.zeros((512, COLUMNS), np.float32), nis, 2)
    expected = [bundles_score(table["anomaly"], z) for z in learned.z.tolist()]
    assert np.abs(learned.share - expected).max() < 2e-6  # 0.05 times what the table of the tail rounds
    assert learned.share.max() == 1.0 and (np.diff(learned.share) >= 0).all()


@pytest.mark.parametrize("d", [1, 2, 30])
def test_one_outlier_moves_it_by_a_bounded_amount_however_far_out_it_is(calibration: Calibration, d: int) -> None:
    for count in (1, 50, 1200):
        taught = after_clean(calibration, d, count)
        far, further, furthest = (
            place(calibration, taught, np.full(16, nis), d).after for nis in (d * 1e4, d * 1e12, d * 1e24)
        )
        assert np.array_equal(far, further) and np.array_equal(further, furthest)
        moved, n = np.abs(far - taught), taught[:, COUNT].astype(float)
        slack = 1 + 1e-6
        assert (moved[:, LEVEL] <= slack * 3 / math.sqrt(d) / (n + PRIOR)).all()
        assert (moved[:, SPREAD] <= slack * 1.5 / (n + PRIOR)).all()


def test_ten_outliers_in_a_row_are_all_alarms_and_a_lasting_change_is_not(calibration: Calibration) -> None:
    taught = after_clean(calibration, 2, 1200)
    assert (taught[:, COUNT] > 0.8 * MEMORY).all()
    scores = []
    for _ in range(100):
        learned = place(calibration, taught, np.full(16, 2 * 16.0), 2)  # four times the noise
        taught = learned.after.astype(np.float32)
        scores.append(learned.share)
    assert np.min(scores[:10]) > 0.99
    assert np.max(scores[-1]) < 0.9


def test_what_does_not_teach_leaves_every_bit(calibration: Calibration) -> None:
    taught = after_clean(calibration, 2, 100)
    taught[:3] = [[55.3, 1.5, 1000, 0.9], [-9.2, -1.5, 0, -0.9], [1, 0.1, 7, 0.3]]
    nis, seen = np.full(16, 9.0), np.full(16, 2)
    nis[8:], seen[8:] = 0.0, 0
    after = place(calibration, taught, nis, seen, learns=False).after.astype(np.float32)
    assert after.tobytes() == taught.tobytes()


# As served.


class Served(NamedTuple):
    """Scores and the bundle's own of the same observations, `[scales, streams, steps]`."""

    scores: np.ndarray
    bundles: np.ndarray


def simulated(scales: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Observations `[streams, steps, 2]`; scales `[streams, steps]`, of the noise."""
    f, q = van_loan(DRIFT, DENSITY * np.eye(2), LAG)
    root = np.linalg.cholesky(q)
    state, found = rng.normal(size=(len(scales), 2)), []
    for scale in scales.T:
        state = state @ f.T + rng.normal(size=state.shape) @ root.T
        found.append(state + math.sqrt(VARIANCE) * scale[:, None] * rng.normal(size=state.shape))
    return np.stack(found, axis=1)


@pytest.fixture(scope="module")
def served(table: dict[str, Any]) -> Served:
    """Clean streams of every scale; at CLEAN comes one outlier, ten of its stream's deviations; from there on the
    noise is four times as large, or a quarter where it was four times the model's."""
    runtime = FilterRuntime(open_bundle(BUNDLES / "linear"))
    scales = np.repeat(SCALES, STREAMS)
    after = np.where(scales > 1, scales / 4, scales * 4)
    course = np.concatenate([np.tile(scales[:, None], CLEAN + 1), np.tile(after[:, None], CHANGED)], axis=1)
    y = simulated(course, np.random.default_rng(0))
    y[:, CLEAN] += 10 * scales[:, None] * math.sqrt(VARIANCE)
    pool = StatePool(runtime.state_fields, len(y))
    handles = [pool.acquire() for _ in y]
    readout = runtime.readout((0.9,), (), 0)
    scores, bundles = np.empty(y.shape[:2]), np.empty(y.shape[:2])
    for t in range(y.shape[1]):
        if t == 0:
            for handle in handles:
                runtime.put(pool, handle, runtime.start())
        rows = [Row(handle, LAG * t, y[i, t].tolist(), 1.0, readout, 0) for i, handle in enumerate(handles)]
        for i, stepped in enumerate(runtime.advance(pool, rows)):
            assert stepped is not None and stepped.step.nis is not None
            scores[i, t] = stepped.step.anomaly
            z = (max(stepped.step.nis / 2, 0.0) ** (1 / 3) - 8 / 9) * 3
            bundles[i, t] = bundles_score(table["anomaly"], z)
    return Served(*(found.reshape(3, STREAMS, -1) for found in (scores, bundles)))


def worst_gap(scores: np.ndarray) -> float:
    """Largest |share of scores up to a level - level|."""
    return max(abs(float((scores <= level).mean()) - level) for level in LEVELS)


@pytest.mark.parametrize("kind", range(3), ids=["quieter", "as expected", "noisier"])
def test_the_score_is_as_rare_as_it_says(served: Served, kind: int) -> None:
    clean = slice(BURN_IN, CLEAN)
    assert worst_gap(served.scores[kind, :, clean]) <= GAP
    # 9,600 scores: four deviations of a count of 96 are 40.
    assert 0.003 <= (served.scores[kind, :, clean] > 0.99).mean() <= 0.02
    if SCALES[kind] != 1:
        assert worst_gap(served.bundles[kind, :, clean]) > 0.2


@pytest.mark.parametrize("kind", range(3), ids=["quieter", "as expected", "noisier"])
def test_an_outlier_of_its_own_noise_alarms_in_every_stream(served: Served, kind: int) -> None:
    assert (served.scores[kind, :, CLEAN] > 0.99).all()
    before = slice(BURN_IN, CLEAN)
    assert ((served.scores[kind, :, before] > 0.99).mean(axis=-1) < 0.05).all()


@pytest.mark.parametrize("kind", range(3), ids=["quieter", "as expected", "noisier"])
def test_a_change_of_the_noise_is_learned(served: Served, kind: int) -> None:
    changed = served.scores[kind, :, CLEAN + 1 :]
    assert worst_gap(changed[:, :20]) > 0.2
    assert worst_gap(changed[:, BURN_IN:]) <= GAP


def test_it_moves_over_smoothly_from_the_bundles(served: Served) -> None:
    """The first scores are the bundle's as far as so few may be rare, and no step is a jump: λ of two components moves
    by at most 2.2 / 20."""
    for kind in range(3):
        bundles = np.minimum(served.bundles[kind, :, :2], 1 - EARLY)
        assert np.abs(served.scores[kind, :, :2] - bundles).max() < 2e-6
        gap = np.abs(served.scores[kind] - served.bundles[kind]).mean(axis=0)
        assert gap[2:5].mean() < 0.1
    assert np.abs(served.scores[0] - served.bundles[0])[:, BURN_IN:CLEAN].mean() > 0.2
