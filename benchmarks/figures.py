"""What pictures of series have in common: a light ground of their own, few colours, and what they were drawn from."""

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
# Of curves in one ink, and of pictures where each colour is a name.
FEW, MANY = 32, 128


def plain(axes: Any) -> None:
    """Ground, ink and two spines."""
    axes.set_facecolor(GROUND)
    axes.tick_params(labelsize=6, colors=INK, length=2)
    axes.spines[["top", "right"]].set_visible(False)


def panels(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure of so many inches and its axes `[rows, columns]`, drawn without a display."""
    figure, grid = no_display().subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    figure.set_facecolor(GROUND)
    for axes in grid.flat:
        plain(axes)
    return figure, grid


def no_display() -> Any:
    """pyplot, drawing without a display."""
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def write(figure: Any, path: Path, dpi: int = 100) -> Path:
    """Write a figure into a folder that need not exist; the format follows the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"pil_kwargs": {"optimize": True}} if path.suffix == ".png" else {}
    figure.savefig(path, dpi=dpi, **options)
    no_display().close(figure)
    return path


def save(figure: Any, path: Path, colours: int = FEW, drawn_from: Mapping[str, Any] | None = None) -> None:
    """A small PNG, which may name the document that it shows: `is_of` tells whether it still does."""
    write(figure, path, DPI)
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(colours)
    metadata = PngInfo()
    if drawn_from is not None:
        metadata.add_text("Source", fingerprint(drawn_from))
    few.save(path, optimize=True, pnginfo=metadata)


def is_of(path: Path, document: Mapping[str, Any]) -> bool:
    """Whether a picture was drawn from exactly this document."""
    with Image.open(path) as image:
        return image.info.get("Source") == fingerprint(document)


def fingerprint(document: Mapping[str, Any]) -> str:
    """Of all that a document says."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
