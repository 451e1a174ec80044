"""Files as people have them: a corpus, each file with what is expected of it, under three zones of the machine."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.data import load_series

CORPUS = Path(__file__).parent / "corpus"
CASES: list[dict[str, Any]] = json.loads((CORPUS / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York"])
def machine_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_every_file_has_its_expectation() -> None:
    assert {case["file"] for case in CASES} == {path.name for path in CORPUS.iterdir()} - {"expected.json"}
    assert len(CASES) >= 60


@pytest.mark.usefixtures("machine_zone")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_file_is_read_right_or_refused_with_what_to_do(case: dict[str, Any]) -> None:
    options = case.get("options", {})
    if "refused" in case:
        with pytest.raises(ValueError, match=re.escape(case["refused"])) as caught:
            load_series(CORPUS / case["file"], **options)
        assert "\n" not in str(caught.value)
        return
    series = load_series(CORPUS / case["file"], **options)
    assert series.names == tuple(case["names"])
    # Seconds since 1970 have seven digits after the point in float64.
    assert series.times == pytest.approx(case["times"], abs=1e-6, rel=0)
    wanted = [[math.nan if value is None else value for value in row] for row in case["values"]]
    assert np.array_equal(series.values, np.array(wanted, np.float64), equal_nan=True)
    assert case.get("note", "") in " · ".join(series.notes)


def test_a_part_of_a_series_is_named_by_its_times() -> None:
    days = CORPUS / "iso_minutes.csv"
    assert load_series(days, start="2024-03-10").values.tolist() == [[2.5], [3.5]]
    assert load_series(days, start="2024-03-10T01:00+01:00", end="2024-03-10T01:00").values.tolist() == [[2.5]]
    assert load_series(days, zone="Europe/Berlin", end="2024-03-10").values.tolist() == [[1.5]]
    assert load_series(CORPUS / "plain_numbers.csv", start="0.5").times.tolist() == [0.5, 2]
    for wrong, told in (("soon", "an ISO date"), ("2025-01-01", "they go from 2024-03-09T23:00")):
        with pytest.raises(ValueError, match=told):
            load_series(days, start=wrong)


def test_dates_come_back_as_they_were() -> None:
    series = load_series(CORPUS / "epoch_ms.csv")
    assert series.is_dated and series.clock == "ts"
    assert str(series.moments(series.times)[0]) == "2024-03-09T23:00:00.250000"
    plain = load_series(CORPUS / "plain_numbers.csv")
    assert not plain.is_dated and plain.moments(plain.times) is plain.times


def test_a_damaged_arrow_file_is_refused(tmp_path: Path) -> None:
    content = (CORPUS / "typed.arrow").read_bytes()
    assert content.count(b"abc") == 1
    (tmp_path / "damaged.arrow").write_bytes(content.replace(b"abc", b"\xff\xfe\xff"))
    with pytest.raises(ValueError, match=r"the file cannot be read: .*Invalid UTF8"):
        load_series(tmp_path / "damaged.arrow")
