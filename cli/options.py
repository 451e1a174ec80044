"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the results as one JSON document on the last line.")]
BundleName = Annotated[str, typer.Argument(help="Bundle directory, or name of a default bundle.", metavar="BUNDLE")]
# Directory of the published results.
RESULTS = Path("results")
Folder = Annotated[Path | None, typer.Option(help="Directory in which to save the figures.", metavar="DIR")]
JsonFile = Annotated[Path, typer.Option("--out", help="JSON file to write.")]
JsonTable = Annotated[Path, typer.Option("--out", help="JSON file to write. Results are added to an existing file.")]
Bundles = Annotated[
    list[Path] | None, typer.Option("--bundle", help="Bundle directory to serve. Repeatable.", metavar="DIR")
]
TestFolder = Annotated[
    Path, typer.Option(help="Directory with test.txt, or with a subdirectory test of .txt files.", metavar="DIR")
]
Device = Annotated[str, typer.Option(help="Device to use: auto, cpu or cuda.")]

# Options for reading a file of series (see `rfa.data.read_frame`), with the type, default and help of each.
READING: Final[dict[str, tuple[Any, Any, Any]]] = {
    "time": (
        str | None, None,
        typer.Option(help="Name of the time column. By default, it is found by its name or content."),
    ),
    "column": (
        list[str] | None, None, typer.Option(help=(
            "Name of a column with values. Repeatable. By default, all numeric columns are "
            "used."
        )),
    ),
    "known": (
        list[str] | None, None,
        typer.Option(help="Name of a column whose future values are known, such as a price or a holiday. Repeatable."),
    ),
    "by": (
        list[str] | None, None,
        typer.Option(help=(
            "Name of a column that identifies the series. Repeatable. By default, such columns are found "
            "automatically."
        )),
    ),
    "sheet": (
        str | None, None, typer.Option(help=(
            "Sheet of a workbook, file in a ZIP archive, or table of a text file, such as "
            "'table 2'."
        )),
    ),
    "query": (
        str | None, None, typer.Option(help="SELECT on a SQLite or DuckDB database. The default is its only table."),
    ),
    "zone": (
        str, "UTC",
        typer.Option("--tz", help="Time zone of the days and weeks, and of times without a time zone."),
    ),
    "time_format": (
        str | None, None,
        typer.Option(help="Format of the times, such as '%d.%m.%Y %H:%M', MJD or 'hours since 1900-01-01'."),
    ),
    "missing": (
        list[str] | None, None,
        typer.Option(
            help=(
                "Word or number that marks a missing value, such as -999. Repeatable. `none` disables the automatic "
                "search for such numbers."
            )
        ),
    ),
    "strict": (
        bool, False, typer.Option("--strict", help="Raise an error if times decrease or a cell is not a number."),
    ),
    "start": (
        str | None, None,
        typer.Option("--from", help="First time to read, such as 2024-03-31. Earlier rows are skipped."),
    ),
    "end": (
        str | None, None,
        typer.Option("--to", help="End of the period to read. Rows at or after this time are skipped."),
    ),
    "every": (
        str | None, None,
        typer.Option(help="Time step such as 5min or 1d. Rows are resampled to it by their mean."),
    ),
}  # fmt: skip


def reads_files(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options in READING to a command. The command receives them as `reading`, a `ReadOptions`, and
    `source`."""
    # rfa.data loads numpy, which `rfa --help` does not need.
    hints = get_type_hints(command, localns={"ReadOptions": Any}, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name not in ("reading", "source")
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
        for name, (kind, default, option) in READING.items()
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        from rfa.data import ReadOptions

        options: dict[str, Any] = {name: values.pop(name) for name in READING}
        source = {name: options.pop(name) for name in ("sheet", "query")}
        options |= {name: options[name] or [] for name in ("by", "missing", "known")}
        options["columns"] = options.pop("column") or []
        command(reading=ReadOptions(**options), source=source, **values)

    parameters = [*own, *added]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
