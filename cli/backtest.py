"""`rfa backtest`: report the alarms and forecasts that a filter would have made on recorded series."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rfa.cli.filter_options import AlarmOptions, Leads, ModelOptions, Sources
from rfa.cli.options import FileOptions, JsonFlag, reads_files

if TYPE_CHECKING:
    from rfa.cli.filter import FilterBatch
    from rfa.cli.filter_run import Filtered
    from rfa.data import ReadOptions
    from rfa.library.backtest import Backtest, SeriesBacktest
    from rfa.library.windows import Windows

Labels = Annotated[
    Path | None,
    typer.Option(
        help=(
            "CSV file with labelled windows. It needs the columns `from` and `to`, and the key columns if the "
            "windows differ between series."
        )
    ),
]
Figures = Annotated[
    Path | None, typer.Option(help="Directory in which to save one picture for each series.", metavar="DIR")
]
Report = Annotated[Path | None, typer.Option(help="JSON file in which to save all results.")]
# File endings of configurations for `rfa watch`.
CONFIGS: Final = (".toml", ".yaml", ".yml")
# Maximum number of pictures.
MOST_FIGURES: Final = 1_000


@reads_files
def backtest_series(
    data: Sources,
    *,
    alarm: AlarmOptions,
    lead: Leads = None,
    windows: Labels = None,
    model: ModelOptions,
    figures: Figures = None,
    out: Report = None,
    as_json: JsonFlag = False,
    files: FileOptions,
) -> None:
    """Report alarms, incidents and coverage on recorded series. Each row is scored using only the rows before it.

    With --windows, the report also contains the number of detected windows, the detection delay, the fraction of
    correct incidents, and the NAB score. DATA may also be a configuration of `rfa watch`. In this case, the results of
    its queries are read over the history that the configuration sets, or from --from to --to.
    """
    from rfa.cli.filter import OUTLIER, FilterBatch
    from rfa.cli.filter_run import Task
    from rfa.library.windows import read_windows

    _check_outputs(data, out, figures)
    labels = None if windows is None else read_windows(windows, files.zone)
    if len(data) == 1 and Path(data[0]).suffix in CONFIGS:
        options = {
            "--rate": alarm.rate is not None, "--quiet": alarm.quiet, "--min-deviation": alarm.min_deviation,
            "--rules": alarm.rules, "--mute": alarm.mute, "--lead": lead, "--model": model.bundle,
            "--system": model.system, "--direction": alarm.direction != "both",
        }  # fmt: skip
        for option in [option for option, value in options.items() if value]:
            raise ValueError(
                f"{option} is not supported with a configuration, because each query in it sets this option; remove "
                f"{option}"
            )
        judged, results = _of_config(Path(data[0]), files.reading, labels)
        return _report(_gathered(judged, labels), [[result] for result in results], figures, out, as_json=as_json)
    alarms = alarm.alarm(files.zone)
    task = Task(model.load(), lead or [], None, alarms, OUTLIER, smooth=False, lag=None, option="--rate")
    task.check()
    batch = FilterBatch(data, files, task, has_plot=False)
    batch.run()
    _report(_gathered(_of_files(batch, labels), labels), batch.by_series(), figures, out, as_json=as_json)
    if batch.failed:
        raise typer.Exit(1)


def _gathered(judged: Sequence[SeriesBacktest], labels: Windows | None) -> Backtest:
    from rfa.library.backtest import Backtest

    return Backtest(tuple(judged), labels.unmatched() if labels is not None and judged else ())


def _check_outputs(sources: Sequence[str], out: Path | None, figures: Path | None) -> None:
    from rfa.cli.filter_output import check_output

    if out is not None:
        check_output("--out", out, (".json",), sources)
    if figures is not None and figures.exists() and not figures.is_dir():
        raise ValueError(f"--figures must be a directory, but {str(figures)!r} is a file")


def _of_files(batch: FilterBatch, windows: Windows | None) -> list[SeriesBacktest]:
    """Return the result for each series in a batch of files."""
    found = []
    for results, frame in zip(batch.by_series(), batch.frames, strict=True):
        own = None if windows is None else windows.of(frame.by, results[0].key)
        found += [_judge(result, own) for result in results]
    return found


def _of_config(
    path: Path, reading: ReadOptions, windows: Windows | None
) -> tuple[list[SeriesBacktest], list[Filtered]]:
    """Return the result for each series of a configuration, and the filtered rows of these series."""
    import time

    from rfa.cli.filter import OUTLIER
    from rfa.cli.filter_models import load_filter
    from rfa.cli.filter_run import Task
    from rfa.library.watch.config_file import load_config
    from rfa.library.watch.history import recorded_series
    from rfa.library.watch.prometheus import SourceError
    from rfa.runtime.uncertainty.alarms import alarm_of
    from rfa.runtime.uncertainty.input import value_range

    config = load_config(path)
    begin, end = (_moment(text, reading.zone) for text in (reading.start, reading.end))
    judged, results = [], []
    try:
        for query, labels, series in recorded_series(config, begin, time.time() if end is None else end):
            leads = [f"{lead:.12g}s" for lead in query.horizon]
            limits = value_range(query.minimum, query.maximum, ("minimum", "maximum"))
            alarm = alarm_of(query.alarm, query.tz)
            task = Task(load_filter(query.model), leads, None, alarm, OUTLIER, smooth=False, lag=None, range=limits)
            results += task.run(query.name, tuple(cell for _, cell in labels), series)
            own = None if windows is None else windows.of([name for name, _ in labels], results[-1].key)
            judged.append(_judge(results[-1], own))
    except SourceError as error:
        raise ValueError(f"{path}: {error}") from None
    if not judged:
        raise ValueError(f"{path}: no query returns values in this period; choose another period")
    return judged, results


def _judge(result: Filtered, windows: Sequence[tuple[float, float]] | None) -> SeriesBacktest:
    from rfa.library.backtest import judge

    incidents = result.sequence.incidents
    return judge(result.label, result.series, result.outputs["alarm"] == 1, incidents, result.checks, windows)


def _moment(text: str | None, zone: str) -> float | None:
    """Convert a date to seconds since 1970, or return None if there is no date."""
    import numpy as np
    import pyarrow as pa

    from rfa.data.clock import read_clock

    if text is None:
        return None
    clock = read_clock(pa.array([text]), "--from and --to", zone=zone, time_format=None, rows=np.ones(1, np.int64))
    return float(clock.seconds(slice(None))[0])


def _report(
    found: Backtest, results: Sequence[Sequence[Filtered]], figures: Path | None, out: Path | None, *,
    as_json: bool,
) -> None:  # fmt: skip
    """Write the report and the figures, and print the results."""
    from rfa.cli.console import print_json

    if figures is not None:
        _draw(results, figures)
    if out is not None:
        out.write_text(json.dumps(found.document(), allow_nan=False) + "\n")
    if as_json:
        return print_json(found.document())
    for line in str(found).split("; "):
        typer.echo(line)


def _draw(series: Sequence[Sequence[Filtered]], folder: Path) -> None:
    """Draw a figure for each series, in a file with the name of the series."""
    from rfa.cli.plot import check_panels, draw

    if len(series) > MOST_FIGURES:
        raise ValueError(
            f"--figures draws up to {MOST_FIGURES:,} series, but there are {len(series):,}; choose fewer series or "
            "remove --figures"
        )
    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for results in series:
        check_panels(sum(len(result.series.names) for result in results))
        label = results[0].label if len(results) == 1 else f"{results[0].file}: {results[0].key}"
        name = stem = re.sub(r"[^\w.-]+", "_", label)[:100]
        while name in taken:
            name = f"{stem}_{len(taken)}"
        taken.add(name)
        draw(results, folder / f"{name}.png", title=label)
