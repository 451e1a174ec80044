"""Pictures of series: losses are relative to the naive on the same windows."""

from __future__ import annotations

import pytest

from rfa.benchmarks.series.gift_figures import points
from rfa.benchmarks.series.gift_models import NAIVE


def test_a_loss_on_fewer_windows_is_relative_to_the_naive_on_these() -> None:
    row = {"mase": 1.0, "inside": [0.5] * 5, "seconds": 0.0}
    kept = {
        NAIVE: {**row, "wql": 0.2, "windows": 40},
        "auto": {**row, "wql": 0.1, "windows": 40},
        "default": {**row, "wql": 0.3, "windows": 10, "naive": {"mase": 1.0, "wql": 0.4}},
    }
    document = {"tasks": {"m4_weekly": kept}, "published": {"models": {"other": {"m4_weekly": [9.0, 0.05]}}}}
    found = {point.model: point.wql for point in points(document, "m4_weekly")}
    assert found == pytest.approx({"other": 0.25, "auto": 0.5, "default": 0.75})
