"""The documents' pictures: what is laid out where, and that all are drawn from what `rfa` answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from rfa.benchmarks import pictures
from rfa.benchmarks.pictures import (
    COLUMNS,
    Position,
    draw_samples,
    draw_stream,
    draw_tokens,
    first_column,
    layout_pieces,
    probability_of,
    shown_token,
)

PNG = b"\x89PNG\r\n\x1a\n"


def test_tokens_follow_each_other_and_do_not_leave_the_line() -> None:
    pieces = list(
        layout_pieces([("It was", None), (" the", 0.5), ("\n", 0.25), ("x" * (COLUMNS - 5), 1.0), ("y", 0.0)])
    )
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


def details(token: int, latent: float, **logprobs: float) -> dict[str, Any]:
    """A continuation of one token; alternatives are named t1, t2."""
    top = [{"id": int(name[1:]), "logprob": logprob} for name, logprob in logprobs.items()]
    reported = {"id": token, "text": f"t{token}", "logprob": logprobs[f"t{token}"]}
    return {"tokens": [reported], "top_tokens": [top], "latents": [[[latent, 0.0]]]}


def test_samples_are_asked_for_the_token_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    mean = [details(1, 0.5, t1=math.log(0.6), t2=math.log(0.4))]
    samples = [details(1, 0.2, t1=math.log(0.7), t2=math.log(0.3)), details(2, 0.9, t1=math.log(0.1), t2=math.log(0.9))]

    def answer(url: str, prompt: str, seed: int, **parameters: float) -> list[dict[str, Any]]:
        asked.append((url, prompt, seed, parameters))
        return samples if parameters["latent_noise"] else mean

    monkeypatch.setattr(pictures, "next_token", answer)
    found = Position.after("http://here", "It", 3)
    assert (found.text, found.latent, found.latents, found.is_chosen) == ("t1", 0.5, [0.2, 0.9], [True, False])
    assert found.probability == pytest.approx(0.6) and found.sampled == pytest.approx([0.7, 0.1])
    assert asked == [
        ("http://here", "It", 3, {"latent_noise": 0, "n": 1}),
        ("http://here", "It", 3, {"latent_noise": 1, "n": pictures.SAMPLES}),
    ]
    with pytest.raises(StopIteration):  # no probability is made up for what a reply does not tell
        probability_of(3, mean[0])


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
