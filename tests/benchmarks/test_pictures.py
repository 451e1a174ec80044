"""The documents' pictures: what is laid out where, and that all are drawn from what `rfa` answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from docs.site import pictures
from docs.site.pictures import (
    Position,
    draw_samples,
    draw_stream,
    draw_tokens,
    shown_token,
)

PNG = b"\x89PNG\r\n\x1a\n"


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


def test_every_sample_is_drawn_in_the_colour_of_what_it_chooses(tmp_path: Path) -> None:
    assert shown_token(" was") == "was" and shown_token("\n") == "↵"
    for name, is_chosen in (("same", True), ("other", False)):
        position = Position(" was", 0.5, [0.25, 0.75] * 8, [is_chosen] * 16, 0.1, [0.0, 1.0] * 8)
        draw_samples([position] * 6, tmp_path / f"{name}.png")
    same, other = (image.imread(tmp_path / f"{name}.png")[..., :3] for name in ("same", "other"))
    red = [int(((pixels[..., 0] > 0.6) & (pixels[..., 2] < 0.3)).sum()) for pixels in (same, other)]
    assert red[1] > 10 * red[0] > 0  # the legend alone, and all of the dots


@pytest.mark.slow
def test_the_committed_pictures_come_from_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FIGURES", tmp_path)
    pictures.main()
    assert {path.name for path in tmp_path.iterdir()} == {"stream.png", "tokens.png", "samples.png"}
