"""`rfa filter`: the states behind recorded series and what comes next, as a table, a JSON document, a picture."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rfa.cli.console import JsonFlag, print_json

if TYPE_CHECKING:
    import pyarrow as pa

    from rfa.cli.filter_run import Filtered, Task
    from rfa.data import Key, Series, Table

OUTLIER = 0.999
# Lines of one kind that are said about many series.
SAID = 8


def filter_series(
    data: Annotated[
        list[str],
        typer.Argument(
            help="CSV, Excel, Parquet or Arrow, packed or not; a URL such as https:// or s3://; or - for standard "
            "input. A column called like a clock, or the first that holds dates, is the clock; empty cells are "
            "missing; columns without numbers are left out.",
            metavar="FILE...",
        ),
    ],
    bundle: Annotated[
        str | None,
        typer.Option(
            help="Bundle folder, or the name of a default bundle; unless given series, a trained network for any "
            "numbers, each column by itself. auto needs no training and is faster; with auto-joint rows are judged "
            "by the correlation of their columns."
        ),
    ] = None,
    system: Annotated[
        Path | None,
        typer.Option(
            help="In the place of a bundle: a JSON file with a system's matrices or a preset, or with one for each "
            "series."
        ),
    ] = None,
    time: Annotated[str | None, typer.Option(help="The column of times.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column to filter; repeatable. All that hold numbers unless given.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="A column that tells series apart; repeatable. Each is filtered by itself. Where each row is a "
            "series, the column of their names."
        ),
    ] = None,
    sheet: Annotated[str | None, typer.Option(help="Sheet of a workbook; the first unless given.")] = None,
    zone: Annotated[str, typer.Option("--tz", help="Where the clock hung whose times name no zone.")] = "UTC",
    time_format: Annotated[
        str | None, typer.Option(help="How times are written, such as '%d.%m.%Y %H:%M' (as strptime has it).")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse rows that run backwards and cells that are no numbers: else they are sorted, and missing.",
        ),
    ] = False,
    start: Annotated[str | None, typer.Option("--from", help="Only rows from then on, such as 2024-03-31.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Only rows before then.")] = None,
    every: Annotated[
        str | None,
        typer.Option(help="Put each series on a regular clock, such as 5min or 1d, by the mean of what each step has."),
    ] = None,
    horizon: Annotated[
        str | None,
        typer.Option(help="Forecast the rows that come next: so many, such as 24, or all up to 30min, 6h, 1d later."),
    ] = None,
    lead: Annotated[
        list[str] | None,
        typer.Option(
            help="Also the forecast that each row made so far ahead, to judge forecasts by: rows such as 24, or a "
            "time; without dates a number is in units of the times. Repeatable."
        ),
    ] = None,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Also the states given all rows, earlier and later.")
    ] = False,
    lag: Annotated[
        int | None,
        typer.Option(
            min=0, help="Smooth by so many later rows only, as one can who filters live and may wait for them."
        ),
    ] = None,
    alarm: Annotated[
        str | None,
        typer.Option(
            help="Raise alarms at this rate, by what the series has shown so far: 1/day, 2/hour, or a share of the "
            "rows such as 0.001. Times count as seconds."
        ),
    ] = None,
    quiet: Annotated[
        int, typer.Option(min=0, help="So many rows after an alarm only what is rarer by far is another.")
    ] = 0,
    flag: Annotated[
        float,
        typer.Option(
            min=0.5, max=1 - 1e-12, help="A row is an outlier if so many are nearer to the filter's estimate."
        ),
    ] = OUTLIER,
    plot: Annotated[
        Path | None, typer.Option(help="Draw estimates, bands, outliers, alarms and forecast into this image.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the table there: .csv, .parquet, .arrow or .jsonl; or .json for everything."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate the states behind recorded series; without --out, --plot or --json the table goes to stdout.

    The table has the columns of the file, in the order of time, and beside them what is told; with --horizon the rows
    that come next stand at its end. Where series fail alone the others are written, they are named, and the exit code
    is 1.
    """
    from rfa.cli.filter_output import DOCUMENT, TABLES, check_output
    from rfa.cli.filter_run import Task, alarm_at, filter_for, system_from
    from rfa.cli.filter_run import lead as lead_of
    from rfa.data.horizon import horizon as horizon_of
    from rfa.runtime.uncertainty.alarms import NEVER

    if out is not None:
        check_output("--out", out, (*TABLES, DOCUMENT), data)
    if plot is not None:
        from rfa.cli.plot import ENDINGS

        check_output("--plot", plot, ENDINGS, data)
    # What is wrong with these is said before a file is read.
    if bundle is not None and system is not None:
        raise ValueError("--system stands in the place of --bundle: give one of them")
    choose = filter_for(bundle) if system is None else system_from(system)
    for text in lead or []:
        lead_of(text, 1.0)
    if horizon is not None:
        horizon_of(horizon)
    rule = NEVER if alarm is None else alarm_at(alarm, quiet)
    if quiet and alarm is None:
        raise ValueError("--quiet is of alarms: give --alarm a rate, such as 1/day")
    task = Task(choose, lead or [], horizon, rule, flag, smooth or lag is not None, lag)
    reading = {
        "time": time, "columns": column or [], "by": by or [], "zone": zone, "time_format": time_format,
        "strict": strict, "start": start, "end": end, "every": every,
    }  # fmt: skip
    work = _Work(data, sheet, reading, task, is_drawn=plot is not None)
    work.run()
    _write(work, plot, out, flag, as_json=as_json)
    if work.failed:
        raise typer.Exit(1)


@dataclass
class _Work:
    """Files, and what became of their series.

    Attributes:
        reading: how tables are read, see `rfa.data.read_frame`.
        is_drawn: there is a picture to come, of all their columns.
        tables: of each series that was filtered.
        failed: series or files that could not be filtered, and why.
    """

    sources: Sequence[str]
    sheet: str | None
    reading: dict[str, Any]
    task: Task
    is_drawn: bool
    columns: int = 0
    found: list[Filtered] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def is_one(self) -> bool:
        """Whether there is one series in one file."""
        return len(self.sources) == 1 and not self.reading["by"]

    @property
    def is_alone(self) -> bool:
        """Whether there is one series, and its columns were not filtered each by itself."""
        return self.is_one and len(self.found) == 1

    def run(self) -> None:
        """Filter every series of every file.

        Raises:
            ValueError: none could be filtered.
        """
        from rfa.library.filtering import check_sizes

        for source, name in zip(self.sources, _names(self.sources), strict=True):
            for table, key, series in self._series(source, name):
                try:
                    check_sizes(series, table.first_row)
                    found = self.task.run(name, key, series)
                except ValueError as error:
                    self._fail(name, key, error)
                    continue
                self.found += found
                self.tables.append(table)
        self._say_warnings()
        if not self.found:
            told = next(iter(self.failed.values()))
            raise ValueError(f"no series could be filtered; the first of {len(self.failed)}: {told}")

    def by_series(self) -> list[list[Filtered]]:
        """What was found, together where it is of columns of one series."""
        return [list(parts) for _, parts in groupby(self.found, key=lambda found: (found.file, found.key))]

    def _series(self, source: str, name: str) -> Iterator[tuple[Table, Key, Series]]:
        from rfa.data import load_table, read_frame
        from rfa.data.wide import melt_wide

        by = self.reading["by"]
        try:
            table = melt_wide(load_table(source, sheet=self.sheet), by)
            refused: list[tuple[Key, ValueError]] = []
            read = read_frame(table, **self.reading, refused=lambda key, error: refused.append((key, error)))
        except ValueError as error:
            self._fail(name, (), error)
            return
        for key, reason in refused:
            self._fail(name, key, reason)
        _say_notes(name, read)
        self.columns += sum(len(series.names) for series in read.values())
        if self.is_drawn:
            from rfa.cli.plot import check_panels

            check_panels(self.columns)
        for key, series in read.items():
            yield table, key, series

    def _fail(self, name: str, key: Key, error: ValueError) -> None:
        from rfa.data import key_name

        if self.is_one:
            raise error
        label = f"{name}: {key_name(key)}" if key else name
        self.failed[label] = told = str(error).removeprefix(f"series {key_name(key)!r}: ")
        typer.echo(f"failed: {label}: {told}", err=True)

    def _say_warnings(self) -> None:
        lines = [
            f"warning: {'' if self.is_alone else found.label + ': '}{warning.message}"
            for found in self.found
            for warning in found.warnings
        ]
        for line in _first(lines):
            typer.echo(line, err=True)


def _names(sources: Sequence[str]) -> list[str]:
    """What files are called: by their names, or where two have the same as they were given."""
    from rfa.data.source import display_name

    names = [display_name(source) for source in sources]
    return [name if names.count(name) == 1 else source for name, source in zip(names, sources, strict=True)]


def _say_notes(name: str, read: dict[Key, Series]) -> None:
    """What was decided while reading: once where it is of every series of a file."""
    from rfa.data import key_name

    counts = Counter(note for series in read.values() for note in series.notes)
    lines = [f"{name}: {note}" for note, count in counts.items() if count == len(read)]
    for line in lines:
        typer.echo(line, err=True)
    own = [
        f"{name}: {key_name(key)}: {note}"
        for key, series in read.items()
        for note in series.notes
        if counts[note] < len(read)
    ]
    for line in _first(own):
        typer.echo(line, err=True)


def _first(lines: list[str]) -> list[str]:
    return lines if len(lines) <= SAID else [*lines[:SAID], f"and {len(lines) - SAID} more of these"]


def _write(work: _Work, plot: Path | None, out: Path | None, flag: float, *, as_json: bool) -> None:
    from rfa.cli.filter_output import DOCUMENT, as_csv, as_document, as_documents, write_table

    by = work.reading["by"]

    def document() -> dict[str, Any]:
        return as_document(work.found[0], flag) if work.is_alone else as_documents(work.found, work.failed, flag, by)

    if out is not None and out.suffix.lower() == DOCUMENT:
        out.write_text(json.dumps(document(), allow_nan=False) + "\n")
    elif out is not None:
        write_table(_table(work), out)
    if plot is not None:
        from rfa.cli.plot import draw

        draw(work.found, plot, title=" · ".join([*dict.fromkeys(found.file for found in work.found)][:3]))
    summary = _summary(work) + "".join(f" → {path}" for path in (out, plot) if path is not None)
    is_table = not as_json and out is None and plot is None
    if as_json:
        print_json(document())
    elif is_table:
        typer.echo(as_csv(_table(work)), nl=False)  # bytes
    typer.echo(summary, err=as_json or is_table)


def _table(work: _Work) -> pa.Table:
    """All series, one after the other in the order of their files and keys."""
    import pyarrow as pa

    from rfa.cli.filter_table import as_table

    parts = [
        as_table(
            table, found, work.reading["by"], names_file=len(work.sources) > 1, has_future=work.task.horizon is not None
        )
        for table, found in zip(work.tables, work.by_series(), strict=True)
    ]
    try:
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:  # one file has as text what another has as numbers
        raise ValueError(
            f"the files do not make one table ({str(error).splitlines()[0]}): filter them one by one"
        ) from None


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _summary(work: _Work) -> str:
    from rfa.cli.filter_run import held

    found = work.found
    ahead = sum(len(one.ahead) for one in found)
    alarms = [one.checks.alarms for one in found if one.checks.alarms is not None]
    told = [f"{len(found)} series"] if not work.is_alone else []
    told.append(_counted(sum(len(one.series.times) for one in found), "row"))
    told.append(_counted(sum(len(one.outliers) for one in found), "outlier"))
    if alarms:
        raised, expected = sum(one.raised for one in alarms), sum(one.expected for one in alarms)
        told.append(f"{_counted(raised, 'alarm')} of {expected:.2g} expected")
    if ahead:
        told.append(f"{_counted(ahead, 'row')} ahead")
    if work.is_alone:
        told.append(f"{held(found[0].checks)}log-likelihood {found[0].result.log_likelihood:.6g}")
    else:
        doubted = sum(bool(one.warnings) for one in found)
        told += [f"{doubted} with warnings"] * bool(doubted) + [f"{len(work.failed)} failed"] * bool(work.failed)
    return ", ".join(told)
