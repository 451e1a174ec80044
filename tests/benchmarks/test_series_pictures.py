"""Pictures of series: small, of few colours, and of the documents that are in results/ now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rfa.benchmarks.figures import FIGURES, is_of
from rfa.benchmarks.series.gift_figures import draw_coverage, draw_losses, points
from rfa.benchmarks.series.gift_models import NAIVE
from rfa.measured import RESULTS

GIFT = json.loads((RESULTS / "gift.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["gift-wql", "gift-coverage"])
def test_the_committed_pictures_show_the_committed_results(name: str) -> None:
    assert is_of(FIGURES / f"{name}.png", GIFT), "run `python -m rfa.benchmarks.series.gift_figures`"


def test_a_picture_knows_what_it_was_drawn_from(tmp_path: Path) -> None:
    draw_coverage(GIFT, tmp_path / "a.png")
    draw_losses(GIFT, tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        assert is_of(tmp_path / name, GIFT) and not is_of(tmp_path / name, {**GIFT, "commit": "another"})
        assert (tmp_path / name).stat().st_size < 50_000


def test_a_loss_on_fewer_windows_is_relative_to_the_naive_on_these() -> None:
    row = {"mase": 1.0, "inside": [0.5] * 5, "seconds": 0.0}
    kept = {
        NAIVE: {**row, "wql": 0.2, "windows": 40},
        "auto": {**row, "wql": 0.1, "windows": 40},
        "default": {**row, "wql": 0.3, "windows": 10, "naive": {"mase": 1.0, "wql": 0.4}},
    }
    document = {"tasks": {"m4_weekly": kept}, "published": {"models": {"other": {"m4_weekly": [9.0, 0.05]}}}}
    found = {point.model: point.wql for point in points(document, "m4_weekly")}
    assert found == pytest.approx({"other": 0.25, "auto": 0.5, "default": 0.75})
