"""A series of zeros has no scale. Its estimates and intervals are 0, not numbers below any meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import rfa
from rfa.runtime.uncertainty.interface import UNLIMITED
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import limit_outputs


@pytest.mark.parametrize("model", ["default", "auto"])
def test_zeros_are_filtered_and_forecast_as_zeros(model: str) -> None:
    zeros = pd.DataFrame({"y": [0.0] * 30})
    filtered, forecast = rfa.filter(zeros, model=model, smooth=True), rfa.forecast(zeros, 3, model=model)
    for found in (filtered, forecast):
        estimates = [name for name in found.columns if name.endswith(("mean", "std", "median", "90"))]
        assert len(estimates) >= 4
        assert (found[estimates] == 0).all(axis=None), found[estimates]


def test_only_numbers_below_float32_become_0_in_rows_with_such_a_deviation() -> None:
    width = np.array([[1e-150, 1.0], [2e-38, 1.0], [3.0, 1.0]])
    mean = np.array([[-1e-200, -1e-45], [1e-150, 1.0], [3.0, 1.0]])
    empty = np.empty((3, 0, 3, 2))
    given: dict[str, Any] = dict.fromkeys(StepOutputs._fields, np.zeros(3))
    given |= {"mean": mean, "std": width.copy(), "interval": width.copy(), "moments": empty, "bands": empty}
    outputs = StepOutputs(**given)
    limit_outputs(outputs, UNLIMITED)
    assert outputs.std.tolist() == [[0.0, 1.0], [2e-38, 1.0], [3.0, 1.0]]
    # A row does not depend on the others of its batch.
    assert outputs.mean.tolist() == [[0.0, 0.0], [1e-150, 1.0], [3.0, 1.0]]


@pytest.mark.parametrize("seed", range(3))
def test_a_day_that_a_shop_stays_closed_is_an_incident_at_its_opening(seed):
    """Although most hours of the series have no visitors."""
    hours = np.arange(24 * 7 * 10)
    is_open, day = (hours % 24 >= 9) & (hours % 24 < 20), hours // 24
    usual = 100.0 * is_open * np.where(day % 7 == 6, 0.6, 1.0)
    visitors = np.random.default_rng(seed).poisson(np.where(day == 60, 0.0, usual))
    found = rfa.detect(
        pd.DataFrame({"time": pd.Timestamp("2026-01-05") + pd.to_timedelta(hours, "h"), "visitors": visitors}), "1/week"
    )
    begins = pd.to_datetime(found.incidents["begin"])
    assert pd.Timestamp("2026-03-06 09:00") in set(begins)
    assert (begins < "2026-03-06").sum() <= 9
