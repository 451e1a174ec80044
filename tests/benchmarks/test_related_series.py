"""What other columns are worth: the regression finds what is there, and nothing where nothing is."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.benchmarks.series import related


def test_the_recursion_is_the_ridge_regression_of_the_rows_before() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 3)), rng.standard_normal(60)
    told = related.foretold(y, x)
    for row in (0, 1, 30, 59):
        gram = x[:row].T @ x[:row] + related.RIDGE * np.eye(3)
        assert told[row] == pytest.approx(x[row] @ np.linalg.solve(gram, x[:row].T @ y[:row]), abs=1e-12)


def test_a_column_that_leads_is_found_and_noise_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that the column before showed a row earlier are foretold but for their own third; independent ones are
    not."""
    rng = np.random.default_rng(1)
    first = rng.standard_normal(3_001)
    off = np.stack([first[1:], first[:-1] + rng.standard_normal(3_000) / 3], axis=1)
    monkeypatch.setattr(related, "errors", lambda values: off)
    monkeypatch.setattr(related, "LIMIT", 1e9)
    found = related.ratios(off)
    assert found[1, 1] == pytest.approx((1 / 3) / np.hypot(1, 1 / 3), rel=0.1)
    assert found[[0, 0, 1], [0, 1, 0]] == pytest.approx(1.0, abs=0.02)


def test_tables_are_what_they_are_called() -> None:
    kinds = dict(related.tables(0))
    assert {values.shape for values in kinds.values()} == {
        (related.ROWS, related.COLUMNS), (related.ROWS - related.COLUMNS, related.COLUMNS)
    }  # fmt: skip
    assert np.corrcoef(kinds["one signal, own noise"].T)[0, 1] > 0.5
    led = kinds["one row after the other"]
    steps = np.diff(led, axis=0)
    assert np.corrcoef(steps[:-1, 0], steps[1:, 1])[0, 1] > np.corrcoef(steps[:, 0], steps[:, 1])[0, 1]
