"""Rules of times in tables: zones in names, days of months in columns, midnights of several series, remarks."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from rfa.data import read_frame
from rfa.data.file_formats import read_table
from rfa.data.series import Series
from tests.data.kind import ALONE


def read(text: str) -> dict[tuple[str, ...], Series]:
    return read_frame(read_table(text.encode()))


@pytest.mark.parametrize(
    ("name", "hours"),
    [
        ("Time (CET)", 1),
        ("Time (CET/CEST)", 2),
        ("Time [MESZ]", 2),
        ("Time (PST)", -8),
        ("Time (UTC)", 0),
        ("(PDH-CSV 4.0) (W. Europe Daylight Time)(-120)", 2),
    ],
)
def test_a_zone_in_the_name_of_the_time_column(name: str, hours: int) -> None:
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC)
    rows = "".join(f"{noon + timedelta(hours=k):%Y-%m-%d %H:%M},{k * k % 7}\n" for k in range(12))
    times = read(f"{name},y\n{rows}")[ALONE].times
    assert times[0] == (noon - timedelta(hours=hours)).timestamp()


def test_months_in_two_columns_with_a_column_for_each_day() -> None:
    header = "station,year,month," + ",".join(map(str, range(1, 32)))
    days = {(2023, month): monthrange(2023, month)[1] for month in (1, 2, 3)}
    values = [[f"{month + day / 100:.2f}" for day in range(1, last + 1)] for (_, month), last in days.items()]
    rows = [f"A,2023,{k + 1}," + ",".join(cells + [""] * (31 - len(cells))) for k, cells in enumerate(values)]
    series = read("\n".join([header, *rows]))[ALONE]
    assert series.values.ravel().tolist() == [float(cell) for cells in values for cell in cells]
    assert np.array_equal(np.diff(series.times), np.full(89, 86_400.0))
    assert series.times[0] == datetime(2023, 1, 1, tzinfo=UTC).timestamp()


def test_each_series_begins_on_its_first_day() -> None:
    start = datetime(2024, 1, 1, 20)
    rows = [(start + timedelta(hours=k), k) for k in range(12)]
    text = "".join(f"{name},{time:%H:%M:%S},{k * k % 5}\n" for name in ("a", "b") for time, k in rows)
    found = read(f"sensor_id,time,y\n{text}")
    expected = [3600.0 * (20 + k) for k in range(12)]
    assert [series.times.tolist() for series in found.values()] == [expected, expected]


def _lines(count: int, every: int) -> list[str]:
    rows = [f"2024-01-01 {k // 60:02d}:{k % 60:02d},{k * k % 7},{k}" for k in range(count)]
    return [line for k, row in enumerate(rows) for line in ([row, "MARK set"] if k % every == every - 1 else [row])]


def test_a_few_remarks_among_the_rows_are_left_out_with_a_note() -> None:
    series = read("\n".join(["time,a,b", *_lines(60, 25), ""]))[ALONE]
    assert len(series.times) == 60
    assert "2 lines without a separator, such as 'MARK set', are left out" in series.notes


@pytest.mark.parametrize("lines", [_lines(60, 3), [*_lines(60, 60)[:-1], "2024-01-01"]])
def test_many_remarks_and_a_row_that_was_cut_off_are_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="has 1 cells, but the header has 3"):
        read("\n".join(["time,a,b", *lines, "2024-01-02 00:00,1,2", ""]))


def test_can_frames_as_they_are_shown_and_as_they_are_logged() -> None:
    frames = [(k, f"1F{k % 2}", bytes([k, 255 - k, 7])) for k in range(24)]
    logged = "".join(f"(17040672{k:02d}.500000) can0 {name}#{data.hex().upper()}\n" for k, name, data in frames)
    shown = "".join(
        f" (17040672{k:02d}.500000)  can0  {name}   [3]  {data.hex(' ').upper()}\n" for k, name, data in frames
    )
    for text in (logged, shown):
        found = read(text)
        assert list(found) == [("0x1F0",), ("0x1F1",)]
        for parity, series in enumerate(found.values()):
            ours = [(k, data) for k, _, data in frames if k % 2 == parity]
            assert series.names == ("byte 0", "byte 1")  # the third never changes
            assert series.values.tolist() == [[float(byte) for byte in data[:2]] for _, data in ours]
            assert series.times.tolist() == [1_704_067_200.5 + k for k, _ in ours]


DOTTED_HOURS = [datetime(2026, 3, 2, tzinfo=UTC) + timedelta(hours=k, minutes=k % 4 * 15) for k in range(60)]


@pytest.mark.parametrize(
    "form",
    [
        "%d.%m.%Y %H.%M",
        "%d.%m.%Y %H.%M.%S",
        "%-d.%-m.%Y %-H.%M",
        "%d.%m.%y %H.%M",
        "%d.%m.%Y, %H.%M",
        "%d.%m.%Y %H.%M Uhr",
    ],
)
def test_times_of_day_with_dots_follow_dates_with_dots(form: str) -> None:
    rows = "".join(f"{time:{form}};{k * k % 7}\n" for k, time in enumerate(DOTTED_HOURS))
    series = read(f"Dato;y\n{rows}")[ALONE]
    assert series.times.tolist() == [time.timestamp() for time in DOTTED_HOURS] and series.clock == "Dato"


def test_a_day_may_end_at_24_00() -> None:
    rows = "".join(f"02.03.2026 {hour:02d}.00;{hour % 7}\n" for hour in range(1, 25))
    times = read(f"Dato;y\n{rows}")[ALONE].times
    assert times[-1] == datetime(2026, 3, 3, tzinfo=UTC).timestamp() and (np.diff(times) == 3600).all()


def test_a_date_with_a_time_of_day_with_dots_does_not_need_a_column_of_hours() -> None:
    rows = "".join(f"{time:%d.%m.%Y %H.%M};{time.hour};{k * k % 7}\n" for k, time in enumerate(DOTTED_HOURS))
    series = read(f"Dato;hour;y\n{rows}")[ALONE]
    assert series.times.tolist() == [time.timestamp() for time in DOTTED_HOURS]


@pytest.mark.parametrize("form", ["{:%Y-%m-%d} {:%H.%M}", "{:%d/%m/%Y} {:%H.%M}", "{:%d.%m.%Y} {:%-H}.5"])
def test_other_dates_with_decimals_are_not_times(form: str) -> None:
    rows = "".join(f"{form.format(time, time)};{k * k % 7}\n" for k, time in enumerate(DOTTED_HOURS))
    with pytest.raises(ValueError, match="may be a time in an unknown format"):
        read(f"Dato;y\n{rows}")


def test_numbers_with_two_decimals_stay_numbers() -> None:
    numbers = [round(2.03 + k * k % 7 / 10, 2) for k in range(60)]
    rows = "".join(
        f"{time:%d.%m.%Y %H.%M};{number:05.2f}\n" for time, number in zip(DOTTED_HOURS, numbers, strict=True)
    )
    series = read(f"Dato;y\n{rows}")[ALONE]
    assert series.values.ravel().tolist() == numbers
    alone = read("".join(f"{number:05.2f}\n" for number in numbers))[ALONE]
    assert alone.values.ravel().tolist() == numbers and alone.clock is None
