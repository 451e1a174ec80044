"""Forecast rows are only at weekdays and times of day at which the series has rows."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import rfa
from rfa.data import future_times, read_frame
from rfa.data.series import Series

ZONE = "Europe/Berlin"


def rows(
    begin: str, days: int, freq: str, hours: tuple[str, str] = ("00:00", "23:59"), week: str = "0123456"
) -> list[pd.Timestamp]:
    """Return the times between two hours on the given weekdays, from Monday."""
    index = pd.date_range(begin, periods=days * (pd.Timedelta("1D") // pd.Timedelta(freq)), freq=freq)
    index = index[index.indexer_between_time(*hours)]
    return [time for time in index if str(time.weekday()) in week]


def series_of(times: list[pd.Timestamp], zone: str = "UTC") -> Series:
    table = pa.table({"time": pa.array(pd.DatetimeIndex(times)), "y": np.arange(len(times), dtype=np.float64)})
    return read_frame(table, zone=zone)[()]


def ahead(times: list[pd.Timestamp], horizon: str, zone: str = "UTC") -> list[str]:
    """Return the local times of the next rows."""
    found = pd.to_datetime(future_times(series_of(times, zone), horizon), unit="s", utc=True).round("s")
    return [f"{time:%a %m-%d %H:%M}" for time in found.tz_convert(zone)]


def even(times: list[pd.Timestamp], count: int, freq: str) -> list[str]:
    return [f"{time:%a %m-%d %H:%M}" for time in pd.date_range(times[-1], periods=count + 1, freq=freq)[1:]]


@pytest.mark.parametrize("freq", ["30min", "1h"])
def test_closed_hours_and_days_are_skipped(freq: str) -> None:
    """From Monday, 4 March 2024, to Friday the 29th."""
    found = ahead(rows("2024-03-04", 26, freq, ("08:00", "17:30"), "01234"), "24")
    open_rows = rows("2024-04-01", 4, freq, ("08:00", "17:30"))
    assert found == [f"{time:%a %m-%d %H:%M}" for time in open_rows[:24]]


def test_a_forecast_continues_within_a_day() -> None:
    times = rows("2024-03-04", 26, "1h", ("09:00", "17:00"), "01234")[:-3]
    assert ahead(times, "5") == ["Fri 03-29 15:00", "Fri 03-29 16:00", "Fri 03-29 17:00",
                                 "Mon 04-01 09:00", "Mon 04-01 10:00"]  # fmt: skip


def test_hours_of_a_weekday_are_its_own() -> None:
    """On Saturday, the 30th, the shop closes at noon. Sunday is closed."""
    week = rows("2024-03-04", 26, "1h", ("09:00", "17:00"), "01234")
    saturday = rows("2024-03-04", 25, "1h", ("09:00", "12:00"), "5")
    found = ahead(sorted(week + saturday), "6")
    assert found == ["Sat 03-30 09:00", "Sat 03-30 10:00", "Sat 03-30 11:00", "Sat 03-30 12:00",
                     "Mon 04-01 09:00", "Mon 04-01 10:00"]  # fmt: skip


def test_a_closed_sunday_is_skipped() -> None:
    times = rows("2024-03-04", 25, "1D", week="012345")
    assert ahead(times, "5") == ["Fri 03-29 00:00", "Sat 03-30 00:00", "Mon 04-01 00:00",
                                 "Tue 04-02 00:00", "Wed 04-03 00:00"]  # fmt: skip


def test_daily_rows_at_changing_times_skip_a_closed_sunday() -> None:
    days = rows("2024-03-04", 27, "1D", week="012345")
    minutes = np.random.default_rng(0).uniform(-15, 15, len(days))
    times = [day + pd.Timedelta(600 + late, "min") for day, late in zip(days, minutes, strict=True)]
    assert [time[:3] for time in ahead(times, "3")] == ["Mon", "Tue", "Wed"]


def test_times_that_jitter_skip_the_night() -> None:
    clean = rows("2024-03-04", 20, "30min", ("08:00", "17:30"))
    late = np.random.default_rng(0).uniform(-60, 60, len(clean))
    found = future_times(series_of([time + pd.Timedelta(by, "s") for time, by in zip(clean, late, strict=True)]), "60")
    expected = pd.DatetimeIndex(rows("2024-03-24", 3, "30min", ("08:00", "17:30")))
    assert abs(pd.to_datetime(found, unit="s") - expected).max() <= pd.Timedelta("1min")


@pytest.mark.parametrize(
    ("freq", "days"), [*itertools.product(("15min", "1h"), (6, 12, 25, 60)), ("1D", 25), ("1D", 60), ("1D", 200)]
)
@pytest.mark.parametrize("seed", range(4))
def test_random_losses_skip_nothing(freq: str, days: int, seed: int) -> None:
    whole = rows("2024-03-04", days, freq)
    draw = np.random.default_rng(seed).random(len(whole))
    times = [time for time, number in zip(whole, draw, strict=True) if number > 0.25]
    count = 200 if freq != "1D" else 14
    assert ahead(times, str(count)) == even(times, count, freq)


def test_losses_within_opening_hours_still_skip_the_night() -> None:
    whole = rows("2024-03-04", 40, "30min", ("08:00", "17:30"))
    draw = np.random.default_rng(0).random(len(whole))
    times = [time for time, number in zip(whole, draw, strict=True) if number > 0.2]
    expected = [time for time in rows("2024-03-04", 50, "30min", ("08:00", "17:30")) if time > times[-1]]
    assert ahead(times, "50") == [f"{time:%a %m-%d %H:%M}" for time in expected[:50]]


def test_irregular_times_skip_nothing() -> None:
    """Random times on working days only."""
    draw = np.random.default_rng(0)
    days = rows("2024-03-04", 40, "1D", week="01234")
    times = sorted(day + pd.Timedelta(draw.uniform(9, 17), "h") for day in days for _ in range(20))
    series = series_of(times)
    step = np.diff(series.times[-26:])
    assert np.allclose(future_times(series, "24"), series.times[-1] + np.median(step) * np.arange(1, 25))


@pytest.mark.parametrize(("freq", "hours", "days"), [("1h", ("09:00", "17:00"), 4), ("1D", ("00:00", "23:59"), 13)])
def test_short_series_skip_nothing(freq: str, hours: tuple[str, str], days: int) -> None:
    times = rows("2024-03-04", days, freq, hours, "012345")
    assert ahead(times, "20") == even(times, 20, freq)


@pytest.mark.parametrize("begin", ["2024-03-04", "2024-10-02"])
def test_opening_hours_are_local(begin: str) -> None:
    """The clocks change on 31 March and 27 October, a Sunday, within the rows or after them."""
    for days in (23, 40):
        times = [time.tz_localize(ZONE) for time in rows(begin, days, "1h", ("08:00", "17:00"))]
        naive = [time.tz_localize(None) for time in times]
        expected = [time for time in rows(begin, days + 10, "1h", ("08:00", "17:00")) if time > naive[-1]]
        assert ahead(naive, "60", ZONE) == [f"{time:%a %m-%d %H:%M}" for time in expected[:60]]
        found = future_times(series_of(times), "60")  # the zone is that of the column
        assert np.array_equal(found, future_times(series_of(naive, ZONE), "60"))


def test_a_duration_contains_the_rows_that_can_occur() -> None:
    times = rows("2024-03-04", 26, "30min", ("08:00", "17:30"), "01234")  # to Friday
    assert len(ahead(times, "3d")) == 20
    with pytest.raises(ValueError, match=r"--horizon 1d ends before the next row, 2024-04-01 08:00:00, because the"):
        ahead(times, "1d")
    with pytest.raises(ValueError, match=r"--horizon 5min is shorter than the time between two rows, 1800 s"):
        ahead(times, "5min")


def test_candidates_are_limited() -> None:
    """Ten thousand rows of one second, an hour a day: the next row after the hour is a day later."""
    times = rows("2024-03-04", 6, "1s", ("09:00", "09:59:59"))
    found = future_times(series_of(times), "10000")
    assert len(found) == 10_000 and found[3599] - found[0] == 3599 and found[3600] - found[0] == 86_400


def test_a_forecast_of_a_frame_is_at_open_hours() -> None:
    times = rows("2024-03-04", 26, "1h", ("09:00", "17:00"), "01234")
    frame = pd.DataFrame({"calls": np.arange(len(times)) % 9.0}, pd.DatetimeIndex(times))
    found = rfa.forecast(frame, 12)
    assert found.index.hour.tolist() == [*range(9, 18), 9, 10, 11]
    assert found.index[0] == pd.Timestamp("2024-04-01 09:00")
