"""The archive's rule: which row is pointed at, and when it counts as found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.benchmarks.series import ucr


def test_the_largest_score_after_the_clean_rows_counts() -> None:
    anomaly = np.array([9.0, 1.0, np.nan, 3.0, 3.0, 2.0])
    nis = np.array([0.0, 0.0, 99.0, 5.0, 4.0, np.nan])
    assert ucr.largest(anomaly, nis, 1) == 3
    assert ucr.largest(anomaly, nis, 4) == 4
    assert ucr.largest(np.full(6, np.nan), nis, 5) == 5


def test_a_hundred_rows_beside_the_anomaly_still_count(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"001_UCR_Anomaly_some_name_300_400_410": np.zeros(600, np.float32)})
    (one,) = ucr.load_archive(tmp_path)
    assert (one.train, one.begin, one.end) == (300, 400, 410)
    assert [one.is_found(row) for row in (299, 300, 510, 511)] == [False, True, True, False]
    with pytest.raises(ValueError, match="no series"):
        ucr.load_archive(tmp_path / "none")


def test_a_series_without_values_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        return {"anomaly": np.arange(50.0), "nis": np.zeros(50)}

    monkeypatch.setattr(ucr, "ask", ask)
    assert ucr.pointed_at("", "series", ucr.OneAnomaly("empty", np.zeros(0), 40, 45, 46)) is None
    assert not asked
    assert ucr.pointed_at("", "series", ucr.OneAnomaly("some", np.zeros(50), 40, 45, 46)) == 49
    assert asked[0]["fields"] == ["anomaly", "nis"] and len(asked[0]["values"]["y"]) == 50
