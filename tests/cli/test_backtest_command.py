"""`rfa backtest`: the figures of `rfa.backtest`, a report and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rfa as package
from tests.cli.commands import rfa, rfa_json
from tests.library.test_backtest import labels, rooms

OPTIONS = ("--by", "room", "--time", "t", "--model", "auto")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rooms().to_csv(tmp_path / "rooms.csv", index=False)
    return tmp_path / "rooms.csv"


def test_figures_are_those_of_python(source: Path) -> None:
    windows = labels(source.with_name("labels.csv"))
    document = rfa_json("backtest", source, *OPTIONS, "--rate", "0.001", "--lead", "10min", "--windows", windows)
    expected = package.backtest(
        str(source), 0.001, horizon=["10min"], windows=windows, by="room", time="t", model="auto"
    ).document()
    for one, other in zip(document["series"], expected["series"], strict=True):
        assert one.pop("name") == f"rooms.csv: {other.pop('name')}"
    assert document == json.loads(json.dumps(expected))
    assert document["scores"]["found"] == 3


def test_a_report_and_a_picture_of_each_series(source: Path) -> None:
    report, figures = source.with_name("report.json"), source.with_name("figures")
    code, out, err = rfa("backtest", source, *OPTIONS, "--figures", figures, "--out", report)
    assert code == 0, err
    assert out.splitlines()[0] == "2 series, 2,000 observations"
    assert json.loads(report.read_text())["alarms"] >= 3
    assert sorted(path.name for path in figures.iterdir()) == ["rooms.csv_attic.png", "rooms.csv_hall.png"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rate", "often"), "--rate must"),
        (("--out", "report.csv"), "--out must end in .json"),
        (("--windows", "rooms.csv"), "the columns from and to are required"),
        (("--figures", "rooms.csv"), "--figures must be a directory, but 'rooms.csv' is a file"),
    ],
)
def test_one_line_says_what_is_wrong(
    source: Path, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    code, _, err = rfa("backtest", source, *OPTIONS, *options)
    assert code == 1 and message in err and len(err.splitlines()) == 1, err
