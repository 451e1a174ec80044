"""Columns that are known ahead: they halve the error of promotions, do no harm, and are the same in every form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import rfa
from rfa.cli.main import app
from rfa.library.models import mixture_runtime
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.series.covariates import CovariateInputs
from rfa.runtime.uncertainty.interface import FilterOptions
from tests.service.live import answer, bundled, replies_of, running

pytestmark = pytest.mark.anyio
ROWS, BEGIN = 240, 100


def sales(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and whether there is a promotion, which raises them by 60 %, and counts by 150 %."""
    rng, t = np.random.default_rng(seed), np.arange(float(ROWS))
    promotion = (rng.random(ROWS) < 0.1).astype(float)
    week = 1 + 0.3 * np.sin(2 * np.pi * t / 7)
    level = {"level": 100 + 0 * t, "week": 100 * week, "trend": (60 + 0.4 * t) * week, "counts": 4 + 0 * t}[kind]
    expected = level * (1 + (1.5 if kind == "counts" else 0.6) * promotion)
    return rng.poisson(expected) * 1.0 if kind == "counts" else expected * np.exp(rng.normal(0, 0.06, ROWS)), promotion


def forecasts(values: np.ndarray, known: np.ndarray | None, lead: int = 1) -> np.ndarray:
    """Medians `lead` rows ahead, by the row that they are for, NaN for the first ones."""
    runtime, times = mixture_runtime(1), np.arange(float(len(values)))
    inputs = None
    if known is not None:
        runtime = runtime.with_covariates(known.shape[1])
        inputs = CovariateInputs(times, known, (float(lead),), 1.0)
    options = FilterOptions(times, values[:, None], np.ones(len(values)), (0.9,), (float(lead),), inputs=inputs)
    steps = FilteredSequence.collect(runtime.work(options)).pieces
    moments = np.concatenate([step.outputs.moments[:, 0, 2, 0] for step in steps])
    return np.concatenate([np.full(lead, np.nan), moments[:-lead]])


@pytest.mark.parametrize("kind", ["level", "week", "trend", "counts"])
@pytest.mark.parametrize("lead", [1, 7])
def test_the_error_of_promoted_rows_is_halved(kind: str, lead: int) -> None:
    without, with_covariates, elsewhere = [], [], []
    for seed in range(3):
        values, promotion = sales(kind, seed)
        plain, found = forecasts(values, None, lead), forecasts(values, promotion[:, None], lead)
        on = (promotion > 0) & (np.arange(ROWS) >= BEGIN)
        off = (promotion == 0) & (np.arange(ROWS) >= BEGIN)
        scale = 1 / values.mean()
        without.append(scale * np.abs(values - plain)[on].mean())
        with_covariates.append(scale * np.abs(values - found)[on].mean())
        elsewhere.append(np.abs(values - found)[off].mean() / np.abs(values - plain)[off].mean())
    # Counts have noise that no forecast knows.
    assert np.mean(with_covariates) <= (0.6 if kind == "counts" else 0.5) * np.mean(without)
    assert np.mean(elsewhere) <= 1.02


def test_columns_that_say_nothing_do_no_harm() -> None:
    """Neither noise nor a random walk nor rare ones raise the error by more than 1 %."""
    ratios = []
    for seed in range(4):
        values, _ = sales("week", seed)
        rng = np.random.default_rng(100 + seed)
        makers = (
            rng.normal(size=ROWS), rng.normal(size=ROWS).cumsum(), (rng.random(ROWS) < 0.1) * 1.0, rng.normal(size=ROWS)
        )  # fmt: skip
        known = np.stack(makers, axis=1)
        errors = [np.abs(values - forecasts(values, one))[BEGIN:].mean() for one in (None, known)]
        ratios.append(errors[1] / errors[0])
    assert np.mean(ratios) <= 1.01


async def test_every_form_gives_the_same_numbers(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """As rows, columns, in two requests, live, in Python and by the command."""
    values, promotion = sales("week", 1)
    values, later = values[:120].round(2), np.array([0.0, 1.0, 0.0])
    known = [*promotion[:120], *later]
    body = {"values": {"y": values.tolist()}, "ahead": 3, "known": {"promo": known}, "levels": [0.5, 0.9]}
    reply = await answer(client, {**body, "return_state": True})
    mean = reply["ahead"]["mean.y"]
    assert mean[1] > mean[0] + 30 and reply["warnings"] == []

    frame = pd.DataFrame({"y": [*values, *[np.nan] * 3], "promo": known})
    found = rfa.forecast(frame, 3, known="promo")
    assert found["y_mean"].tolist() == mean
    assert found.index.tolist() == [120, 121, 122]
    frame["promo"] = ["sale" if promoted else None for promoted in known]
    assert rfa.forecast(frame, 3, known="promo")["y_mean"].tolist() == mean

    file = tmp_path / "sales.csv"
    frame.assign(promo=known).to_csv(file, index=False)
    run = CliRunner().invoke(app, ["forecast", str(file), "--known", "promo", "--horizon", "3", "--json"])
    document = json.loads(run.stdout.splitlines()[-1])
    assert [point["mean"][0] for point in document["forecast"]] == mean

    first = {"observations": [[y] for y in values[:70]], "known": {"promo": known[:80]}, "return_state": True}
    state = (await answer(client, {**first, "horizon": [1, 3]}))["state"]
    second = {"observations": [[y] for y in values[70:]], "known": {"promo": known[70:]}, "state": state}
    parts = await answer(client, {**second, "horizon": [1, 3]})
    whole = await answer(client, {"observations": [[y] for y in values], "known": {"promo": known}, "horizon": [1, 3]})
    assert parts["steps"] == whole["steps"][70:]

    stream: Any = rfa.Stream(horizon=[1, 3], known=["promo"])
    steps = [
        stream.update(None, y, known={"promo": [known[k], known[k + 1], known[k + 3]]}) for k, y in enumerate(values)
    ]
    assert [step.mean for step in steps] == [step["mean"] for step in whole["steps"]]
    assert steps[-1].forecast[1].mean == whole["steps"][-1]["forecast"][1]["mean"]
    resumed = rfa.Stream.resume(stream.state)
    for one in (stream, resumed):
        assert [point.mean for point in one.forecast(3, known={"promo": later.tolist()})][1][0] > mean[0] + 30
    again, other = (one.update(None, 1.0, known={"promo": 1.0}) for one in (stream, resumed))
    assert again.mean == other.mean and again.anomaly == other.anomaly


def test_a_live_stream_takes_values_of_each_horizon() -> None:
    values, promotion = sales("level", 2)
    sent = [{"y": [values[k]], "known": {"promo": [promotion[k], promotion[k + 1]]}} for k in range(60)]
    wrong = {"y": [1.0], "known": {"price": [1.0]}}
    with running(bundled("series")) as live:
        _, *frames, refused = replies_of(live.url, {"horizon": [1], "known": ["promo"]}, *sent, wrong)
        assert (refused["error"]["param"], refused["error"]["code"]) == ("known.price", "known_mismatch")
        rows = {"observations": [[y] for y in values[:60]], "known": {"promo": promotion[:61].tolist()}, "horizon": [1]}
        assert frames == httpx.post(f"{live.url}/filter", json=rows).json()["steps"]


def test_late_frames_with_known_columns_give_the_numbers_of_the_order_of_time() -> None:
    values, promotion = sales("level", 2)
    with running(bundled("series")) as live:
        states: list[Any] = []
        for order in (range(40), [*range(20), *range(21, 30), 20, *range(30, 40)]):
            known = [{"promo": [promotion[k], promotion[k + 1]]} for k in order]
            sent = [{"t": float(k), "y": [values[k]], "known": one} for k, one in zip(order, known, strict=True)]
            states += replies_of(live.url, {"horizon": [1], "known": ["promo"], "late": {"window": 20.0}}, *sent)[1:]
        assert states[60 + 9]["late"] and states[60 + 9]["recomputed"] == 9
        assert states[40 + 30 :] == states[30:40]


async def test_many_series_may_each_have_columns_of_their_own(client: httpx.AsyncClient) -> None:
    values, promotion = sales("level", 3)
    one = {"values": {"y": values.tolist()}, "known": {"promo": [*promotion, 1.0]}}
    reply = await answer(client, {"series": {"a": one, "b": {"values": one["values"]}}, "ahead": 1})
    alone = await answer(client, {**one, "ahead": 1})
    assert reply["series"]["a"]["ahead"] == alone["ahead"] != reply["series"]["b"]["ahead"]


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"known": {"p": [1.0, 2.0]}}, "known.p", "must have at least 4 values"),
        ({"known": {"y": [1.0] * 4}}, "known.y", "is also a column of values"),
        ({"known": {"p": [1.0] * 4, "q": [1.0] * 5}}, "known", "same number of values"),
        ({"known": {"p": [1.0] * 4}, "model": "auto"}, "known", "does not support columns whose future values are"),
        ({"known": {"p": [1.0] * 4}, "model": "linear"}, "known", "does not support columns whose future values are"),
        ({"known": {f"p{k}": [1.0] * 4 for k in range(17)}}, "known", "at most 16"),
        ({"known": {"p": [1.0] * 4}, "alarm": {"rate": 0.01, "range": [0, 1]}}, "alarm.range", "combined with known"),
    ],
)
async def test_what_cannot_be_is_refused(
    client: httpx.AsyncClient, change: dict[str, Any], param: str, words: str
) -> None:
    values = {"values": {"y": [1.0, 2.0, 3.0]}}
    if change.get("model") == "linear":
        values = {"values": {"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]}}
    reply = await client.post("/filter", json={**values, "ahead": 1, **change})
    error = reply.json()["error"]
    assert reply.status_code == 422 and error["param"] == param and words in error["message"]


def test_bad_arguments_name_the_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"y": np.arange(20.0), "kind": [f"word {k}" for k in range(20)]})
    with pytest.raises(ValueError, match="column 'kind' has 20 categories, more than the limit of 12"):
        rfa.forecast(frame, 3, known="kind")
    with pytest.raises(ValueError, match="column 'y' is specified with both column and known"):
        rfa.forecast(frame, 3, columns="y", known="y")
    with pytest.raises(ValueError, match="no column is called 'promo'"):
        rfa.forecast(frame[["y"]], 3, known="promo")
    for call in (
        lambda: rfa.detect(frame.assign(z=1.0)[["y", "z"]], range=(0, 1), known="z"),
        lambda: rfa.Stream(known=["a"], alarm={"rate": 0.01, "range": (0, 1)}),
    ):
        with pytest.raises(ValueError, match=r"alarm\.range cannot be combined with known; leave out one of them"):
            call()
    with pytest.raises(ValueError, match=r"known contains 'b', which is not .*; its known columns are a"):
        rfa.Stream(known=["a"]).update(None, 1.0, known={"b": 1.0})
    with pytest.raises(ValueError, match=r"known\['a'\] must contain up to 1 numbers"):
        rfa.Stream(known=["a"]).update(None, 1.0, known={"a": [1.0, 2.0]})
