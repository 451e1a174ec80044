"""`rfa filter --stream`: Parquet to Parquet in parts, with the numbers of `rfa.filter_table`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import rfa as package
from rfa.cli import filter_stream
from tests.cli.commands import rfa

OPTIONS = ("--stream", "--by", "room", "--time", "t", "--model", "auto")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Rows of three series in the order of time."""
    draw = np.random.default_rng(4)
    table = pa.table({"room": ["a", "b", "c"] * 100, "t": np.repeat(np.arange(100.0), 3), "x": draw.normal(size=300)})
    parquet.write_table(table, tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


@pytest.mark.parametrize("rows", [7, 1000])
def test_the_parts_make_the_table(source: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_stream, "PART_ROWS", rows)
    out = source.with_name("out.parquet")
    code, _, err = rfa("filter", source, *OPTIONS, "--alarm", "0.05", "--min", "0", "--out", out)
    assert code == 0, err
    expected = package.filter_table(
        parquet.read_table(source), key="room", time="t", model="auto", alarm=0.05, minimum=0.0
    )
    assert parquet.read_table(out).equals(expected)
    assert err == f"3 series, 300 rows, {sum(expected['alarm'].to_pylist())} alarms → {out}\n"


def test_rows_out_of_order_are_counted(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = parquet.read_table(source)
    parquet.write_table(pa.concat_tables([table, table[:5]]), source)
    monkeypatch.setattr(filter_stream, "PART_ROWS", 300)
    out = source.with_name("out.parquet")
    code, _, err = rfa("filter", source, *OPTIONS, "--out", out)
    assert code == 0 and "305 rows, 5 rows have no estimates, because they are out of order or a cell is missing" in err
    assert parquet.read_table(out)["x_mean"].null_count == 5


def test_a_file_without_rows(source: Path) -> None:
    parquet.write_table(parquet.read_table(source)[:0], source)
    out = source.with_name("out.parquet")
    code, _, err = rfa("filter", source, *OPTIONS, "--out", out)
    assert code == 0, err
    assert parquet.read_table(out).num_rows == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stream", "--by", "room", "--time", "t"), "--stream requires --out"),
        (("--stream", "--time", "t", "--out", "o.parquet"), "--stream requires --by"),
        (("--stream", "--by", "room", "--out", "o.parquet"), "--stream requires --time"),
        ((*OPTIONS, "--out", "o.csv"), "--out must end in .parquet"),
        ((*OPTIONS, "--out", "o.parquet", "--smooth"), "--stream does not support --smooth"),
        ((*OPTIONS, "--out", "o.parquet", "--every", "1h"), "--stream does not support --known, --from"),
        ((*OPTIONS, "--out", "o.parquet", "--column", "y"), "there is no column 'y'"),
    ],
)
def test_one_line_says_what_is_wrong(
    source: Path, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    code, _, err = rfa("filter", source, *options)
    assert code == 1 and message in err and len(err.splitlines()) == 1


def test_another_file_is_no_parquet_file(source: Path) -> None:
    text = source.with_name("in.csv")
    text.write_text("room,t,x\na,0,1\n")
    code, _, err = rfa("filter", text, *OPTIONS, "--out", source.with_name("out.parquet"))
    assert code == 1 and "in.csv is not a Parquet file" in err
