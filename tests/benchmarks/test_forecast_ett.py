"""Scores against their definitions, the rival's forecasts against its own, and the whole bench on a simulated file."""

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from rfa.benchmarks.forecasting.ett import (
    CONFIG,
    Forecast,
    naive_forecasts,
    parts,
    statsmodels_forecasts,
    write_ett,
)
from rfa.benchmarks.forecasting.scores import block_error, crps_normal, crps_points, interval
from rfa.benchmarks.results_page.page import tables_of


def test_normal_crps_is_the_integral_of_its_definition():
    for mean, deviation, y in ((0.0, 1.0, 0.3), (2.0, 0.5, 5.0), (-1.0, 3.0, -1.0)):
        grid = np.linspace(mean - 12 * deviation, mean + 12 * deviation, 400_001)
        squares = (norm.cdf(grid, mean, deviation) - (grid >= y)) ** 2
        # The step of the indicator costs at most one cell.
        cell = grid[1] - grid[0]
        assert abs(crps_normal(np.array(y), np.array(mean), np.array(deviation)) - squares.sum() * cell) < 2 * cell


def test_crps_of_points_is_the_mean_over_pairs():
    rng = np.random.default_rng(0)
    points, outcomes = rng.normal(size=37), rng.normal(size=11) * 3
    pairs = np.abs(points[:, None] - points[None]).mean() / 2
    expected = [np.abs(points - y).mean() - pairs for y in outcomes]
    assert np.allclose(crps_points(outcomes, points), expected, atol=1e-13)
    many = norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    assert np.allclose(crps_points(outcomes, many), crps_normal(outcomes, 0.0, 1.0), atol=1e-4)


def test_interval_and_block_error():
    assert interval(np.array([0.0, 1, 2, 3]), np.array([0.0] * 4), np.array([2.0] * 4)) == (0.75, 2.0)
    rng = np.random.default_rng(0)
    one = rng.normal(size=4000)
    # 400 block means: their spread is known to 3.5 %.
    assert block_error(one, 10) == pytest.approx(1 / math.sqrt(4000), rel=0.15)
    assert block_error(np.repeat(one, 10), 100) == pytest.approx(1 / math.sqrt(4000), rel=0.2)


def test_the_rival_forecasts_what_statsmodels_forecasts():
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    rng = np.random.default_rng(0)
    t = np.arange(400)
    y = 5 + np.cumsum(0.1 * rng.normal(size=400)) + 2 * np.sin(2 * np.pi * t / 24) + 0.3 * rng.normal(size=400)
    found, _ = statsmodels_forecasts(y, slice(0, 300))
    center, spread = y[:300].mean(), y[:300].std()
    options = {"level": "local linear trend", "freq_seasonal": [{"period": 24}]}
    fitted = UnobservedComponents((y[:300] - center) / spread, **options).fit(disp=False, maxiter=200)
    until = UnobservedComponents((y[:350] - center) / spread, **options).filter(fitted.params)
    ahead = until.get_forecast(24)
    for lead in (1, 24):
        row = 350 + lead - 1
        assert found[lead].mean[row] == pytest.approx(ahead.predicted_mean[lead - 1] * spread + center, abs=1e-6)
        assert found[lead].deviation[row] == pytest.approx(ahead.se_mean[lead - 1] * spread, rel=1e-6)


@pytest.mark.slow
def test_the_document_scores_every_column_and_chooses_before_the_test_third(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rfa.benchmarks.forecasting.ett.CONFIG", type(CONFIG)(max_harmonics=1, max_free_modes=0, iterations=15)
    )

    def cheap_rival(y, train):
        """The rival has a test of its own, and takes a minute to fit."""
        return {lead: Forecast(naive_forecasts(y, lead), np.full(len(y), y[train].std())) for lead in (1, 24)}, 0.0

    monkeypatch.setattr("rfa.benchmarks.forecasting.ett.statsmodels_forecasts", cheap_rival)
    rng = np.random.default_rng(0)
    t = np.arange(1600)
    y = 5 + np.cumsum(0.05 * rng.normal(size=1600)) + 2 * np.sin(2 * np.pi * t / 24) + 0.3 * rng.normal(size=1600)
    bounds = parts(1600)
    assert (bounds.train.stop, bounds.validation.stop, bounds.test.stop) == (800, 1066, 1600)

    def run(values, name):
        (tmp_path / "data.csv").write_text("t,load\n" + "\n".join(f"{i},{v}" for i, v in zip(t, values, strict=True)))
        return write_ett(tmp_path / "data.csv", tmp_path / name, tmp_path / name.replace("json", "png"))

    document = run(y, "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads(json.dumps(document))
    rows = document["columns"][0]["leads"]["1"]
    # The noise alone has a CRPS of 0.3 / √π = 0.17, and yesterday's value adds its own noise and a day's walk.
    assert 0.15 < rows["filter"]["crps"] < rows["seasonal naive"]["crps"]
    assert abs(rows["filter"]["coverage"] - 0.9) < 0.05
    assert rows["filter"]["crps"] == rows["filter, fixed"]["crps"]
    assert rows["filter"]["width"] != rows["filter, fixed"]["width"]
    week = document["week"]["columns"]["load"]
    assert week["y"] == np.round(y[1333 : 1333 + 168], 4).tolist()
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert rows["persistence"]["crps"] == pytest.approx(
        crps_points(y[1066:] - y[1065:-1], np.diff(y[:1066])).mean(), rel=1e-12
    )
    assert (
        document["columns"][0]["leads"]["24"]["persistence"] == document["columns"][0]["leads"]["24"]["seasonal naive"]
    )
    assert any("load" in line for line in tables_of("forecast-etth1", document))
    # Another future changes the scores, and nothing that was fitted.
    changed = run(np.concatenate([y[:1066], y[1066:] + rng.normal(size=534)]), "b.json")
    for key in ("structure", "parameters"):
        assert changed["columns"][0]["fit"][key] == document["columns"][0]["fit"][key]
    assert changed["columns"][0]["leads"]["1"]["filter"]["crps"] > rows["filter"]["crps"]
