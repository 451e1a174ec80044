"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line.")]
BundleName = Annotated[str, typer.Argument(help="Bundle folder, or the name of a default bundle.", metavar="BUNDLE")]
JsonFile = Annotated[Path, typer.Option("--out", help="JSON file to write.")]
JsonTable = Annotated[Path, typer.Option("--out", help="JSON file to write, or to add to.")]
Bundles = Annotated[list[Path] | None, typer.Option("--bundle", help="Bundle to serve; repeatable.", metavar="DIR")]
TestFolder = Annotated[Path, typer.Option(help="Folder with test.txt, or with test: .txt files.", metavar="DIR")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]

# How a file of series is read, see `rfa.data.read_frame`: type, default and help of each option.
READING: Final[dict[str, tuple[Any, Any, Any]]] = {
    "time": (str | None, None, typer.Option(help="Time column. Default: found by its name or content.")),
    "column": (list[str] | None, None, typer.Option(help="Value column; repeatable. Default: all numeric columns.")),
    "known": (
        list[str] | None, None,
        typer.Option(help="Column whose future is known, such as a price or a holiday; repeatable."),
    ),
    "by": (list[str] | None, None, typer.Option(help="Column that labels series; repeatable. Default: found.")),
    "sheet": (str | None, None, typer.Option(help="Sheet, table of a ZIP archive, or 'table 2' of a text file.")),
    "query": (str | None, None, typer.Option(help="SELECT on a SQLite or DuckDB database. Default: its only table.")),
    "zone": (str, "UTC", typer.Option("--tz", help="Time zone of times without one, and of days and weeks.")),
    "time_format": (str | None, None, typer.Option(help="Format of the times for strptime: '%d.%m.%Y %H:%M'.")),
    "missing": (
        list[str] | None, None,
        typer.Option(help="Word or number for missing values, such as -999; repeatable. none: do not search for such."),
    ),
    "strict": (
        bool, False, typer.Option("--strict", help="Refuse decreasing times and cells that are not numbers."),
    ),
    "start": (str | None, None, typer.Option("--from", help="First time to read, such as 2024-03-31.")),
    "end": (str | None, None, typer.Option("--to", help="Read rows before this time.")),
    "every": (str | None, None, typer.Option(help="Resample to a regular step such as 5min or 1d, by the mean.")),
}  # fmt: skip


def reads_files(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of READING to a command, which gets them as `reading`, a `ReadOptions`, and `source`."""
    # rfa.data loads numpy, which `rfa --help` need not.
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
