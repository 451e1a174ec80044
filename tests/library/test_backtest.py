"""`rfa.backtest`: figures by hand, no look ahead, and the alarms of `rfa.detect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rfa
from rfa.data import Series
from rfa.library.backtest import judge
from rfa.library.windows import read_windows
from rfa.runtime.outputs import ForecastChecks, Incident
from rfa.runtime.uncertainty.incidents import Incidents

START = pd.Timestamp("2026-03-01")
ROWS = 1000
SPIKES = {"hall": (300, 700), "attic": (500,)}


def rooms() -> pd.DataFrame:
    """Two rooms with spikes."""
    draw = np.random.default_rng(3)
    frames = []
    for room, spikes in SPIKES.items():
        values = draw.normal(size=ROWS)
        values[list(spikes)] += 30
        frames.append(pd.DataFrame({"room": room, "t": START + np.arange(ROWS) * pd.Timedelta("1min"), "x": values}))
    return pd.concat(frames, ignore_index=True)


def minute(row: int) -> pd.Timestamp:
    return START + row * pd.Timedelta("1min")


def labels(path: Path) -> Path:
    """A window around each spike, two minutes early, and one where nothing is."""
    windows = [(room, minute(row - 2), minute(row + 5)) for room, spikes in SPIKES.items() for row in spikes]
    windows.append(("attic", minute(900), minute(910)))
    pd.DataFrame(windows, columns=["room", "from", "to"]).to_csv(path, index=False)
    return path


OPTIONS: dict[str, Any] = {"by": "room", "time": "t", "model": "auto"}


def test_alarms_are_those_of_detect_and_coverage_is_counted() -> None:
    frame = rooms()
    found = rfa.backtest(frame, 0.001, horizon=["10min"], **OPTIONS)
    detected = rfa.detect(frame, 0.001, **OPTIONS)
    assert found.alarms == detected.raised and found.expected == pytest.approx(detected.expected)
    assert [one.name for one in found.series] == ["hall", "attic"]
    for one in found.series:
        rows = detected.rows[detected.rows["room"] == one.name]
        own = frame[frame["room"] == one.name].reset_index()
        assert own["t"][np.flatnonzero(one.is_alarm)].tolist() == rows["t"].tolist()
        assert set(np.flatnonzero(one.is_alarm)) >= set(SPIKES[one.name])
        assert set(one.coverage) == {"step", "600s"} and one.scored["600s"] > 900
        assert 0.85 < (one.coverage["600s"]["0.9"] or 0) < 0.95
    assert found.coverage["step"]["0.9"] == pytest.approx(
        np.mean([one.coverage["step"]["0.9"] for one in found.series])
    )
    assert found.scores is None and found.nab is None


def test_the_same_twice_and_no_look_ahead(tmp_path: Path) -> None:
    frame, windows = rooms(), labels(tmp_path / "labels.csv")
    first, second = (rfa.backtest(frame, 0.002, windows=windows, **OPTIONS).document() for _ in range(2))
    assert first == second
    cut = frame[frame["t"] < minute(600)]
    whole, part = rfa.backtest(frame, 0.002, **OPTIONS), rfa.backtest(cut, 0.002, **OPTIONS)
    for one, other in zip(whole.series, part.series, strict=True):
        assert np.array_equal(one.is_alarm[:600], other.is_alarm)


def test_windows_are_scored(tmp_path: Path) -> None:
    found = rfa.backtest(rooms(), 0.0005, windows=labels(tmp_path / "labels.csv"), **OPTIONS)
    hall, attic = found.series
    assert hall.scores is not None and attic.scores is not None and found.scores is not None
    assert (hall.scores.windows, hall.scores.found, hall.scores.recall) == (2, 2, 1.0)
    assert (attic.scores.windows, attic.scores.found, attic.scores.recall) == (2, 1, 0.5)
    assert hall.scores.delays == (120.0, 120.0) and found.scores.delay == 120.0
    assert found.scores.recall == 0.75
    assert found.scores.true_incidents == 3 and found.scores.precision == 3 / found.scores.incidents
    assert found.nab is not None and 70 < found.nab["standard"] < 75
    assert "3 of 4 windows found" in str(found)


def test_windows_of_pairs_are_of_all_series() -> None:
    seconds = [(minute(row).timestamp() - 60, minute(row).timestamp() + 60) for row in (500, 300, 700)]
    found = rfa.backtest(rooms(), 0.0005, windows=seconds, **OPTIONS)
    assert [one.scores and (one.scores.windows, one.scores.found) for one in found.series] == [(3, 2), (3, 1)]


def test_figures_of_a_small_series_by_hand() -> None:
    times, is_alarm = np.arange(40.0), np.zeros(40, bool)
    is_alarm[[3, 12, 22, 24, 35]] = True  # the first is in the probation of 6 rows
    incidents = [
        Incident(k, float(k), float(end), 1, ["value"], 0, float(k), 0.0, None, 0.0, None)
        for k, end in ((3, 3), (12, 12), (22, 24), (35, 35))
    ]
    checks = ForecastChecks(0, {}, None, 0.0, None, [], [], None, 0, [], [])
    series = Series(times, np.zeros((40, 1)), ("x",), None, False)
    found = judge("x", series, is_alarm, Incidents(incidents), checks, [(0.0, 4.0), (20.0, 29.0), (31.0, 33.0)])
    assert found.scores is not None
    assert (found.scores.windows, found.scores.found) == (2, 1)
    assert (found.scores.incidents, found.scores.true_incidents) == (3, 1)
    assert found.scores.delays == (2.0,)


def test_windows_without_rows_are_counted() -> None:
    found = rfa.backtest(rooms(), 0.0005, windows=[(0.0, 60.0)], **OPTIONS)
    assert found.scores is not None
    assert (found.scores.windows, found.scores.empty) == (0, len(found.series))
    assert found.scores.precision is None and found.scores.recall is None and found.nab is None
    assert f"{len(found.series)} windows contain no scored row" in str(found)


def test_windows_of_no_series_are_named(tmp_path: Path) -> None:
    path = labels(tmp_path / "labels.csv")
    path.write_text(path.read_text().replace("hall", "hal") + f",{minute(10)},{minute(20)}\n")
    found = rfa.backtest(rooms(), 0.0005, windows=path, **OPTIONS)
    assert found.unmatched == ("window 1, room hal", "window 2, room hal")
    assert "no series matches window 1, room hal and 1 more" in str(found)
    assert found.document()["unmatched"] == list(found.unmatched)
    by_room = {one.name: one.scores for one in found.series}
    assert by_room["hall"] is not None and by_room["hall"].empty == 1  # that without a room is of both
    path.write_text("room,from,to\nhal,2026-03-01,2026-03-02\n")
    with pytest.raises(ValueError, match="no window matches a series; compare the keys of the series with those of"):
        rfa.backtest(rooms(), windows=path, **OPTIONS)


def test_windows_that_overlap_are_one(tmp_path: Path) -> None:
    windows = read_windows([(5.0, 7.0), (1.0, 3.0), (2.0, 4.0)], "UTC")
    assert windows.of((), ()) == [(1.0, 4.0), (5.0, 7.0)]
    zone = tmp_path / "zone.csv"
    zone.write_text("from,to\n2026-03-01 00:00,2026-03-01 01:00\n")
    ((begin, end),) = read_windows(zone, "Europe/Berlin").of((), ())
    assert (begin, end - begin) == (pd.Timestamp("2026-02-28 23:00").timestamp(), 3600.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from,until\n1,2\n", "the columns from and to are required"),
        ("from,to\n5,2\n6,7\n", "window 1 ends before it starts"),
        ("from,to\nx,2026-03-01\n", "from"),
    ],
)
def test_bad_windows_name_themselves(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        rfa.backtest(rooms(), windows=path, **OPTIONS)
