"""Options of `rfa filter`, `rfa forecast`, `rfa detect` and `rfa plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _expand(sources: list[str]) -> list[str]:
    from rfa.data.source import expand_sources

    return expand_sources(sources)


Sources = Annotated[
    list[str],
    typer.Argument(
        help="CSV, JSON, Excel, Parquet, Arrow or SQLite file, also compressed; a directory, or a pattern such "
        "as 'data/*.csv'; a URL such as https:// or s3://; or - for standard input. `rfa inspect FILE` "
        "shows how it is read.",
        metavar="FILE...",
        callback=_expand,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "--bundle",
        help="Bundle directory, or name of a default bundle. The default is `default`, which mixes a trained "
        "network with simple forecasts and filters each column separately. `auto` needs no training and is "
        "faster. `auto-joint` uses the correlation of the columns.",
    ),
]
System = Annotated[
    Path | None, typer.Option(help="JSON file with matrices, presets or fitted models, instead of a bundle.")
]
Horizon = Annotated[
    str | None, typer.Option(help="Forecast the next rows: a number such as 24, or all rows within 30min, 6h or 1d.")
]
Leads = Annotated[
    list[str] | None,
    typer.Option(
        help="Also forecast this far ahead from each row: a number of rows such as 24, or a duration. Repeatable."
    ),
]
Minimum = Annotated[
    float | None, typer.Option("--min", help="Lowest possible value. No estimate or forecast lies below it.")
]
Maximum = Annotated[
    float | None, typer.Option("--max", help="Highest possible value. No estimate or forecast lies above it.")
]
Weights = Annotated[
    bool, typer.Option("--weights", help="Also print the weights of the models that `default` combines.")
]
Smooth = Annotated[bool, typer.Option("--smooth", help="Also estimate each row from all rows, earlier and later.")]
Lag = Annotated[int | None, typer.Option(min=0, help="Smooth with this number of later rows only.")]
AlarmRate = Annotated[str | None, typer.Option(help="Alarm rate: 1/day, 2/hour, or a share such as 0.001.")]
Rate = Annotated[str, typer.Option(help="Alarm rate: 1/day, 2/hour, or a share of the rows such as 0.001.")]
Mute = Annotated[
    list[str] | None,
    typer.Option(
        help="Maintenance window whose rows count as missing: 'sat 22:00-23:30', 'daily 03:00-03:10', or two "
        "times joined by /, in the time zone of --tz. Repeatable."
    ),
]
Rows = Annotated[
    bool, typer.Option("--rows", help="Print each row with an alarm and its estimates, instead of incidents.")
]
MinDeviation = Annotated[float, typer.Option(min=0, help="Minimum deviation of an alarm from the forecast.")]
Direct = Annotated[str, typer.Option(help="Report values above the forecast (up), below it (down), or both.")]
Quiet = Annotated[
    int, typer.Option(min=0, help="Number of rows after an alarm during which only a much rarer row is an alarm.")
]
Rules = Annotated[
    str | None,
    typer.Option(
        help="Rules that may raise an alarm, separated by commas: value, stretch, standstill, gap.", show_default="all"
    ),
]
Flag = Annotated[float, typer.Option(min=0.5, max=1 - 1e-12, help="Share of values that deviate less than an outlier.")]
InParts = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Filter a Parquet file part by part, with little memory and with the rows in their order. Requires "
        "--by, --time and --out.",
    ),
]
Digits = Annotated[
    str,
    typer.Option(
        help="Number of digits in CSV output beyond the leading digit of the interval's width, or `full` for all "
        "digits.",
        metavar="N",
    ),
]
Plot = Annotated[Path | None, typer.Option(help="Image with estimates, intervals, outliers, alarms and forecast.")]
Picture = Annotated[
    Path | None,
    typer.Option(
        help="Image as .png, .svg, .pdf, .jpg or .html. The default is FILE_plot.png in the current directory."
    ),
]
Out = Annotated[Path | None, typer.Option(help="Table as .csv, .parquet, .arrow or .jsonl, or all results as .json.")]
