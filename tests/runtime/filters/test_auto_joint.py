"""The model `auto-joint`: what `auto` tells of columns, and how strange rows are by the correlation of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import rfa
from rfa.runtime.filters.auto import JOINT_NAME, NAME, AutoRuntime
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.uncertainty.alarms import alarm
from tests.library.conftest import server  # noqa: F401 - a fixture
from tests.runtime.filters.test_auto import output

ROWS = 3000
OF_COLUMNS = ("mean", "std", "innovation", "interval", "moments", "bands")


def looks(rows: int = ROWS, columns: int = 4, seed: int = 0) -> np.ndarray:
    """Noisy looks at one walk, one as good as the other, in units of their own."""
    draw = np.random.default_rng(seed)
    walk = draw.normal(size=rows).cumsum()
    return (walk[:, None] + draw.normal(size=(rows, columns))) * 2.0 ** np.arange(columns)


def with_holes(values: np.ndarray) -> np.ndarray:
    """Cells missing at random, a column that ends, and rows of nothing."""
    found = values.copy()
    draw = np.random.default_rng(1)
    found[draw.random(found.shape) < 0.1] = np.nan
    found[len(found) // 2 :, -1] = np.nan
    found[100:110] = np.nan
    return found


def run(values: np.ndarray, name: str = JOINT_NAME, **more: Any) -> FilteredSequence:
    rows = [[None if value != value else value for value in row] for row in values.tolist()]  # noqa: PLR0124
    times = more.pop("times", np.arange(float(len(rows)))).tolist()
    return AutoRuntime.of(values.shape[1], name).filter(times, rows, horizon=(1.0, 12.0), **more)


def test_columns_are_those_of_auto_and_a_single_one_is_auto() -> None:
    values = with_holes(looks(600))
    joint, apart = run(values), run(values, NAME)
    for name in OF_COLUMNS:
        np.testing.assert_array_equal(output(joint, name), output(apart, name))
    assert (output(joint, "nis") != output(apart, "nis")).any()
    one, other = run(values[:, :1]), run(values[:, :1], NAME)
    for name in (*OF_COLUMNS, "nis", "anomaly", "confidence", "log_likelihood", "weight"):
        np.testing.assert_array_equal(output(one, name), output(other, name))


def test_a_row_is_as_far_off_as_its_columns_are_by_their_correlation() -> None:
    """Held against inverses of whole matrices, of what single columns are off by."""
    values = with_holes(looks(500))
    apart = [run(values[:, [a]], NAME) for a in range(4)]
    # Normal scores by the nis of one column; what is not scored is not there.
    signs = np.stack([np.sign(output(one, "innovation")[:, 0]) for one in apart], axis=1)
    scores = signs * np.sqrt(np.stack([output(one, "nis") for one in apart], axis=1))
    first = np.array([np.flatnonzero(~np.isnan(column))[0] for column in values.T])
    scores[first, np.arange(4)] = np.nan
    products, count, expected, log_determinants = np.zeros((4, 4)), 0.0, [], []
    for row in scores:
        seen = np.flatnonzero(~np.isnan(row))
        deviations = np.sqrt(np.where(np.diag(products) > 0, np.diag(products), 1.0))
        likeness = products / np.outer(deviations, deviations)
        own = 0.01 + 0.99 * 5 / (5 + count)
        whole = (1 - own) * likeness + own * np.eye(4)
        np.fill_diagonal(whole, 1.0)
        part = whole[np.ix_(seen, seen)]
        expected.append(row[seen] @ np.linalg.solve(part, row[seen]) if len(seen) else np.nan)
        log_determinants.append(np.linalg.slogdet(part)[1] if len(seen) else 0.0)
        if len(seen):
            count = min(count + 1, 1000.0)
            bounded = np.clip(np.nan_to_num(row), -3, 3)
            products += (np.outer(bounded, bounded) - products) / count
    joint = run(values)
    found = output(joint, "nis")
    scored = np.isfinite(expected)
    # Sums of 4 x 4 products, of a matrix whose condition is below 4 / 0.01.
    np.testing.assert_allclose(found[scored], np.array(expected)[scored], rtol=400 * 64 * np.finfo(float).eps)
    # Of what auto gives a row by itself, the likelihood has the determinant beside, where nothing is an outlier: the
    # density of an outlier is below a billionth of that of an inlier.
    before = run(values, NAME)
    usual = scored & (found < 4) & (output(before, "nis") < 4) & (~np.isnan(values)).all(axis=1)
    assert usual.sum() > 50
    change = output(joint, "log_likelihood") - output(before, "log_likelihood")
    by_hand = -0.5 * (found - output(before, "nis") + np.array(log_determinants))
    outlier = 0.02 / 0.98 * 10.0**-4 * np.exp(0.5 * 4)  # of an inlier's density, at most
    np.testing.assert_allclose(change[usual], by_hand[usual], atol=outlier)


def test_units_change_nothing() -> None:
    values = with_holes(looks(800))
    other = values * 2.0 ** np.array([3, -20, 0, 15])
    for name in ("nis", "anomaly", "confidence"):
        np.testing.assert_array_equal(output(run(values), name), output(run(other), name))


@pytest.mark.parametrize("kind", ["looks", "apart", "holes", "heavy"])
def test_alarms_come_at_their_rate(kind: str) -> None:
    draw = np.random.default_rng(4)
    values = {
        "looks": looks(6000), "apart": draw.normal(size=(6000, 5)).cumsum(axis=0), "holes": with_holes(looks(6000)),
        "heavy": draw.standard_t(3, size=(6000, 3)),
    }[kind]  # fmt: skip
    found = run(values, alarm=alarm(0.01))
    alarms = output(found, "alarm")
    asked = np.isfinite(alarms).sum()
    expected = 0.01 * asked
    # Alarms of a walk that stands off come in twos and threes: as if a third were independent.
    assert abs(np.nansum(alarms) - expected) < 4 * np.sqrt(3 * expected)


def test_what_is_alike_still_or_dead_stays_finite() -> None:
    draw = np.random.default_rng(5)
    walk = draw.normal(size=800).cumsum()
    values = np.stack([walk, walk, -3 * walk, np.full(800, 7.0), np.full(800, np.nan)], axis=1)
    values[400:, 0] = np.nan
    values[::2, 2] = np.nan
    found = run(values)
    for name in ("mean", "std", "anomaly", "log_likelihood"):
        assert np.isfinite(
            output(found, name)[1:, ..., :4] if output(found, name).ndim > 1 else output(found, name)[1:]
        ).all()
    assert output(found, "is_good").all()
    # Of two that are alike one leaves the other.
    values = np.stack([walk, walk], axis=1)
    values[700, 1] += 3.0
    assert output(run(values), "anomaly")[700] > 0.99 and np.argmax(output(run(values), "nis")) == 700


def test_it_is_asked_for_by_its_name(server: TestClient) -> None:  # noqa: F811 - the fixture
    values = looks(300)
    values[250, 2] += 80.0
    served = {model["name"] for model in server.get("/info").json()["models"]}
    assert {NAME, JOINT_NAME} <= served
    reply = server.post("/filter", json={"model": JOINT_NAME, "observations": values.tolist(), "return_state": True})
    assert reply.status_code == 200, reply.text
    steps = reply.json()["steps"]
    table = rfa.filter(values, model=JOINT_NAME)
    np.testing.assert_array_equal([step["nis"] for step in steps], table["nis"])
    np.testing.assert_array_equal(output(run(values), "nis"), table["nis"])
    refused = server.post("/filter", json={"observations": [[1.0] * 4], "state": reply.json()["state"]})
    assert refused.status_code == 422, refused.text
    assert refused.json()["error"]["code"] == "state_invalid"
    stream = rfa.Stream(4, model=JOINT_NAME)
    live = [stream.update(None, row).nis for row in values.tolist()]
    np.testing.assert_array_equal(live, table["nis"])
    assert rfa.Stream.resume(stream.state).update(None, values[0].tolist()).nis is not None
    assert rfa.detect(values, 0.003, model=JOINT_NAME).rows.size >= 1
