"""Offsets of local time from UTC: those of time zones, and compiled code that reads them."""

from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from rfa.data.utc_offsets import UTC, UtcOffsets
from rfa.runtime.compiling import kernel_jit
from rfa.runtime.local_time_numba import utc_offset as inlined_utc_offset
from tests.inlined import callable_from_python

utc_offset = callable_from_python(inlined_utc_offset)


@kernel_jit()
def offset_at(offsets, t):
    return utc_offset(offsets, t)


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
