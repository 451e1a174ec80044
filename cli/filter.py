"""`rfa filter`, `rfa forecast`, `rfa detect` and `rfa plot`: filter recorded series and write a table, a JSON document
or a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from rfa.cli.digits import parse_digits
from rfa.cli.filter_options import (
    AlarmOptions,
    EstimateOptions,
    Flag,
    Horizon,
    InParts,
    ModelOptions,
    OptionalAlarm,
    OutputOptions,
    Picture,
    RangeOptions,
    Rate,
    Rows,
    Sources,
    Weights,
)
from rfa.cli.options import FileOptions, reads_files

if TYPE_CHECKING:
    from rfa.cli.filter_run import Filtered, Task
    from rfa.data import Frame, Key, Series
    from rfa.library.models import Filters

OUTLIER = 0.999
View = Literal["rows", "forecast", "alarms", "incidents"]
# Maximum number of messages of one kind that are printed.
SHOWN = 8


@reads_files
def filter_series(
    data: Sources,
    *,
    model: ModelOptions,
    estimates: EstimateOptions,
    alarm: OptionalAlarm,
    flag: Flag = OUTLIER,
    possible: RangeOptions,
    stream: InParts = False,
    outputs: OutputOptions,
    files: FileOptions,
) -> None:
    """Estimate the states of recorded series. Without --out, --plot or --json, the table is printed on stdout.

    The output contains the columns of the file, sorted by time, and the estimates next to them. --horizon appends a
    forecast. If a series fails, its error is printed, the other series are written, and the exit code is 1.
    """
    from rfa.cli.filter_run import Task, parse_alarm

    if stream:
        from rfa.cli.filter_stream import StreamOptions, stream_parquet

        others = {
            "--system": model.system, "--horizon": estimates.horizon, "--lead": estimates.lead, "--lag": estimates.lag,
            "--smooth": estimates.smooth, "--plot": outputs.plot, "--json": outputs.as_json, "--mute": alarm.mute,
            "--rules": alarm.rules, "--quiet": alarm.quiet, "--sheet": files.source["sheet"],
            "--query": files.source["query"],
        }  # fmt: skip
        options = StreamOptions(model.bundle, alarm.rate, possible.minimum, possible.maximum)
        unsupported = [name for name, value in others.items() if value]
        return stream_parquet(data, outputs.out, files.reading, options, unsupported)
    rule = parse_alarm(alarm.rate, files.zone, alarm.rules, quiet=alarm.quiet, mute=alarm.mute or [])
    limits, filters = possible.limits(), _load(data, model, outputs)
    leads, smooth = estimates.lead or [], estimates.smooth or estimates.lag is not None
    task = Task(filters, leads, estimates.horizon, rule, flag, smooth=smooth, lag=estimates.lag, range=limits)
    _filter_files(data, files, task, outputs)


@reads_files
def forecast_series(
    data: Sources,
    *,
    horizon: Horizon = None,
    model: ModelOptions,
    possible: RangeOptions,
    weights: Weights = False,
    outputs: OutputOptions,
    files: FileOptions,
) -> None:
    """Forecast the next rows of recorded series, with mean, standard deviation and 90 % interval.

    The default horizon depends on the time step: one day for hourly rows, one week for daily rows, one year for monthly
    or quarterly rows, and so on. If the file contains future rows with values only in the columns of --known, the
    default is these rows.
    """
    from rfa.cli.filter_run import Task
    from rfa.data.horizon import USUAL
    from rfa.runtime.uncertainty.alarms import NEVER

    filters, limits = _load(data, model, outputs), possible.limits()
    task = Task(filters, [], horizon or USUAL, NEVER, OUTLIER, smooth=False, lag=None, range=limits, weights=weights)
    _filter_files(data, files, task, outputs, "forecast")


@reads_files
def detect_series(
    data: Sources,
    *,
    alarm: AlarmOptions,
    rows: Rows = False,
    model: ModelOptions,
    outputs: OutputOptions,
    files: FileOptions,
) -> None:
    """Print the incidents of recorded series. An incident is a group of successive alarms.

    An alarm is raised for an unusual value, an unusual level or spread, a constant value, or a time without values.
    --rate sets the expected number of alarms.
    """
    from rfa.cli.filter_run import Task

    alarms, filters = alarm.alarm(files.zone), _load(data, model, outputs)
    task = Task(filters, [], None, alarms, OUTLIER, smooth=False, lag=None, option="--rate")
    _filter_files(data, files, task, outputs, "alarms" if rows else "incidents")


@reads_files
def plot_series(
    data: Sources,
    *,
    out: Picture = None,
    horizon: Horizon = None,
    rate: Rate = None,
    model: ModelOptions,
    files: FileOptions,
) -> None:
    """Draw recorded series with their values, estimates, 50 and 90 % intervals, outliers, alarms, gaps and a
    forecast."""
    from rfa.cli.filter_run import Task
    from rfa.data.horizon import USUAL
    from rfa.data.source import display_name

    picture = out or Path(f"{'series' if data[0] == '-' else Path(display_name(data[0])).stem}_plot.png")
    outputs = OutputOptions(plot=picture)
    alarms, filters = AlarmOptions(rate).alarm(files.zone), _load(data, model, outputs, "--out")
    task = Task(filters, [], horizon or USUAL, alarms, OUTLIER, smooth=False, lag=None, option="--rate")
    _filter_files(data, files, task, outputs)


def _load(data: list[str], model: ModelOptions, outputs: OutputOptions, plot_option: str = "--plot") -> Filters:
    """Check the output options, load the model, and return its filters."""
    from rfa.cli.filter_output import check_outputs

    check_outputs(outputs.out, outputs.plot, data, plot_option)
    return model.load()


def _filter_files(
    data: Sequence[str],
    files: FileOptions,
    task: Task,
    outputs: OutputOptions,
    view: View = "rows",
) -> None:
    """Filter the series of all files, and write the results. Exit with code 1 if a series failed."""
    from rfa.cli.filter_output import write_outputs

    has_plot = outputs.plot is not None
    batch = FilterBatch(data, files, task, has_plot=has_plot, view=view, digits=parse_digits(outputs.digits))
    task.check()
    batch.run()
    write_outputs(batch, outputs.out, outputs.plot, as_json=outputs.as_json)
    if batch.failed:
        raise typer.Exit(1)


@dataclass
class FilterBatch:
    """Filters the series of one or more files, and stores the results.

    Attributes:
        sources: Paths, patterns and URLs of the files, as passed to the command.
        files: Options for reading the files.
        task: Options of the computation that runs for each series.
        view: Content of the table: "rows" for all rows and the forecast, "forecast" for only the forecast, "alarms" for
            only the rows with alarms, or "incidents" for one row per incident.
        digits: Number of digits in CSV output. None prints all digits.
        has_plot: Whether all columns are drawn in one figure.
        columns: Number of columns in the files that were read.
        results: Results of the series or of their columns, in the order of the files.
        has_keys: Whether a file contains several series.
        frames: The frame of each filtered series, as it was read from the file.
        failed: Mapping from names of series or files that could not be filtered to error messages.
    """

    sources: Sequence[str]
    files: FileOptions
    task: Task
    has_plot: bool
    view: View = "rows"
    digits: int | None = None
    columns: int = 0
    results: list[Filtered] = field(default_factory=list)
    has_keys: bool = False
    frames: list[Frame] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def has_one_result(self) -> bool:
        """Whether there is only one series, whose columns were filtered together."""
        return self._has_one_series and len(self.results) == 1

    @property
    def _has_one_series(self) -> bool:
        return len(self.sources) == 1 and not self.has_keys

    def run(self) -> None:
        """Filter every series of every file.

        Raises:
            ValueError: If no series could be filtered.
        """
        from rfa.data.source import display_names
        from rfa.library.running import check_sizes

        for source, name in zip(self.sources, display_names(self.sources), strict=True):
            for frame, key, series in self._series(source, name):
                try:
                    check_sizes(series, frame.table.first_row)
                    results = self.task.run(name, key, series)
                except ValueError as error:
                    self._fail(name, key, error)
                    continue
                self.results += results
                self.frames.append(frame)
        self._print_warnings()
        self._print_inactive_rules()
        if not self.results:
            first = next(iter(self.failed.values()))
            raise ValueError(f"no series could be filtered ({len(self.failed)} failed); the first error is: {first}")

    def by_series(self) -> list[list[Filtered]]:
        """Return the results of each series. A series has several results if its columns were filtered separately."""
        return [list(parts) for _, parts in groupby(self.results, key=lambda result: (result.file, result.key))]

    def _series(self, source: str, name: str) -> Iterator[tuple[Frame, Key, Series]]:
        from rfa.data import read_all

        refused: list[tuple[Key, ValueError]] = []
        try:
            frame = read_all(
                self.files.load(source), self.files.reading, lambda key, error: refused.append((key, error))
            )
        except ValueError as error:
            self._fail(name, (), error)
            return
        self.has_keys = self.has_keys or bool(frame.by)
        for key, reason in refused:
            self._fail(name, key, reason)
        read = frame.series
        _print_notes(name, read)
        self.columns += sum(len(series.names) for series in read.values())
        if self.has_plot:
            from rfa.cli.plot import check_panels

            check_panels(self.columns)
        for key, series in read.items():
            yield frame, key, series

    def _fail(self, name: str, key: Key, error: ValueError) -> None:
        from rfa.data import key_name

        if self._has_one_series:
            raise error
        label = f"{name}: {key_name(key)}" if key else name
        self.failed[label] = message = str(error).removeprefix(f"series {key_name(key)!r}: ")
        typer.echo(f"failed: {label}: {message}", err=True)

    def _print_warnings(self) -> None:
        _print_first(
            f"warning: {'' if self.has_one_result else result.label + ': '}{warning.message}"
            for result in self.results
            for warning in result.warnings
        )

    def _print_inactive_rules(self) -> None:
        """Print which alarm rules did not have enough history. A text that applies to several results is printed
        once."""
        from rfa.runtime.uncertainty.inactive_rules import describe_inactive_rules

        states = [result.sequence.state for result in self.results]
        found = [describe_inactive_rules(state.adaptive, self.task.alarm.rule, state.step) for state in states]
        for text, count in Counter(text for text in found if text is not None).items():
            of_all = "" if count == len(found) else f"{count} of {len(found)} series: "
            typer.echo(f"note: {of_all}{text}", err=True)


def _print_notes(name: str, read: dict[Key, Series]) -> None:
    """Print how a file was read. A note that applies to all series of the file is printed once."""
    from rfa.data import key_name

    counts = Counter(note for series in read.values() for note in series.notes)
    for note in [note for note, count in counts.items() if count == len(read)]:
        typer.echo(f"{name}: {note}", err=True)
    _print_first(
        f"{name}: {key_name(key)}: {note}"
        for key, series in read.items()
        for note in series.notes
        if counts[note] < len(read)
    )


def _print_first(lines: Iterator[str]) -> None:
    found = list(lines)
    shown = (
        found
        if len(found) <= SHOWN
        else [*found[:SHOWN], f"further messages, which are not shown: {len(found) - SHOWN}"]
    )
    for line in shown:
        typer.echo(line, err=True)
