"""GIFT-Eval's protocol: windows, and scores by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from rfa.benchmarks.results_page.network import over_naive
from rfa.benchmarks.results_page.page import tables_of
from rfa.benchmarks.series import gift
from rfa.benchmarks.series.gift import (
    ARIMA,
    COVERED,
    MODELS,
    NAIVE,
    Quantiles,
    Task,
    Window,
    ett_windows,
    naive_normal,
    score,
    tasks,
    write_gift,
)

HOURS = np.datetime64("2024-01-01T00:00:00") + np.timedelta64(3_600, "s") * np.arange(17_420)


@pytest.mark.parametrize(("horizon", "windows"), [(48, 20), (480, 4), (720, 3)])
def test_windows_are_a_tenth_at_the_end(horizon: int, windows: int) -> None:
    columns = {"up": np.arange(17_420.0), "down": -np.arange(17_420.0)}
    found = ett_windows(HOURS, columns, horizon)
    assert [one.series for one in found] == ["up", "down"] * windows
    assert found[-1].came[-1] == -17_419 and all(len(one.came) == horizon for one in found)
    firsts = [one.came[0] for one in found[::2]]
    assert np.diff(firsts).tolist() == [horizon] * (windows - 1)
    assert all(one.history[-1] + 1 == one.came[0] and len(one.times) == len(one.history) for one in found[::2])


def test_scores_by_hand() -> None:
    window = Window("x", HOURS[:4], np.array([0.0, 1.0, 3.0, 6.0]), np.array([7.0, 9.0]))
    quantiles = np.tile(np.arange(3.0, 12.0), (2, 1))  # the median is 7
    ends = np.stack([np.full((2, 5), 6.0), np.array([[8.0] * 5, [8.0, 8.5, 9.0, 9.5, 10.0]])], axis=2)
    found = score(Task("x", 1, [window]), [Quantiles(quantiles, ends)])
    assert found.mase == pytest.approx((0 + 2) / 2 / 2)  # errors of a season were 1, 2, 3
    losses = [
        2 * sum(max(q * (y - x), (q - 1) * (y - x)) for y in (7.0, 9.0))
        for q, x in zip(np.arange(1, 10) / 10, quantiles[0], strict=True)
    ]
    assert found.wql == pytest.approx(np.mean(losses) / 16)
    assert found.inside.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0]


def hourly(tmp_path: Path, count: int = 1) -> np.ndarray:
    (tmp_path / "m4").mkdir()
    rng = np.random.default_rng(0)
    series = 100 + 10 * np.sin(2 * np.pi * np.arange(348) / 24) + rng.normal(size=(count, 348))
    for part, rows in (("train", series[:, :300]), ("test", series[:, 300:])):
        with gzip.open(tmp_path / "m4" / f"Hourly-{part}.csv.gz", "wt") as file:
            file.write(
                "V1,V2\n"
                + "".join(",".join([f'"H{k}"', *map(str, values), ""]) + "\n" for k, values in enumerate(rows, 1))
            )
    return series[0]


def test_forecasts_have_their_form_and_see_nothing_of_the_window(tmp_path: Path) -> None:
    series = hourly(tmp_path)
    (task,) = tasks(tmp_path)
    (window,) = task.windows
    assert (task.name, task.season, window.series) == ("m4_hourly", 24, "H1")
    np.testing.assert_array_equal(window.history, series[:300])
    for model in (naive_normal, MODELS["auto"], MODELS["series"], MODELS["series, as trained"]):
        forecast = model(window, task.season)
        assert forecast.quantiles.shape == (48, 9) and forecast.intervals.shape == (48, len(COVERED), 2)
        assert (np.diff(forecast.quantiles, axis=1) > 0).all()
        assert (np.diff(forecast.intervals[:, :, 1], axis=1) > 0).all()
        other = model(window._replace(came=window.came + 50), task.season)
        np.testing.assert_array_equal(other.quantiles, forecast.quantiles)
    assert score(task, [MODELS["auto"](window, 24)]).wql < 0.05


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hourly(tmp_path)
    out = tmp_path / "gift.json"
    chosen = ("seasonal naive", "its points alone")
    first = write_gift(tmp_path, out, chosen)
    calls: list[str] = []
    monkeypatch.setitem(gift.MODELS, "its points alone", lambda *_: calls.append("again"))
    assert write_gift(tmp_path, out, chosen) == first and not calls
    assert any(line.startswith("| m4_hourly | seasonal naive |") for line in tables_of("gift", first))
    with pytest.raises(ValueError, match="no model 'x'"):
        write_gift(tmp_path, out, ("x",))
    with pytest.raises(ValueError, match="none of the tasks"):
        write_gift(tmp_path / "nothing", tmp_path / "other.json", chosen)


def test_a_search_of_hours_is_held_against_the_naive_of_its_own_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The naive itself in AutoARIMA's place: their ratio is 1, on whatever windows both are."""
    hourly(tmp_path, count=9)
    monkeypatch.setitem(gift.MODELS, ARIMA, naive_normal)
    monkeypatch.setattr(gift, "ARIMA_MOST", 4)
    document = write_gift(tmp_path, tmp_path / "gift.json", (NAIVE, ARIMA))
    kept = document["tasks"]["m4_hourly"]
    assert (kept[NAIVE]["windows"], kept[ARIMA]["windows"]) == (9, 3)
    assert kept[ARIMA]["wql"] != kept[NAIVE]["wql"]
    assert over_naive(document, ARIMA) == (1.0, 1.0)
