"""The data sets of GIFT-Eval: small files in the form of the sources, and the manifest."""

from __future__ import annotations

import gzip
import struct
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rfa.benchmarks.series import gift_sources
from rfa.benchmarks.series.files import read_r_matrix
from rfa.benchmarks.series.gift_data import FREQUENCIES, SETS, Rows, blocks, periods, tasks
from rfa.benchmarks.series.gift_sources import Source, bring


def table(path: Path, first: str, step: str, columns: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(exist_ok=True)
    count = len(next(iter(columns.values())))
    pd.DataFrame(columns, pd.date_range(first, periods=count, freq=step, name="date")).to_csv(path)


def r_matrix(path: Path, columns: np.ndarray, kind: int) -> None:
    """Write a matrix `[series, rows]` as R does: 13 is of int32, 14 of float64."""

    def text(word: bytes) -> bytes:
        return struct.pack(">iii", 1, 9, len(word)) + word

    values = np.where(np.isnan(columns), -(2**31), columns).astype(">i4") if kind == 13 else columns.astype(">f8")
    content = b"RDX2\nX\n" + struct.pack(">iiii", 2, 0x20601, 0x20300, 0x402) + text(b"sales")
    content += struct.pack(">ii", kind | 0x200, columns.size) + values.tobytes() + struct.pack(">i", 0x402)
    content += text(b"dim") + struct.pack(">iiii", 13, 2, columns.shape[1], columns.shape[0])
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content))


@pytest.mark.parametrize("kind", [13, 14])
def test_an_r_matrix(tmp_path: Path, kind: int) -> None:
    columns = np.arange(6.0).reshape(2, 3)
    if kind == 13:
        columns[1, 2] = np.nan
    r_matrix(tmp_path / "x.rda", columns, kind)
    np.testing.assert_array_equal(read_r_matrix(tmp_path / "x.rda"), columns)
    (tmp_path / "y.rda").write_bytes(gzip.compress(b"RDA3"))
    with pytest.raises(ValueError, match="version 2"):
        read_r_matrix(tmp_path / "y.rda")


def test_coarser_rows() -> None:
    days = np.datetime64("2024-02-27", "s") + np.timedelta64(86_400, "s") * np.arange(8)
    rows = Rows(days, {"a": np.array([1.0, 2, 3, 4, 5, np.nan, 7, 8])})
    assert blocks(rows, 3).columns["a"][0] == 2 and np.isnan(blocks(rows, 3).columns["a"][1])
    assert blocks(rows, 3, np.nansum).columns["a"].tolist() == [6, 9]
    assert blocks(rows, 3).times.tolist() == days[[0, 3]].tolist()
    found = periods(rows, "MS", "sum")
    assert found.columns["a"].tolist() == [6, 24]
    assert found.times.tolist() == np.array(["2024-02-01", "2024-03-01"], "datetime64[s]").tolist()


def written(data: Path) -> None:
    """Write a short file of each set."""
    rng = np.random.default_rng(0)
    for name in ("ETTm1", "ETTm2"):
        table(data / "ett" / f"{name}.csv.gz", "2016-07-01", "15min", {"OT": rng.normal(size=14_500)})
    table(data / "gift" / "weather.csv.gz", "2020-01-01 00:10", "10min", {"T (°C)": rng.normal(size=9_000)})
    pd.DataFrame({"date": pd.date_range("1969-01-01", periods=900), "births": rng.integers(50, 90, 900)}).to_csv(
        data / "gift" / "Births.csv"
    )
    r_matrix(data / "gift" / "SaugeenDay.rda", rng.normal(size=(1, 900)), 14)
    r_matrix(data / "gift" / "hospital.rda", rng.normal(size=(3, 84)), 14)
    r_matrix(data / "gift" / "carparts.rda", np.array([[1.0] * 50 + [np.nan]] * 2), 13)
    sales = {"QTY_B1_1": rng.poisson(3, 400), "PROMO_B1_1": np.zeros(400)}
    table(data / "gift" / "hierarchical_sales_data.csv", "2014-01-02", "D", sales)
    seconds = {f"Shop:{name}": rng.normal(size=9_600) for name in ("latency.mean", "latency.sum", "calls.sum")}
    table(data / "gift" / "Application.csv", "2023-03-13 10:01:50", "10s", seconds)
    orders = {name: rng.normal(size=9_000) for name in ("Weekly average order cycle time", "down", "activity_Create")}
    table(data / "gift" / "L2C.csv", "2020-11-01 00:00+00:00", "5min", orders)


def test_each_set_has_the_tasks_of_its_frequencies(tmp_path: Path) -> None:
    written(tmp_path)
    found = {task.name: task for task in tasks(tmp_path)}
    assert {name.split("/")[0] for name in found} == set(SETS) and len(found) == 42
    for name, task in found.items():
        _, frequency, term = name.split("/")
        season, shortest = FREQUENCIES[frequency]
        horizon = shortest * {"short": 1, "medium": 10, "long": 15}[term]
        assert task.season == season and {len(one.came) for one in task.windows} == {horizon}
        assert all((np.diff(one.times) > np.timedelta64(0)).all() for one in task.windows)
    assert {one.series for one in found["bizitobs_application/10S/short"].windows} == {
        "Shop:latency.mean", "Shop:calls.sum",
    }  # fmt: skip
    assert len({one.series for one in found["bizitobs_l2c/H/short"].windows}) == 2
    weather = found["jena_weather/H/short"].windows[-1]
    assert weather.future[-1] == np.datetime64("2020-03-03T11:00:00")  # the last hour is incomplete
    assert np.isnan(found["car_parts/M/short"].windows[0].came[-1])


def test_files_are_taken_at_their_commit_and_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clones" / "some+where"
    clone.mkdir(parents=True)

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=clone, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    for text in ("first", "second"):
        (clone / "a.csv").write_text(text)
        git("add", "a.csv")
        git("commit", "-qm", text)
    monkeypatch.setattr(gift_sources, "COMMITS", {"some/where": git("rev-parse", "HEAD~1")})
    sources = [Source("some/where", "a.csv", target, "") for target in ("x/a.csv", "x/a.csv.gz")]
    bring(tmp_path, tmp_path / "clones", sources)
    assert (tmp_path / "x" / "a.csv").read_text() == "first"
    assert gzip.decompress((tmp_path / "x" / "a.csv.gz").read_bytes()) == b"first"
