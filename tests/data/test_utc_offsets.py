"""Offsets of local time from UTC: those of time zones, and compiled code that reads them."""

from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from rfa.data import read_frame
from rfa.data.utc_offsets import UTC, UtcOffsets
from rfa.runtime.local_time_numba import utc_offset
from tests.inlined import callable_from_python

offset_at = callable_from_python(utc_offset)


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Africa/Casablanca", "Australia/Lord_Howe"])
def test_offsets_of_a_zone(name):
    """Those of zoneinfo, at random moments and around the changes of one year."""
    offsets, rng = UtcOffsets.of_zone(name), np.random.default_rng(0)
    begins = np.array(offsets.begins)
    times = [*rng.uniform(0, 4e9, 200), *begins[1:40], *(begins[1:40] - 1e-3)]
    for t in map(float, times):
        expected = datetime.fromtimestamp(t, ZoneInfo(name)).utcoffset().total_seconds()
        assert offset_at(offsets.array(), t) == expected


def test_a_clock_without_changes_is_utc():
    """A constant offset moves no day and no week against another."""
    assert UtcOffsets.of_zone("UTC") == UtcOffsets.of_rows(np.arange(3.0), np.full(3, 3_600.0)) == UTC
    assert offset_at(UTC.array(), 5.0) == 0.0


def test_offsets_of_rows():
    found = UtcOffsets.of_rows(np.arange(4.0), np.array([3_600.0, 3_600.0, 7_200.0, 7_200.0]))
    assert found == UtcOffsets((0.0, 2.0), (3_600.0, 7_200.0))
    assert [offset_at(found.array(), t) for t in (-1.0, 1.9, 2.0, 9.0)] == [3_600.0, 3_600.0, 7_200.0, 7_200.0]


def test_an_unknown_zone_is_refused():
    with pytest.raises(ValueError, match="unknown time zone 'Europe/Atlantis'"):
        UtcOffsets.of_zone("Europe/Atlantis")


@pytest.mark.parametrize(("cells", "options", "found"), [
    (["2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"], {}, (3_600.0, 7_200.0)),
    (["2026-03-29T01:00:00+01:00", "2026-03-29T02:00:00+01:00"], {}, ()),
    (["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z"], {}, ()),
    (["2026-03-28", "2026-03-29"], {}, ()),
])  # fmt: skip
def test_offsets_that_change_in_the_times_of_a_file(cells, options, found):
    table = pa.table({"t": cells, "y": np.arange(len(cells), dtype=float)})
    (series,) = read_frame(table, **options).values()
    assert series.utc_offsets.seconds == found
    assert series.utc_offsets.begins[1:] == tuple(series.times[1:2] if found else ())


def test_the_zone_that_is_given_and_that_of_the_type():
    berlin, times = UtcOffsets.of_zone("Europe/Berlin"), [0, 3_600, 7_200]
    for kind, zone in (("s", "Europe/Berlin"), ("typed", "UTC")):
        stamps = pa.array(times).cast(pa.timestamp("s", "Europe/Berlin" if kind == "typed" else None))
        (series,) = read_frame(pa.table({"t": stamps, "y": [1.0, 2.0, 3.0]}), zone=zone).values()
        assert series.utc_offsets == berlin
