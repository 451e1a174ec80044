"""A small untrained series network as a bundle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from rfa.export.series_export import RECORD_FILE, export_series
from rfa.model.checkpoint import save_checkpoint
from rfa.model.series.network import SeriesNetwork
from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.series.config import SeriesConfig
from tests.small_language import made_once

SMALL = SeriesConfig(
    d_model=32, n_layers=2, n_heads=2, head_dim=4, n_slots=4, embedding_width=32, head_width=32, head_inner=32
)
RECORD = {
    "series": 0, "validation": {}, "data": {}, "commit": None, "versions": {}, "device": "none",
}  # fmt: skip


def saved(run: Path) -> Path:
    """Save a finished run of the network."""
    torch.manual_seed(0)
    model = SeriesNetwork(SMALL).eval()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    save_checkpoint(run, "series", model)
    (run / RECORD_FILE).write_text(json.dumps(RECORD))
    return run


def exported(folder: Path, name: str = "small") -> Bundle:
    """Return its bundle, made once."""
    run = folder / f"{name}-run"

    def export(path: Path) -> Bundle:
        shutil.rmtree(run, ignore_errors=True)
        return export_series(saved(run), path)

    return made_once(folder, name, export)
