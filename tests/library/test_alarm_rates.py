"""Alarms of long clean series keep to their rate, through `rfa.filter`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import rfa

ROWS, BURN_IN = 120_000, 3_000
KINDS = ("normal", "autoregressive", "random walk", "counter", "count", "seasonal")


def simulated(kind: str) -> np.ndarray:
    """Rows five minutes apart."""
    rng, rows = np.random.default_rng(KINDS.index(kind)), np.arange(ROWS)
    shocks = rng.standard_normal(ROWS)
    if kind == "autoregressive":
        for t in range(1, ROWS):
            shocks[t] += 0.9 * shocks[t - 1]
    hours, is_weekend = rows / 12 % 24, rows // 288 % 7 >= 5
    return {
        "normal": shocks,
        "autoregressive": shocks,
        "random walk": shocks.cumsum(),
        "counter": np.round(900 + 30 * shocks).cumsum(),
        "count": rng.poisson(0.4, ROWS).astype(float),
        "seasonal": 50 * (1.5 + np.cos(hours / 12 * np.pi)) * np.where(is_weekend, 0.6, 1) * (1 + 0.05 * shocks),
    }[kind]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["default", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_alarms_keep_to_the_rate(kind: str, model: str) -> None:
    """At most 1.5 times of it, and four deviations of a count whose alarms come in pairs."""
    times = np.datetime64("2026-01-05", "s") + 300 * np.arange(ROWS)
    table = pa.table({"time": times, "value": simulated(kind)})
    for rate in (1e-3, 1e-4):
        found = rfa.filter(table, alarm=rate, model=model)["alarm"].to_numpy(zero_copy_only=False)
        count, expected = int(np.nansum(found[BURN_IN:].astype(float))), rate * (ROWS - BURN_IN)
        assert count <= 1.5 * expected + 4 * np.sqrt(2 * 1.5 * expected)
