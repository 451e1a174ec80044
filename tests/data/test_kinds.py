"""Every kind of file that people have is read right, or refused with an option that mends it."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rfa.data import read_frame
from rfa.data.file_formats import read_table
from rfa.data.series import Series
from tests.data import (
    held_back_kinds,
    kinds_of_clocks,
    kinds_of_evidence,
    kinds_of_formats,
    kinds_of_loggers,
    kinds_of_numbers,
    kinds_of_observatories,
    kinds_of_offices,
    kinds_of_programs,
    kinds_of_services,
    kinds_of_tables,
)
from tests.data.kind import Kind
from tests.data.kinds_of_exports import EXPORTS

# Each generator function of these modules makes a group of files.
MODULES = (
    kinds_of_clocks, kinds_of_numbers, kinds_of_tables, kinds_of_formats, kinds_of_programs, held_back_kinds,
    kinds_of_evidence, kinds_of_loggers, kinds_of_observatories, kinds_of_offices, kinds_of_services,
)  # fmt: skip
# Dates in either order or an unknown form, a database of several tables, two tables of as many rows, series without
# a label or a unit of time, signs of amounts or units in a column of their own: each with options that then work.
REFUSED = (
    "days or months", "times in an unknown form", "SQLite with tables", "iostat -t",
    "two stations interleaved without a label column", "PSMSL monthly", "fio bandwidth log", "AAVSO",
    "hey", "CAMT.053", "ING", "Soll und Haben", "units that change", "gnuplot blocks",
    "epochs in seconds and milliseconds", "LogTag Analyzer", "MadgeTech 4", "Alipay", "PPMS MultiVu", "Racelogic VBOX",
    "Klipper log", "DATEV bookings",
)  # fmt: skip
# No option reads it.
UNREADABLE = ("broken JSON",)


def _kinds(module: ModuleType) -> list[Kind]:
    groups = [group for group in vars(module).values() if inspect.isgeneratorfunction(group)]
    return [kind for group in groups for kind in group()]


KINDS = [*EXPORTS, *(kind for module in MODULES for kind in _kinds(module))]


def test_there_are_many_kinds_of_files() -> None:
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names) >= 120
    refused = [kind.name for kind in KINDS if kind.refused]
    assert {*refused} == {*REFUSED, *UNREADABLE}
    assert all(kind.mended for kind in KINDS if kind.name in REFUSED)


def _read(content: bytes, options: dict[str, Any]) -> dict[Any, Series]:
    source = {name: options.get(name) for name in ("query", "sheet")}
    others = {name: value for name, value in options.items() if name not in source}
    return read_frame(read_table(content, **source), **others)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_of_file_is_read_right(kind: Kind) -> None:
    if kind.refused:
        with pytest.raises(ValueError, match=re.escape(kind.refused)) as refusal:
            _read(kind.content, kind.options)
        for name, value in kind.mended.items():  # a format that no program can know stands for itself
            shown = value if isinstance(value, str) else value[0]
            assert f"--{name.replace('_', '-')}" in str(refusal.value)
            assert shown in str(refusal.value) or name == "time_format"
        assert kind.name in UNREADABLE or _read(kind.content, kind.options | kind.mended)
        return
    found = _read(kind.content, kind.options)
    assert list(found) == list(kind.series)
    for series, (times, columns) in zip(found.values(), kind.series.values(), strict=True):
        assert series.names == tuple(columns)
        assert series.times == pytest.approx(times, abs=1e-4, rel=0)
        expected = np.array([*columns.values()], np.float64).T
        np.testing.assert_allclose(series.values, expected, rtol=1e-12, atol=0)
        assert kind.note in " · ".join(series.notes)
