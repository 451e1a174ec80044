"""How what `auto-joint` finds is measured."""

from __future__ import annotations

import numpy as np

from rfa.benchmarks.filters.auto_joint import COLUMNS, ROWS, measure, tables
from rfa.runtime.filters.auto import JOINT_NAME, NAME


def test_tables_are_whole() -> None:
    found = dict(tables(None))
    assert len(found) == 4
    assert all(values.shape == (ROWS, COLUMNS) and np.isfinite(values).all() for values in found.values())


def test_of_columns_that_are_alike_but_for_a_little_the_joint_model_finds_all() -> None:
    rng = np.random.default_rng(0)
    walk = rng.standard_normal(2_000).cumsum()
    found = measure(walk[:, None] + 0.01 * rng.standard_normal((2_000, 3)), rng)
    assert found.share[JOINT_NAME] == 1.0 > found.share[NAME]
    # 15 alarms are expected: within four of their standard errors.
    assert all(abs(ratio - 1) < 4 / np.sqrt(15) for ratio in found.alarms.values())
