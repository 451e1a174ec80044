"""Which tests `make test` leaves out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.selection import FIRST, LONG, MOST_FILES, ONLY, WITH_KERNELS, left_out, position

ROOT = Path(__file__).resolve().parent.parent


def test_every_entry_names_a_file_or_a_test() -> None:
    named = (f"{file}::test_{name}" for file in ONLY for name in ONLY[file].split())
    for entry in (*LONG, *FIRST, *WITH_KERNELS, *MOST_FILES, *named):
        file, _, name = entry.partition("::")
        path = ROOT / file
        assert path.is_dir() if file.endswith("/") else path.is_file(), entry
        assert not name or f"def {name}(" in path.read_text(encoding="utf-8"), entry


def test_files_that_need_kernels_run_after_those_that_need_few() -> None:
    files = (*FIRST, "tests/model/test_attention.py", *WITH_KERNELS, "tests/service/test_access.py")
    places = [position(file) for file in files]
    assert places == sorted(set(places))


def test_cases_of_many_files_are_spread_evenly() -> None:
    (name, most), *_ = MOST_FILES.items()
    cases: Any = list(range(20 * most))
    left = set(left_out(name, cases))
    kept = [case for case in cases if case not in left]
    assert (len(kept), kept[0], kept[-1]) == (most, cases[0], cases[-1])
    assert {b - a for a, b in pairwise(kept)} == {20, 21}
    assert list(left_out(name, cases[:most])) == []
