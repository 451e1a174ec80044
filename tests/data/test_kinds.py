"""Every kind of file that people have is read right, or refused with an option that mends it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rfa.data import read_frame
from rfa.data.file_formats import read_table
from tests.data import kinds_of_programs as programs
from tests.data.held_back_kinds import held_back
from tests.data.kind import Kind
from tests.data.kinds_of_clocks import clocks, parts
from tests.data.kinds_of_evidence import apart, epochs, letters, lines, several, zones
from tests.data.kinds_of_numbers import missing, numbers
from tests.data.kinds_of_tables import formats, long

GROUPS = (
    clocks, parts, numbers, missing, long, formats,
    programs.drawn, programs.exports, programs.parts, programs.agencies, programs.ambiguous, programs.packed,
    held_back, apart, epochs, letters, lines, several, zones,
)  # fmt: skip
# Dates in either order or an unknown form, a database of several tables, two tables of as many rows, series without
# a label or a unit of time; and, without a command that works: loopstats, chrony, the dump and the Persian calendar.
REFUSED = (
    "days or months", "times in an unknown form", "SQLite with tables", "iostat -t",
    "two stations interleaved without a label column", "PSMSL monthly", "fio bandwidth log", "ntpd loopstats",
    "chrony tracking log", "AAVSO", "promtool tsdb dump", "Jalali dates",
)  # fmt: skip
KINDS = [kind for group in GROUPS for kind in group()]


def test_there_are_many_kinds_of_files() -> None:
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names) >= 120
    refused = [kind.name for kind in KINDS if kind.refused]
    assert refused == list(REFUSED)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_of_file_is_read_right(kind: Kind) -> None:
    options = dict(kind.options)
    source = {name: options.pop(name, None) for name in ("query", "sheet")}
    if kind.refused:
        with pytest.raises(ValueError, match=re.escape(kind.refused)):
            read_frame(read_table(kind.content), **options)
        return
    found = read_frame(read_table(kind.content, **source), **options)
    assert list(found) == list(kind.series)
    for series, (times, columns) in zip(found.values(), kind.series.values(), strict=True):
        assert series.names == tuple(columns)
        assert series.times == pytest.approx(times, abs=1e-4, rel=0)
        expected = np.array([*columns.values()], np.float64).T
        np.testing.assert_allclose(series.values, expected, rtol=1e-12, atol=0)
        assert kind.note in " · ".join(series.notes)
