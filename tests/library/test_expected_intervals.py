"""The interval of the expected value, in the rows of `rfa.detect`."""

from __future__ import annotations

import numpy as np
import pandas as pd

import rfa


def _alarms(values: np.ndarray) -> pd.DataFrame:
    times = pd.date_range("2026-01-01", periods=len(values), freq="h")
    rows = rfa.detect(pd.DataFrame({"time": times, "x": values}), 0.01).rows
    assert len(rows) >= 3
    return rows


def _values() -> np.ndarray:
    values = np.random.default_rng(1).poisson(1.5 + np.sin(np.arange(600) * np.pi / 12)).astype(float)
    values[[200, 300, 400]] = 30.0, 25.0, 40.0
    return values


def test_expected_intervals_of_counts_are_not_negative() -> None:
    rows = _alarms(_values())
    for level in (50, 90):
        low, high = rows[f"x_expected_low{level}"], rows[f"x_expected_high{level}"]
        assert (low >= 0).all() and (low <= rows["x_expected"]).all() and (rows["x_expected"] <= high).all()
    # The lower bound 0 is not the centre of the interval minus half its width: the width is not lost.
    at_zero = rows["x_expected_low90"] == 0
    width = rows["x_expected_high90"] - rows["x_expected_low90"]
    assert at_zero.any() and (width[at_zero] == np.rint(width[at_zero])).all()


def test_expected_intervals_of_other_values_have_the_expected_value_at_their_centre() -> None:
    rows = _alarms(_values() - 2.0)
    middle = (rows["x_expected_low90"] + rows["x_expected_high90"]) / 2
    assert (rows["x_expected_low90"] < 0).any()
    np.testing.assert_allclose(middle, rows["x_expected"], rtol=1e-12)
