"""The documentation's pictures of the page are what it shows, loosely: the same things in the same places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from docs.site.page_pictures import FIGURES, PICTURES
from tests.service.live import Live

# A picture in so many cells: a letter that another font draws elsewhere hardly moves the mean of one, a chart does.
CELLS = (32, 20)
# Of how far a picture is from one where nothing is, so much may differ.
SHARE = 0.25


def cells(path: Path) -> np.ndarray:
    """Mean grey of each cell, 0 to 255."""
    with Image.open(path) as image:
        return np.asarray(image.convert("L").resize(CELLS, Image.Resampling.BOX), float)


def unlike(found: np.ndarray, shown: np.ndarray) -> float:
    """How far two pictures are apart, over how far the second is from its own ground: root mean squares."""
    ground = np.median(shown)
    return float(np.sqrt(np.mean((found - shown) ** 2) / np.mean((shown - ground) ** 2)))


@pytest.mark.parametrize(
    "name", [name if name != "page-live.png" else pytest.param(name, marks=pytest.mark.slow) for name in PICTURES]
)
def test_the_committed_picture_is_what_the_page_shows(browser: Any, server: Live, tmp_path: Path, name: str) -> None:
    PICTURES[name](browser, server.url, tmp_path / name)
    far = unlike(cells(tmp_path / name), cells(FIGURES / name))
    assert far < SHARE, f"{far:.2f}: run `python -m docs.site.page_pictures`"
