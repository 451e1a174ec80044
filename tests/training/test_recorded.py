"""What is said of files that are learned from, and which are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rfa.training.evaluate.filter import load_test_data
from rfa.training.filter import FilterTrainingConfig, load_data

BACKWARDS = "times decrease 1 times (first at row 33): rows were sorted"


def write(path: Path, order: list[int]) -> Path:
    path.write_text("Zeit;Temp\n" + "".join(f"{k};{k / 7:.3f}\n".replace(".", ",") for k in order))
    return path


def test_what_was_decided_in_reading_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "room.csv", [*range(30), 31, 30, *range(32, 60)])
    batches = load_data(str(path), FilterTrainingConfig(length=5)), load_test_data(str(path))
    assert batches[1].times.tolist() == [[float(k) for k in range(48, 60)]]
    lines = capsys.readouterr().err.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    for note in ("times: column 'Zeit', numbers, read as seconds", "commas are decimal marks", BACKWARDS):
        assert sum(line.startswith("room.csv: ") and note in line for line in lines) == 2, note


@pytest.mark.parametrize("source", ["-", "https://example.org/room.csv"])
def test_what_is_no_file_is_refused_before_it_is_read(source: str) -> None:
    with pytest.raises(ValueError, match="must be a file, because its hash is recorded; save"):
        load_data(source, FilterTrainingConfig(length=5))
