"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line.")]
BundleName = Annotated[str, typer.Argument(help="Bundle folder, or the name of a default bundle.", metavar="BUNDLE")]
JsonFile = Annotated[Path, typer.Option("--out", help="JSON file to write.")]
JsonTable = Annotated[Path, typer.Option("--out", help="JSON file to write, or to add to.")]
Bundles = Annotated[list[Path] | None, typer.Option("--bundle", help="Bundle to serve; repeatable.", metavar="DIR")]
TestFolder = Annotated[Path, typer.Option(help="Folder with test.txt, or with test: .txt files.", metavar="DIR")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]

# How a file of series is read, see `rfa.data.read_frame`.
TimeColumn = Annotated[str | None, typer.Option(help="Time column. Default: found by its name or content.")]
Columns = Annotated[list[str] | None, typer.Option(help="Value column; repeatable. Default: all numeric columns.")]
Keys = Annotated[list[str] | None, typer.Option(help="Column whose cells separate series; repeatable.")]
Sheet = Annotated[str | None, typer.Option(help="Sheet of a workbook. Default: the first.")]
Zone = Annotated[str, typer.Option("--tz", help="Time zone of times without one, and of days and weeks.")]
TimeFormat = Annotated[str | None, typer.Option(help="Format of the times for strptime, such as '%d.%m.%Y %H:%M'.")]
Start = Annotated[str | None, typer.Option("--from", help="First time to read, such as 2024-03-31.")]
End = Annotated[str | None, typer.Option("--to", help="Read rows before this time.")]
Step = Annotated[str | None, typer.Option(help="Resample to a regular step such as 5min or 1d, by the mean.")]
