"""Calendars: which day and time of the week a moment is, in a time zone, and what a document may hold."""

from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from rfa.runtime.filters.calendar import MOST_DATES, MOST_SLOTS, Calendar, Days

HOLIDAYS = ("2024-12-25", "2024-07-04")


def moments(zone):
    """Seconds since 1970 of every half-hour of 2024, and the same by the clock on the wall, by other code."""
    first = datetime(2024, 1, 1, tzinfo=ZoneInfo(zone)).timestamp()
    times = first + 1800.0 * np.arange(366 * 48)
    return times, [datetime.fromtimestamp(t, ZoneInfo(zone)) for t in times]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kathmandu"])
def test_the_pattern_is_that_of_the_clock_on_the_wall(zone):
    times, clock = moments(zone)
    found = Calendar(Days(zone, 48, HOLIDAYS), np.arange(8 * 48.0).reshape(1, 8, 48)).at(times)[:, 0]
    for value, local in zip(found, clock, strict=True):
        kind = 7 if local.date().isoformat() in HOLIDAYS else local.weekday()
        assert value == 48 * kind + 2 * local.hour + local.minute // 30


def test_between_nodes_are_straight_lines_over_midnight_and_into_holidays():
    pattern = np.random.default_rng(0).normal(size=(2, 8, 4))
    days = Days("Europe/Berlin", 4, ("2024-05-01",))
    start = datetime(2024, 4, 30, 18, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    found = Calendar(days, pattern).at(start + 3600 * np.arange(13.0))
    evening, midnight, morning = pattern[:, 1, 3], pattern[:, 7, 0], pattern[:, 7, 1]
    expected = [evening + (midnight - evening) * k / 6 for k in range(6)]
    expected += [midnight + (morning - midnight) * k / 6 for k in range(7)]
    assert np.abs(found - expected).max() < 1e-12


def test_a_day_has_its_own_length_when_clocks_change():
    days = Days("America/New_York", 48)
    start = datetime(2024, 3, 10, tzinfo=ZoneInfo("America/New_York"))
    times = start.timestamp() + 1800.0 * np.arange(46)
    assert len(set(days.dates(times))) == 1 and days.dates(times[-1:] + 1800)[0] == days.dates(times)[0] + 1
    nodes = days.nodes(times)
    assert (nodes.share == 0).all()
    # Two o'clock does not come.
    assert list(nodes.before[:6] % 48) == [0, 1, 2, 3, 6, 7]


def test_documents_go_there_and_back():
    calendar = Calendar(Days("Asia/Tokyo", 2, HOLIDAYS), np.arange(16.0).reshape(1, 8, 2))
    again = Calendar.from_document(calendar.to_document())
    assert again.days == calendar.days and (again.pattern == calendar.pattern).all()
    assert again.days.holidays == tuple(sorted(HOLIDAYS))


GOOD = {"zone": "UTC", "slots": 1, "pattern": [[[0.0]] * 7]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zone": "Mars/Olympus"}, r"calendar\.zone must be the name of a time zone"),
        ({"zone": 3}, r"calendar\.zone must be"),
        ({"zone": ""}, r"calendar\.zone must be"),
        ({"slots": 0}, r"calendar\.slots must be an integer from 1 to"),
        ({"slots": True}, r"calendar\.slots must be"),
        ({"slots": MOST_SLOTS + 1}, r"calendar\.slots must be"),
        ({"holidays": ["2024-02-30"]}, r"calendar\.holidays must be dates"),
        ({"holidays": [1]}, r"calendar\.holidays must be dates"),
        ({"holidays": "2024-12-25"}, r"calendar\.holidays must be a list"),
        ({"holidays": ["2024-12-25"] * (MOST_DATES + 1)}, r"calendar\.holidays must be a list of at most"),
        ({"holidays": ["2024-12-25"]}, r"calendar\.pattern must be .* 8 types of days, 1 slots\], got \[1, 7, 1\]"),
        ({"pattern": [[[0.0]] * 6]}, r"calendar\.pattern must be .*got \[1, 6, 1\]"),
        ({"pattern": [[[float("nan")]] * 7]}, r"calendar\.pattern must contain finite numbers"),
        ({"pattern": [["a"] * 7]}, r"calendar\.pattern must contain a list for each column"),
        ({"patern": 1}, r"unknown entries \['patern'\]"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        Calendar.from_document({**GOOD, **change})


def test_documents_that_are_none():
    with pytest.raises(ValueError, match=r"calendar must contain the entries \['zone'\]"):
        Calendar.from_document({name: value for name, value in GOOD.items() if name != "zone"})
    with pytest.raises(ValueError, match="must be an object"):
        Calendar.from_document([GOOD])


def test_numbers_of_rows_are_no_moments():
    calendar = Calendar.from_document(GOOD)
    for times in ([0.0, 1.0], [1e15], [float("nan")]):
        with pytest.raises(ValueError, match="seconds since 1970"):
            calendar.at(np.array(times))
    assert calendar.at(np.empty(0)).shape == (0, 1)
