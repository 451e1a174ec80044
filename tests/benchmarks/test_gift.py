"""GIFT-Eval's protocol: windows, forecasts from one pass over each series, and scores by hand."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

import rfa
from rfa.benchmarks.results_page.network import over_naive, unseen
from rfa.benchmarks.series import gift
from rfa.benchmarks.series.gift import score, seasonal_error, write_gift
from rfa.benchmarks.series.gift_data import Rows, Task, Window, last_windows, tasks
from rfa.benchmarks.series.gift_models import (
    ARIMA,
    COVERED,
    MODELS,
    NAIVE,
    REQUESTED,
    Quantiles,
    each,
    filled,
    naive_normal,
    served,
)

START = np.datetime64("2024-01-01T00:00:00")
HOURS = START + np.timedelta64(3_600, "s") * np.arange(17_420)


@pytest.mark.parametrize(("horizon", "windows"), [(48, 20), (480, 4), (720, 3)])
def test_windows_are_a_tenth_at_the_end(horizon: int, windows: int) -> None:
    columns = {"up": np.arange(17_420.0), "down": -np.arange(17_420.0)}
    found = last_windows(Rows(HOURS, columns), horizon)
    assert [one.series for one in found] == ["up", "down"] * windows
    assert found[-1].came[-1] == -17_419 and all(len(one.came) == len(one.future) == horizon for one in found)
    firsts = [one.came[0] for one in found[::2]]
    assert np.diff(firsts).tolist() == [horizon] * (windows - 1)
    assert all(one.history[-1] + 1 == one.came[0] and len(one.times) == len(one.history) for one in found[::2])
    assert all(one.future[0] - one.times[-1] == np.timedelta64(1, "h") for one in found)


def window_of(history: list[float], came: list[float]) -> Window:
    count = len(history)
    return Window("x", HOURS[:count], np.array(history), HOURS[count : count + len(came)], np.array(came))


def test_scores_by_hand() -> None:
    window = window_of([0.0, 1.0, 3.0, 6.0], [7.0, 9.0])
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


def test_missing_values_do_not_count() -> None:
    whole = window_of([0.0, 1.0, 3.0, 6.0], [7.0])
    gap = window_of([0.0, 1.0, 3.0, 6.0], [7.0, np.nan])
    constant = window_of([5.0] * 4, [7.0])

    def found(*windows: Window) -> gift.Score:
        task = Task("x", 1, list(windows))
        return score(task, list(each(naive_normal)(task)))

    one, other = found(whole), found(gap)
    assert (one.mase, one.wql) == pytest.approx((other.mase, other.wql), rel=1e-12)
    np.testing.assert_array_equal(one.inside, other.inside)
    assert found(whole, constant).mase == pytest.approx(found(whole).mase)  # no scale, so no MASE


def test_the_scale_skips_gaps_and_is_of_rows_in_short_histories() -> None:
    assert seasonal_error(np.array([1.0, np.nan, 4.0, 5.0]), 1) == 1
    assert seasonal_error(np.array([1.0, 2.0, 4.0]), 2) == 3
    assert seasonal_error(np.array([1.0, 2.0, 4.0]), 12) == 1.5
    assert filled(np.array([np.nan, 1.0, np.nan, 3.0])).tolist() == [1.0, 1.0, 1.0, 3.0]


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
    for name in (NAIVE, "auto", "series", "series, as trained", "default"):
        (forecast,) = MODELS[name](task)
        assert forecast.quantiles.shape == (48, 9) and forecast.intervals.shape == (48, len(COVERED), 2)
        assert (np.diff(forecast.quantiles, axis=1) > 0).all()
        assert (np.diff(forecast.intervals[:, :, 1], axis=1) > 0).all()
        (other,) = MODELS[name](task._replace(windows=[window._replace(came=window.came + 50)]))
        np.testing.assert_array_equal(other.quantiles, forecast.quantiles)
    assert score(task, list(MODELS["auto"](task))).wql < 0.05


@pytest.mark.parametrize("model", ["auto", "series", "default"])
@pytest.mark.parametrize("is_monthly", [False, True], ids=["hours", "months"])
def test_one_pass_equals_a_pass_for_each_window(model: str, is_monthly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forecasts from the states at the origins are those of `rfa.forecast` on each whole history, to the bit."""
    count, horizon, season = (130, 5, 12) if is_monthly else (180, 6, 24)
    months = (np.datetime64("2001-03", "M") + np.arange(count)).astype("datetime64[s]")
    values = np.sin(2 * np.pi * np.arange(count) / season) + np.random.default_rng(3).normal(0, 0.2, count)
    values[20:24] = np.nan
    rows = Rows(months if is_monthly else HOURS[:count], {"a": values, "b": 50 - 7 * values})
    task = Task("x", season, last_windows(rows, horizon))
    assert len(task.windows) == 6
    filtered = []
    step = rfa.Streams.step
    monkeypatch.setattr(rfa.Streams, "step", lambda *given: (filtered.append(len(given[2])), step(*given))[1])
    for window, found in zip(task.windows, served(task, model=model), strict=True):
        whole = rfa.forecast(window.history, horizon, time=window.times, levels=REQUESTED, model=model)
        np.testing.assert_array_equal(found.quantiles[:, 4], whole["y_median"])
        np.testing.assert_array_equal(found.quantiles[:, 8], whole["y_high80"])
        for k, level in enumerate(COVERED):
            ends = np.stack([whole[f"y_{end}{100 * level:.12g}"] for end in ("low", "high")], axis=1)
            np.testing.assert_array_equal(found.intervals[:, k], ends)
    if not is_monthly:  # the lengths of months begin other states
        assert sum(filtered) == 2 * len(task.windows[-1].history)


def test_a_search_of_hours_is_held_against_the_naive_of_its_own_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The naive itself in AutoARIMA's place: their ratio is 1, on whatever windows both are."""
    hourly(tmp_path, count=9)
    monkeypatch.setitem(MODELS, ARIMA, each(naive_normal))
    monkeypatch.setattr(gift, "ARIMA_MOST", 4)
    document = write_gift(tmp_path, tmp_path / "gift.json", (NAIVE, ARIMA))
    kept = document["tasks"]["m4_hourly"]
    assert (kept[NAIVE]["windows"], kept[ARIMA]["windows"]) == (9, 3)
    assert kept[ARIMA]["wql"] != kept[NAIVE]["wql"]
    assert over_naive(document, ARIMA) == (1.0, 1.0)
    monkeypatch.setattr(gift, "FITTED_MOST", 8)
    assert ARIMA not in write_gift(tmp_path, tmp_path / "short.json", (NAIVE, ARIMA))["tasks"]["m4_hourly"]


def test_published_results_are_relative_to_the_naive_of_the_same_task(tmp_path: Path) -> None:
    hourly(tmp_path)
    (tmp_path / "gift" / "published").mkdir(parents=True)
    with (tmp_path / "gift" / "published" / "TiRex.csv").open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["dataset", "eval_metrics/MASE[0.5]", "eval_metrics/mean_weighted_sum_quantile_loss"])
        write.writerows([["m4_hourly/H/short", 0.5, 0.25], ["solar/H/short", 9, 9]])
    document = write_gift(tmp_path, tmp_path / "gift.json", (NAIVE,))
    assert document["published"]["models"] == {"TiRex, 35 M": {"m4_hourly": [0.5, 0.25]}}
    assert len(document["published"]["commit"]) == 40
    assert (document["seen"], unseen(document)) == (["m4_hourly"], [])
    usual = document["tasks"]["m4_hourly"][NAIVE]
    assert over_naive(document, "TiRex, 35 M") == pytest.approx((0.5 / usual["mase"], 0.25 / usual["wql"]))
