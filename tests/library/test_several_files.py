"""Folders, patterns and lists of files in Python and in `rfa inspect`: each file is read by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rfa as library
from tests.cli.commands import rfa
from tests.data.kind import HOURS, VALUES

SCORES = ["y_mean", "y_low90"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, sign in (("a.csv", ";"), ("b.csv", ",")):
        rows = [f"{time:%Y-%m-%d %H:%M}{sign}{value}" for time, value in zip(HOURS, VALUES, strict=True)]
        (tmp_path / name).write_text("\n".join([f"time{sign}y", *rows]))
    return tmp_path


@pytest.mark.parametrize("pattern", ["", "*.csv", "[ab].csv"])
def test_folders_and_patterns_give_the_results_of_each_file(folder: Path, pattern: str) -> None:
    found: Any = library.forecast(str(folder / pattern) if pattern else folder, 3, model="auto")
    assert found["file"].tolist() == 3 * ["a.csv"] + 3 * ["b.csv"]
    alone: Any = library.forecast(folder / "b.csv", 3, model="auto")
    pd.testing.assert_frame_equal(found[3:].drop(columns="file").reset_index(drop=True), alone)


def test_a_list_of_files_is_filtered_and_searched_for_alarms(folder: Path) -> None:
    files = [folder / "a.csv", folder / "b.csv"]
    found: Any = library.filter(files, model="auto")
    assert len(found) == 2 * len(VALUES) and found["file"].nunique() == 2
    detected: Any = library.detect(files, 0.2, model="auto")
    parts = [library.detect(file, 0.2, model="auto") for file in files]
    assert detected.raised == sum(part.raised for part in parts) == len(detected.rows)
    assert detected.observations == sum(part.observations for part in parts)
    assert detected.rows.columns[0] == detected.incidents.columns[0] == "file"


def test_a_file_that_cannot_be_read_is_left_out_with_a_warning(folder: Path) -> None:
    (folder / "c.csv").write_text("time,y\n")
    with pytest.warns(UserWarning, match=r"left out: file 'c.csv': the file has a header but no rows") as caught:
        found: Any = library.forecast(str(folder / "*.csv"), 1, model="auto")
    assert len(found) == 2 and any(warning.filename == __file__ for warning in caught)
    with pytest.raises(ValueError, match=r"file 'c.csv'"):
        library.forecast(str(folder / "c*"), 1)
    with pytest.raises(ValueError, match="no file matches"):
        library.forecast(str(folder / "*.parquet"), 1)


def test_results_are_arrow_tables_without_pandas(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    found: Any = library.forecast(str(folder / "*.csv"), 2, model="auto")
    assert found["file"].to_pylist() == ["a.csv", "a.csv", "b.csv", "b.csv"]


def test_inspect_shows_each_file(folder: Path) -> None:
    (folder / "c.csv").write_text("time,y\n")
    code, out, _ = rfa("inspect", folder)
    assert code == 0 and out.count("file     ") == 3 and "failed   the file has a header but no rows" in out
    code, out, _ = rfa("inspect", folder / "*.csv", "--json")
    files = json.loads(out)["files"]
    assert [len(document.get("series", [])) for document in files.values()] == [1, 1, 0]
    code, _, err = rfa("inspect", folder / "c.csv", folder / "c.csv")
    assert code == 1 and "none of the 1 files" in err


def test_models_of_several_files_are_named_after_them_and_used_for_them(tmp_path: Path) -> None:
    for name, level in (("a", 0), ("b", 50)):
        rows = [f"2024-01-01T{k // 60:02d}:{k % 60:02d},{level + k * 7 % 5},{level - k % 3}" for k in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["time,x,y", *rows]) + "\n")
    models = library.fit(tmp_path, config={"max_harmonics": 1, "max_free_modes": 0, "iterations": 2})
    assert list(models) == ["a.csv / x", "a.csv / y", "b.csv / x", "b.csv / y"]
    found = library.forecast(tmp_path, 1, system=models)
    alone = library.fit(tmp_path / "b.csv", config={"max_harmonics": 1, "max_free_modes": 0, "iterations": 2})
    expected = library.forecast(tmp_path / "b.csv", 1, system=alone)
    assert found["file"].tolist() == ["a.csv", "b.csv"] and found["x_mean"][1] == expected["x_mean"][0]
    tested = library.backtest(f"{tmp_path}/*.csv", 0.01, model="auto")
    assert [one.name.partition(":")[0] for one in tested.series] == ["a.csv", "b.csv"]
