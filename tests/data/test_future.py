"""The rows that come next, and how their times are written."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rfa.data import ReadOptions, future_times, read_all, read_frame, write_clock
from rfa.data.durations import SECONDS, duration
from rfa.data.file_formats import read_table
from rfa.data.series import Series
from rfa.data.table import Table
from rfa.data.time_formats import DATE_FORMATS, JOINTS, TIME_FORMATS, ZONES, parse
from rfa.data.write_times import write_times
from tests.data.kind import Kind
from tests.data.test_kinds import KINDS


def series_of(*cells: object, zone: str = "UTC", time_format: str | None = None) -> tuple[Series, pa.Table]:
    table = pa.table({"time": list(cells), "y": [float(k) for k in range(len(cells))]})
    return read_frame(table, zone=zone, time_format=time_format)[()], table


@pytest.mark.parametrize(
    ("cells", "horizon", "expected", "zone"),
    [
        (["2024-03-09T00:00Z", "2024-03-09T00:10Z"], "2", ["2024-03-09T00:20Z", "2024-03-09T00:30Z"], "UTC"),
        (["2024-03-09 00:00:00+01:00", "2024-03-09 06:00:00+01:00"], "12h",
         ["2024-03-09 12:00:00+01:00", "2024-03-09 18:00:00+01:00"], "UTC"),
        # A day is a day of the calendar, also where a clock is put forward in it.
        (["2024-03-29", "2024-03-30"], "3", ["2024-03-31", "2024-04-01", "2024-04-02"], "Europe/Berlin"),
        (["30.03.2024 06:00", "31.03.2024 06:00"], "2d", ["01.04.2024 06:00", "02.04.2024 06:00"], "Europe/Berlin"),
        (["2024-03-31 01:00", "2024-03-31 01:30"], "3", ["2024-03-31 03:00", "2024-03-31 03:30", "2024-03-31 04:00"],
         "Europe/Berlin"),
        (["2023-12", "2024-01"], "2", ["2024-02", "2024-03"], "UTC"),
        (["2023-11-30", "2023-12-31", "2024-01-31"], "3", ["2024-02-29", "2024-03-31", "2024-04-30"], "UTC"),
        (["2023-07-15", "2023-10-15", "2024-01-15"], "2", ["2024-04-15", "2024-07-15"], "UTC"),
        (["2020-02-29", "2024-02-29"], "1", ["2028-02-29"], "UTC"),
        ([f"03/{day:02d}/2024" for day in (4, 5, 6, 7, 8, 11, 12, 13, 14, 15)], "3",
         ["03/18/2024", "03/19/2024", "03/20/2024"], "UTC"),
        (["2024-03-04", "2024-03-11"], "1", ["2024-03-18"], "UTC"),
        (["2024-03-09 00:00:00,250 UTC", "2024-03-09 00:00:00,500 UTC"], "1", ["2024-03-09 00:00:00.750 UTC"], "UTC"),
        (["Mar 09, 2024 11:00 PM", "Mar 09, 2024 11:30 PM"], "1", ["Mar 10, 2024 12:00 AM"], "UTC"),
        # Half a minute cannot be said without seconds.
        (["09.03.2024 00:00", "09.03.2024 00:00", "09.03.2024 00:01"], "90s", ["09.03.2024 00:02"], "UTC"),
        (["10/Mar/2024:00:00:00 +0100", "10/Mar/2024:00:00:01 +0100"], "1", ["10/Mar/2024:00:00:02 +0100"], "UTC"),
        ([1710025200250, 1710025201250], "2", [1710025202250, 1710025203250], "UTC"),
        (["1710025200", "1710025260"], "1min", ["1710025320"], "UTC"),
        ([0.5, 1.0], "1s", [1.5, 2.0], "UTC"),
        (["0.5", "1.0"], "2", ["1.5", "2.0"], "UTC"),
        ([datetime(2024, 3, 9), datetime(2024, 3, 10)], "1", [datetime(2024, 3, 11)], "UTC"),
        ([date(2024, 3, 9), date(2024, 3, 10)], "1", [date(2024, 3, 11)], "Europe/Berlin"),
    ],
)  # fmt: skip
def test_rows_go_on_at_the_pace_of_the_series_and_are_written_as_it_is(
    cells: list[object], horizon: str, expected: list[object], zone: str
) -> None:
    series, table = series_of(*cells, zone=zone)
    ahead = future_times(series, horizon)
    assert write_times(series, ahead, table["time"][-1]).to_pylist() == expected
    # What is written is what was meant, and so are the times that were there.
    again, _ = series_of(*cells, *expected, zone=zone)
    assert again.times[len(cells) :].tolist() == ahead.tolist()


def test_what_a_format_cannot_say_is_written_as_iso() -> None:
    series, table = series_of("09.03.2024 00:00", "09.03.2024 00:01")
    assert write_times(series, series.times + 30.5, table["time"][-1]).to_pylist() == [
        "2024-03-09 00:00:30.500", "2024-03-09 00:01:30.500"
    ]  # fmt: skip


@pytest.mark.parametrize("horizon", ["0", "-1", "1.5", "10001", "soon", "1 month", "nan"])
def test_what_is_no_horizon_is_refused(horizon: str) -> None:
    series, _ = series_of(0.0, 1.0)
    with pytest.raises(ValueError, match="--horizon must be"):
        future_times(series, horizon)


def test_a_horizon_that_holds_no_row_or_too_many_is_refused() -> None:
    series, _ = series_of("2024-03-09", "2024-03-10")
    with pytest.raises(ValueError, match="--horizon 6h is shorter than the time between two rows, 86400 s"):
        future_times(series, "6h")
    with pytest.raises(ValueError, match="the limit of 10,000 rows"):
        future_times(series, "2000w")
    one, _ = series_of("2024-03-09", "2024-03-09")
    with pytest.raises(ValueError, match="requires two rows with different times"):
        future_times(one, "1")


@pytest.mark.parametrize(
    ("horizon", "expected"),
    [("usual", [9, 12, 16]), ("2", [9, 12]), ("4", [9, 12, 16, 17]), ("4d", [9, 12]), ("11d", [9, 12, 16, 17, 18, 19])],
)
def test_future_rows_in_the_table_determine_the_times(horizon: str, expected: list[int]) -> None:
    """Eight days with values, and three future rows, of which only the price is known."""
    days = [*range(1, 9), 9, 12, 16]
    table = pa.table({
        "time": [datetime(2024, 3, day) for day in days],
        "y": [*map(float, range(8)), None, None, None],
        "price": [float(day % 3) for day in days],
    })  # fmt: skip
    series = read_frame(table, known=["price"])[()]
    assert [int(time) for time in 1 + future_times(series, horizon) // SECONDS["d"] - 19783] == expected


# 37 is prime to the number of choices of each part, so that all of them occur.
@pytest.mark.parametrize("stride", [37, pytest.param(5, marks=pytest.mark.slow)])
def test_dates_and_times_of_day_read_apart_are_those_read_together(stride: int) -> None:
    moments = [datetime(2024, 2, 29, 23, 59, 58), datetime(1999, 1, 5, 0, 7, 1), datetime(2031, 12, 10, 12, 0, 0)]
    count = 0
    formats = itertools.product(DATE_FORMATS, JOINTS, TIME_FORMATS, ZONES)
    for day, joint, time, zone in itertools.islice(formats, None, None, stride):
        time_format = f"{day}{joint}{time}{zone}"
        cells = [moment.replace(tzinfo=UTC).strftime(time_format) for moment in moments]
        if zone:
            cells[1] = cells[1].replace("+0000", "-0330")
        try:
            expected = [datetime.strptime(cell, time_format) for cell in cells]
        except ValueError:  # %Y%m%d:%H%M and the like are cut elsewhere
            continue
        found = parse(pa.chunked_array([cells]), time_format, "time", np.arange(3))
        plain = [w.replace(tzinfo=None) - (w.utcoffset() or timedelta()) for w in expected]
        assert found.cast(pa.timestamp("us")).to_pylist() == plain, time_format
        assert (found.type.tz is None) == (not zone)
        count += 1
    assert count > 2000 // stride


def test_a_cell_that_is_not_in_the_format_is_named_with_its_row() -> None:
    cells = pa.chunked_array([["09.03.2024 00:00", "31.02.2024 00:00"], ["09.03.2024"]])
    with pytest.raises(ValueError, match=r"row 8, column 'Zeit': '31\.02\.2024 00:00' does not match"):
        parse(cells, "%d.%m.%Y %H:%M", "Zeit", np.array([7, 8, 9]))


@pytest.mark.parametrize(
    ("text", "hours"),
    [("1h30m", 1.5), ("01:30:00", 1.5), ("1:30", 1.5), ("2d 3h", 51), ("1 day, 3:00:00", 27), ("PT1H30M", 1.5),
     ("P1D", 24), ("1w2d", 216), ("90 min", 1.5), ("1h 30min", 1.5), ("1.02:00:00", 26)],
)  # fmt: skip
def test_durations_may_have_several_parts(text: str, hours: float) -> None:
    found = duration(text)
    assert found is not None and found[1] is not None
    assert found[0] * SECONDS[found[1]] == 3600 * hours


@pytest.mark.parametrize("text", ["90m", "1h30", "12 24", "P", "0:00", "h", "2d3", "-1h", ""])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert duration(text) is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.refused], ids=lambda kind: kind.name)
def test_times_that_are_written_below_a_file_are_read_as_they_are(kind: Kind) -> None:
    options = dict(kind.options)
    source = {name: options.pop(name, None) for name in ("query", "sheet")}
    frame = read_all(read_table(kind.content, **source), ReadOptions(**options))
    series = list(frame.series.values())[-1]
    if series.clock is None:
        return
    ahead = future_times(series, "3")
    written = write_clock(frame.table, series, ahead)
    none = write_clock(frame.table, series, ahead[:0])
    assert {name: (0, cells.type) for name, cells in written.items()} == {
        name: (len(cells), cells.type) for name, cells in none.items()
    }
    columns = {
        name: pa.chunked_array([*frame.table.columns[name].cast(pa.string()).chunks, cells.cast(pa.string())])
        for name, cells in written.items()
    }
    columns["y"] = pa.chunked_array([[str(k * k % 7 / 4) for k in range(len(frame.table) + 3)]])
    how: dict[str, Any] = {name: options[name] for name in ("zone", "time_format") if name in options}
    how |= {"time": series.clock} if series.clock_parts is None else {}
    how.setdefault("zone", series.zone)  # it may stand in a column that is not written
    found = read_frame(Table(columns, frame.table.separator, epoch=frame.table.epoch), **how)
    again = np.concatenate([one.times for one in found.values()])
    assert all(np.isclose(again, time, atol=1e-3, rtol=0).any() for time in ahead)
