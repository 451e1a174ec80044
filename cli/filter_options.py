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
        help="CSV, JSON, Excel, Parquet, Arrow or SQLite, also compressed; a folder or a pattern such as 'data/*.csv'; "
        "a URL such as https:// or s3://; or - for standard input. `rfa inspect FILE` shows how it is read.",
        metavar="FILE...",
        callback=_expand,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "--bundle",
        help="Bundle folder, or the name of a default bundle. Default: default, a mixture of a trained network and "
        "simple forecasts that filters each column separately. auto needs no training and is faster; auto-joint uses "
        "the correlation of the columns.",
    ),
]
System = Annotated[
    Path | None, typer.Option(help="Instead of a bundle: JSON file with matrices, presets or fitted models.")
]
Horizon = Annotated[str | None, typer.Option(help="Forecast the next rows: 24, or all within 30min, 6h or 1d.")]
Leads = Annotated[
    list[str] | None,
    typer.Option(help="Also the forecast of each row this far ahead: rows such as 24, or a time. Repeatable."),
]
Minimum = Annotated[
    float | None, typer.Option("--min", help="Lowest possible value: no estimate or forecast lies below.")
]
Maximum = Annotated[
    float | None, typer.Option("--max", help="Highest possible value: no estimate or forecast lies above.")
]
Weights = Annotated[bool, typer.Option("--weights", help="Also the weights of the models that the default one mixes.")]
Smooth = Annotated[bool, typer.Option("--smooth", help="Also estimate each row from all rows, earlier and later.")]
Lag = Annotated[int | None, typer.Option(min=0, help="Smooth with this many later rows only.")]
AlarmRate = Annotated[str | None, typer.Option(help="Rate of alarms: 1/day, 2/hour, or a share such as 0.001.")]
Rate = Annotated[str, typer.Option(help="Rate of alarms: 1/day, 2/hour, or a share of the rows such as 0.001.")]
Mute = Annotated[
    list[str] | None,
    typer.Option(
        help="Maintenance window, whose rows count as missing: 'sat 22:00-23:30', 'daily 03:00-03:10' or two times "
        "joined by /, in the zone of --tz. Repeatable."
    ),
]
Rows = Annotated[bool, typer.Option("--rows", help="Each row with an alarm, with its estimates, not each incident.")]
MinDeviation = Annotated[float, typer.Option(min=0, help="Least distance of an alarm from the expected value.")]
Direct = Annotated[str, typer.Option(help="Alarms above the expected value (up), below it (down), or both.")]
Quiet = Annotated[int, typer.Option(min=0, help="Rows after an alarm in which only much rarer ones are alarms.")]
Rules = Annotated[
    str | None,
    typer.Option(help="What may raise alarms, joined by commas: value, stretch, standstill, gap.", show_default="all"),
]
Flag = Annotated[float, typer.Option(min=0.5, max=1 - 1e-12, help="Share of values nearer than an outlier.")]
InParts = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Filter a Parquet file part by part, in little memory, rows in their order; needs --by, --time and --out.",
    ),
]
Digits = Annotated[
    str,
    typer.Option(help="Digits of CSV output beyond the leading one of the interval's width; full: all.", metavar="N"),
]
Plot = Annotated[Path | None, typer.Option(help="Image of estimates, intervals, outliers, alarms and forecast.")]
Picture = Annotated[
    Path | None, typer.Option(help="Image as .png, .svg, .pdf, .jpg or .html. Default: FILE_plot.png, in this folder.")
]
Out = Annotated[Path | None, typer.Option(help="Table as .csv, .parquet, .arrow or .jsonl; everything as .json.")]
