"""Rows are counted only where nothing in a file looks like a time; refusals quote options that mend them."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta

import pytest

from rfa.data import ReadOptions, load_table, read_all, read_frame
from rfa.data.file_formats import read_table
from tests.data.kind import DAYS, HOURS, VALUES, seconds, table

RISING = [round(3.5 + k * k / 7, 3) for k in range(len(VALUES))]
REFUSED = {
    "times of day": (table(["a", "b"], VALUES, [f"about {t:%H:%M}" for t in HOURS]), "may be a time"),
    "a first column that rises": (table(["a", "b"], RISING, VALUES), "increases and may be the time"),
    "numbers as names": (
        table(["x", "2.5", "3.75", "7.5"], ["a", "b", "c"] * 10, VALUES, VALUES[::-1], [v + 1 for v in VALUES]),
        "are numbers or times"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_be_a_time_is_refused_with_a_column_that_is_read(name: str) -> None:
    content, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as refusal:
        read_frame(read_table(content))
    found = re.search(r"--column ('[^']*'|\S+)", str(refusal.value))
    assert found is not None
    (column,) = shlex.split(found[1])
    (series,) = read_frame(read_table(content), columns=[column]).values()
    assert series.names == (column,) and len(series.times) == len(VALUES) and not series.is_dated


def test_the_first_column_can_be_named_as_the_time() -> None:
    (series,) = read_frame(read_table(REFUSED["a first column that rises"][0]), time="a").values()
    assert series.times.tolist() == RISING and series.names == ("b",)


def test_rows_are_counted_where_nothing_looks_like_a_time() -> None:
    (series,) = read_frame(read_table(table(["b", "c"], VALUES, RISING[::-1]))).values()
    assert series.names == ("b", "c") and series.times.tolist() == list(map(float, range(len(VALUES))))


def test_days_that_end_at_midnight_go_on() -> None:
    rows = "\n".join(f"{t:%I:%M:%S %p}  all  {v}  {v + 1:.2f}" for t, v in zip(HOURS, VALUES, strict=True))
    text = f"Linux 5.15 (web) \t01/15/2024 \t_x86_64_\n\n{HOURS[-1]:%I:%M:%S %p}  CPU  %user  %idle\n{rows}\n"
    (series,) = read_frame(read_table(text.encode())).values()
    expected = [t + timedelta(days=14) for t in HOURS]
    assert series.times == pytest.approx(seconds(expected), abs=1e-6, rel=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'c'>]><a><r t='1'/><r t='2'/></a>", "defines entities"),
        (b"<?xml version='1.0'?><a><r></a>", "not valid XML"),
        (b"<?xml version='1.0'?><a/>", "no elements that repeat"),
        (b"<?xml version='1.0'?>" + b"<a>" * 60 + b"</a>" * 60, "nested deeper than 40 levels"),
        (b"<html><p>no table</p></html>", "this HTML has no table"),
        (b"-- dump\nINSERT INTO a VALUES (1,2),(3);", "rows of different lengths"),
        (b"-- dump\nINSERT INTO a VALUES (1,2);\nINSERT INTO b VALUES (1);", "tables 'a', 'b'"),
        (b"-- dump\nINSERT INTO a VALUES (1,'2", "is damaged"),
        (b"@attribute name string\n@data\na:b:1,2\n", "but a line has 2"),
    ],
)
def test_damaged_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_all(read_table(content), ReadOptions())


def test_html_tables_arff_and_repeated_headers_are_read(tmp_path) -> None:
    pairs = list(zip(DAYS, VALUES, strict=True))
    html = "<html><table><tr><th>date<th>y</tr>" + "".join(f"<tr><td>{t:%F}</td><td>{v}</td></tr>" for t, v in pairs)
    rows = [f"{t:%F},{v}" for t, v in pairs]
    arff = "\n".join(["@relation a", "@attribute date date", "@attribute y numeric", "@data", *rows])
    twice = "\n".join(["date,y", *rows[:9], "date,y", *rows[9:]])
    for name, text in {"page.xls": f"{html}</table></html>", "a.arff": arff, "twice.csv": twice}.items():
        (tmp_path / name).write_text(text)
        (series,) = read_frame(load_table(tmp_path / name)).values()
        assert series.names == ("y",) and series.values[:, 0].tolist() == VALUES
