"""The filter table, shortened: every row is there, and the references stand in the order that theory gives them."""

import json
from pathlib import Path

from rfa.benchmarks.filters import oscillator as filter_eval
from rfa.benchmarks.results_page.page import tables_of

OSCILLATOR = Path(__file__).parents[2] / "bundles" / "oscillator"


def test_the_table_of_one_setting(monkeypatch, tmp_path):
    monkeypatch.setattr(filter_eval, "NOISE_SETTINGS", filter_eval.NOISE_SETTINGS[1:2])
    monkeypatch.setattr(filter_eval, "FIT_STREAMS", 20)
    document = filter_eval.write_filter(OSCILLATOR, tmp_path / "filter.json", streams=20, length=40)
    assert json.loads((tmp_path / "filter.json").read_text()) == document
    clean, outliers = document["rows"]
    assert (clean["data"], outliers["data"]) == ("clean", "5 % outliers")
    for row in (clean, outliers):
        rmse = row["rmse"]
        filters = [rmse[key] for key in ("linear recurrent", "oscillator recurrent", "oscillator attention")]
        assert rmse["oracle"] < min(filters) and max(filters) < rmse["raw"]
        assert all(0 <= share <= 1 for c in row["coverage"].values() for share in c["state"].values())
    for row in (clean, outliers):
        assert row["transformer"]["largest_distance"] <= row["transformer"]["epsilon"]
    # As near the Kalman filter as stated, and as helpless against outliers.
    assert clean["rmse"]["kalman"] <= clean["rmse"]["transformer"] <= clean["rmse"]["kalman"] + 0.1
    assert outliers["rmse"]["linear recurrent"] < outliers["rmse"]["transformer"]
    assert clean["rmse"]["kalman"] == clean["rmse"]["oracle"]
    assert outliers["rmse"]["linear recurrent"] < outliers["rmse"]["kalman"]
    assert any("clean" in line for line in tables_of("filter", document))
