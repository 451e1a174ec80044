"""Train the series network on such a machine: unpack the state of an earlier session, train until stopped, and pack the
state.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rfa.benchmarks.gpu_queue.parts import cores
from rfa.benchmarks.gpu_queue.pieces import pack, unpack
from rfa.benchmarks.gpu_queue.queue import UNFINISHED
from rfa.fitting.interrupts import Stopped
from rfa.model.checkpoint import load_run
from rfa.runtime.series.config import SeriesConfig
from rfa.training.language_config import find_config
from rfa.training.series_config import SeriesRun, SeriesTrainingConfig
from rfa.training.series_network import train_series

NAME = "series"
RECIPE = "series_gpu"
REHEARSED = SeriesRun(
    SeriesConfig(
        d_model=32,
        n_layers=1,
        n_heads=2,
        head_dim=4,
        n_slots=4,
        embedding_width=32,
        head_width=32,
        head_inner=32,
    ),
    SeriesTrainingConfig(steps=2, batch=2, tokens=16, validate_every=2, workers=0),
)


def chosen_run(config: Path | None, minutes: float | None) -> SeriesRun:
    """Return the recipe, with series drawn by all cores but the one that trains."""
    run = SeriesRun.from_file(config or find_config(RECIPE))
    workers = max(1, cores() - 1)
    return replace(run, training=replace(run.training, workers=workers, minutes=minutes or run.training.minutes))


def main(
    out: Annotated[Path, typer.Option(file_okay=False)],
    config: Annotated[Path | None, typer.Option()] = None,
    minutes: Annotated[float | None, typer.Option()] = None,
    begin: Annotated[Path | None, typer.Option("--from")] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse")] = False,
) -> None:
    run = REHEARSED if rehearse else chosen_run(config, minutes)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, NAME)
        unpack(out, NAME, folder)
        try:
            train_series(run, folder, begin_from=None if begin is None else load_run(begin), device="auto")
            code = 0
        except Stopped as stopped:
            print(stopped, file=sys.stderr)
            code = UNFINISHED
        finally:
            if folder.is_dir():
                pack(folder, out, NAME)
    sys.exit(code)


if __name__ == "__main__":
    typer.run(main)
