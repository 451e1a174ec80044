"""The README's pictures: what is laid out where, and that both are drawn from what the commands print."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rfa.bench import pictures
from rfa.bench.pictures import COLUMNS, draw_stream, draw_tokens, first_column, laid_out

PNG = b"\x89PNG\r\n\x1a\n"


def test_tokens_follow_each_other_and_do_not_leave_the_line() -> None:
    pieces = list(laid_out([("It was", None), (" the", 0.5), ("\n", 0.25), ("x" * (COLUMNS - 5), 1.0), ("y", 0.0)]))
    assert [piece[:2] for piece in pieces] == [(0, 0), (0, 6), (0, 10), (1, 0), (1, COLUMNS - 5)]
    assert pieces[2][2:] == (" ", 0.25)


def test_an_empty_cell_of_a_series_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "series.csv"
    file.write_text("t,x,y\n0,1.5,2\n1,,2\n")
    first, second = first_column(file)
    assert first == 1.5 and math.isnan(second)


def test_both_pictures_are_drawn(tmp_path: Path) -> None:
    steps = [
        {
            "t": float(t),
            "mean": [0.0],
            "interval": {"0.9": [[-1.0, 1.0]]},
            "forecast": [{"t": t + 1.0, "mean": [0.0], "interval": {"0.9": [[-2.0, 2.0]]}}],
        }
        for t in range(4)
    ]
    draw_stream({"steps": steps, "outliers": [1]}, np.array([0.0, 9.0, np.nan, 0.5]), tmp_path / "stream.png")
    draw_tokens("It", [{"text": " was", "confidence": 0.5}], tmp_path / "tokens.png")
    assert all((tmp_path / name).read_bytes().startswith(PNG) for name in ("stream.png", "tokens.png"))


@pytest.mark.slow
def test_the_committed_pictures_come_from_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FIGURES", tmp_path)
    pictures.main()
    assert {path.name for path in tmp_path.iterdir()} == {"stream.png", "tokens.png"}
