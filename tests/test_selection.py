"""The tests left out by `make test` exist, and every grid keeps its ends."""

from pathlib import Path

import pytest

from tests.selection import LONG, LONGEST, MOST_CASES, ONLY, spread

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("place", LONG)
def test_what_is_left_out_is_there(place: str) -> None:
    path, _, test = place.partition("::")
    assert (ROOT / path).exists()
    assert not test or f"def {test}(" in (ROOT / path).read_text()


def test_what_runs_first_is_there() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []
    assert len({*LONGEST}) == len(LONGEST)


@pytest.mark.parametrize("file", ONLY)
def test_what_stays_of_a_file_is_there(file: str) -> None:
    text = (ROOT / file).read_text()
    assert [name for name in ONLY[file].split() if f"def test_{name}(" not in text] == []


@pytest.mark.parametrize("count", [1, MOST_CASES, MOST_CASES + 1, 100])
def test_a_grid_keeps_its_ends(count: int) -> None:
    places = spread(count, MOST_CASES)
    assert len(places) == min(count, MOST_CASES)
    assert {0, count - 1} <= places
