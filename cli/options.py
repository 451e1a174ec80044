"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

if TYPE_CHECKING:
    from rfa.data import ReadOptions
    from rfa.data.table import Table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the results as one JSON document on the last line.")]
BundleName = Annotated[str, typer.Argument(help="Bundle directory, or name of a default bundle.", metavar="BUNDLE")]
# Directory of the published results.
RESULTS = Path("results")
Folder = Annotated[Path | None, typer.Option(help="Directory in which to save the figures.", metavar="DIR")]
PlotFile = Annotated[Path | None, typer.Option(help="File for a figure of the results.")]
JsonFile = Annotated[Path, typer.Option("--out", help="JSON file to write.")]
JsonTable = Annotated[Path, typer.Option("--out", help="JSON file to write. Results are added to an existing file.")]
Bundles = Annotated[
    list[Path] | None, typer.Option("--bundle", help="Bundle directory to serve. Repeatable.", metavar="DIR")
]
TestFolder = Annotated[
    Path, typer.Option(help="Directory that contains test.txt, or a subdirectory test of .txt files.", metavar="DIR")
]
Device = Annotated[str, typer.Option(help="Device to use: auto, cpu or cuda.")]


@dataclass(frozen=True)
class FileOptions:
    """Options for reading the files of a command.

    Attributes:
        reading: Options of `rfa.data.read_frame`.
        source: Options of `rfa.data.load_table`.
    """

    reading: ReadOptions
    source: dict[str, str | None]

    @property
    def zone(self) -> str:
        """Time zone of the times and of maintenance windows."""
        return self.reading.zone

    def load(self, file: str) -> Table:
        """Load a file, and return its table.

        Raises:
            ValueError: If the file cannot be read.
        """
        from rfa.data import load_table

        return load_table(file, **self.source)


# Mapping from names of options to type, default and `typer.Option`.
OptionTable = Mapping[str, tuple[Any, Any, Any]]
# Options for reading a file of series (see `rfa.data.read_frame`).
READING: Final[OptionTable] = {
    "time": (
        str | None, None,
        typer.Option(help="Name of the time column. By default, it is detected from its name or values."),
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
        str | None, None,
        typer.Option(help="SELECT statement for a SQLite or DuckDB database. By default, its only table is read."),
    ),
    "zone": (
        str, "UTC",
        typer.Option("--tz", help="Time zone of times without a UTC offset, and of days and weeks."),
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
        bool, False, typer.Option("--strict", help="Reject files in which times decrease or a cell is not a number."),
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
        typer.Option(help="Time step, such as 5min or 1d. The rows in each step are replaced by their mean."),
    ),
}  # fmt: skip


def add_options(
    table: OptionTable, receivers: Sequence[str], convert: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of a table to a command.

    If the type of a parameter of the command is a dataclass, there is one option for each of its fields instead.

    Args:
        table: Options to add.
        receivers: Parameters of the command that are not options. `convert` returns their values.
        convert: Function that converts the values of the options in `table`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        groups: dict[str, Any] = {
            name: kind for name, kind in hints.items() if is_dataclass(kind) and name not in receivers
        }
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            if name in groups:
                kinds = get_type_hints(groups[name], include_extras=True)
                parameters += [_option(one.name, kinds[one.name], one.default) for one in fields(groups[name])]
            elif name not in receivers:
                parameters.append(parameter.replace(annotation=hints[name]))
        parameters += [
            _option(name, Annotated[kind, option], default) for name, (kind, default, option) in table.items()
        ]

        @wraps(command)
        def run(**values: Any) -> None:
            received = convert({name: values.pop(name) for name in table})
            for name, group in groups.items():
                received[name] = group(**{one.name: values.pop(one.name) for one in fields(group)})
            command(**received, **values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def reads_files(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options in READING to a command. The command receives them as `files`."""

    def convert(options: dict[str, Any]) -> dict[str, Any]:
        from rfa.data import ReadOptions

        source = {name: options.pop(name) for name in ("sheet", "query")}
        options |= {name: options[name] or [] for name in ("by", "missing", "known")}
        options["columns"] = options.pop("column") or []
        return {"files": FileOptions(ReadOptions(**options), source)}

    return add_options(READING, ("files",), convert)(command)
