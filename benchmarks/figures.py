"""Functions that draw the figures in one style, and store a fingerprint of the drawn document in each figure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from rfa.measured import HOME

FIGURES: Final = HOME / "docs" / "figures"
GROUND: Final = "#fbfaf7"
INK: Final = "#22252a"
DPI = 80
# Curves in one ink, and colours of pictures where each colour has a name.
FEW, MANY = 32, 128


def plain(axes: Any) -> None:
    """Style axes with background, ink and two spines."""
    axes.set_facecolor(GROUND)
    axes.tick_params(labelsize=6, colors=INK, length=2)
    axes.spines[["top", "right"]].set_visible(False)


def panels(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """Return a figure of this size in inches and its axes `[rows, columns]`, drawn without a display."""
    figure, grid = no_display().subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    figure.set_facecolor(GROUND)
    for axes in grid.flat:
        plain(axes)
    return figure, grid


def no_display() -> Any:
    """Return pyplot, drawing without a display."""
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def write(figure: Any, path: Path, dpi: int = 100) -> Path:
    """Write a figure, creating its folder if necessary. The suffix sets the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"pil_kwargs": {"optimize": True}} if path.suffix == ".png" else {}
    figure.savefig(path, dpi=dpi, **options)
    no_display().close(figure)
    return path


def save(figure: Any, path: Path, colours: int = FEW, drawn_from: Mapping[str, Any] | None = None) -> None:
    """Save a small PNG, with the fingerprint of the document that it shows, for `is_of`."""
    write(figure, path, DPI)
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(colours)
    metadata = PngInfo()
    if drawn_from is not None:
        metadata.add_text("Source", fingerprint(drawn_from))
    few.save(path, optimize=True, pnginfo=metadata)


def is_of(path: Path, document: Mapping[str, Any]) -> bool:
    """Return whether a picture was drawn from exactly this document."""
    with Image.open(path) as image:
        return image.info.get("Source") == fingerprint(document)


def fingerprint(document: Mapping[str, Any]) -> str:
    """Return a fingerprint of a document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
