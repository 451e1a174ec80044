"""`rfa backtest`: the alarms and forecasts that a filter would have had over recorded series."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rfa.cli.filter_options import Direct, Leads, MinDeviation, Model, Mute, Quiet, Rate, Rules, Sources, System
from rfa.cli.options import JsonFlag, reads_files

if TYPE_CHECKING:
    from rfa.cli.filter import FilterBatch
    from rfa.data import ReadOptions
    from rfa.library.backtest import Backtest
    from rfa.library.windows import Windows

Labels = Annotated[
    Path | None,
    typer.Option(help="Table of labelled windows with the columns from and to, and key columns where they differ."),
]
Figures = Annotated[Path | None, typer.Option(help="Folder for a picture of each series.", metavar="DIR")]
Report = Annotated[Path | None, typer.Option(help="JSON file of all figures.")]
# Most pictures.
MOST_FIGURES = 1_000


@reads_files
def backtest_series(
    data: Sources,
    *,
    rate: Rate = "0.001",
    quiet: Quiet = 0,
    direction: Direct = "both",
    min_deviation: MinDeviation = 0.0,
    rules: Rules = None,
    mute: Mute = None,
    lead: Leads = None,
    windows: Labels = None,
    bundle: Model = None,
    system: System = None,
    figures: Figures = None,
    out: Report = None,
    as_json: JsonFlag = False,
    reading: ReadOptions,
    source: dict[str, str | None],
) -> None:
    """Count alarms, incidents and coverage over recorded series, each row judged by the rows before it.

    With --windows: how many were found, how soon, how many incidents were in them, and NAB's score.
    """
    from rfa.cli.console import print_json
    from rfa.cli.filter import OUTLIER, FilterBatch, load_model
    from rfa.cli.filter_output import check_output
    from rfa.cli.filter_run import Task, parse_alarm
    from rfa.library.windows import read_windows

    if out is not None:
        check_output("--out", out, (".json",), data)
    if figures is not None and figures.exists() and not figures.is_dir():
        raise ValueError(f"--figures: {str(figures)!r} is a file: give a folder")
    alarms = parse_alarm(
        rate, reading.zone, rules, "--rate", quiet=quiet, direction=direction, min_deviation=min_deviation,
        mute=mute or [],
    )  # fmt: skip
    labels = None if windows is None else read_windows(windows, reading.by, reading.zone)
    filters = load_model(bundle, system)
    task = Task(filters, lead or [], None, alarms, OUTLIER, smooth=False, lag=None, option="--rate")
    task.check()
    batch = FilterBatch(data, source, reading, task, has_plot=False)
    batch.run()
    found = _judge(batch, labels)
    if figures is not None:
        _draw(batch, figures)
    if out is not None:
        out.write_text(json.dumps(found.document(), allow_nan=False) + "\n")
    if as_json:
        print_json(found.document())
    else:
        for line in str(found).split("; "):
            typer.echo(line)
    if batch.failed:
        raise typer.Exit(1)


def _judge(batch: FilterBatch, windows: Windows | None) -> Backtest:
    """The figures of all series of a batch."""
    from itertools import groupby

    from rfa.library.backtest import Backtest, judge

    found = []
    pairs = groupby(batch.results, key=lambda result: (result.file, result.key))
    for (_, results), frame in zip(pairs, batch.frames, strict=True):
        for result in results:
            own = None if windows is None else windows.of(frame.by, result.key)
            is_alarm = result.outputs["alarm"] == 1
            incidents = result.sequence.incidents
            found.append(judge(result.label, result.series, is_alarm, incidents, result.checks, own))
    return Backtest(tuple(found))


def _draw(batch: FilterBatch, folder: Path) -> None:
    """A picture of each series, named after it."""
    from rfa.cli.plot import check_panels, draw

    parts = batch.by_series()
    if len(parts) > MOST_FIGURES:
        raise ValueError(f"--figures draws up to {MOST_FIGURES:,} series, these are {len(parts):,}")
    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for results in parts:
        check_panels(sum(len(result.series.names) for result in results))
        label = results[0].label if len(results) == 1 else f"{results[0].file}: {results[0].key}"
        name = stem = re.sub(r"[^\w.-]+", "_", label)[:100]
        while name in taken:
            name = f"{stem}_{len(taken)}"
        taken.add(name)
        draw(results, folder / f"{name}.png", title=label)
