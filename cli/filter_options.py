"""Options of `rfa filter`, `rfa forecast`, `rfa detect` and `rfa plot`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rfa.cli.options import JsonFlag

if TYPE_CHECKING:
    from rfa.library.models import Filters
    from rfa.runtime.uncertainty.alarms import Alarm

USUAL_RATE = "0.001"


def _expand(sources: list[str]) -> list[str]:
    from rfa.data.source import expand_sources

    return expand_sources(sources)


Sources = Annotated[
    list[str],
    typer.Argument(
        help=(
            "CSV, JSON, Excel, Parquet, Arrow or SQLite file, which may be compressed; a directory; a pattern such "
            "as 'data/*.csv'; a URL such as https:// or s3://; or - for standard input. `rfa inspect FILE` shows how "
            "a file is read."
        ),
        metavar="FILE...",
        callback=_expand,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "--bundle",
        help=(
            "Bundle directory, or name of a default bundle. `default` combines a trained network with simple "
            "forecasts, and filters each column separately. `auto` is faster and needs no training. `auto-joint` "
            "also uses the correlation between the columns."
        ),
    ),
]
System = Annotated[
    Path | None,
    typer.Option(help="JSON file with a system to use instead of a bundle: matrices, a preset or fitted models."),
]
Horizon = Annotated[
    str | None,
    typer.Option(
        help="Number of rows to forecast after the last row, such as 24, or a duration such as 30min, 6h or 1d. "
        "Closed days and nights, at which the series never has rows, are skipped."
    ),
]
Leads = Annotated[
    list[str] | None,
    typer.Option(
        help="Horizon of an additional forecast from each row: a number of rows such as 24, or a duration. Repeatable."
    ),
]
Minimum = Annotated[
    float | None, typer.Option("--min", help="Lowest possible value. Estimates and forecasts never lie below it.")
]
Maximum = Annotated[
    float | None, typer.Option("--max", help="Highest possible value. Estimates and forecasts never lie above it.")
]
Weights = Annotated[
    bool, typer.Option("--weights", help="Also print the weights of the forecasts that `default` combines.")
]
Smooth = Annotated[
    bool, typer.Option("--smooth", help="Also print smoothed estimates, which use earlier and later rows.")
]
Lag = Annotated[int | None, typer.Option(min=0, help="Number of later rows to use for smoothing. The default is all.")]
RATE_HELP = "Alarm rate: 1/day, 2/hour, or a fraction of the rows such as 0.001."
AlarmRate = Annotated[str | None, typer.Option("--alarm", help=RATE_HELP)]
Rate = Annotated[str | None, typer.Option(help=RATE_HELP, show_default=USUAL_RATE)]
Mute = Annotated[
    list[str] | None,
    typer.Option(
        help=(
            "Maintenance window, in the time zone of --tz. Values inside it count as missing. Examples: 'sat "
            "22:00-23:30', 'daily 03:00-03:10', or two times separated by /. Repeatable."
        )
    ),
]
Rows = Annotated[
    bool,
    typer.Option(
        "--rows", help="Print each row with an alarm and the estimates of the row, instead of a list of incidents."
    ),
]
MinDeviation = Annotated[
    float, typer.Option(min=0, help="Minimum distance between value and forecast that raises an alarm.")
]
Direct = Annotated[str, typer.Option(help="Raise alarms for values above the forecast (up), below it (down), or both.")]
Quiet = Annotated[
    int,
    typer.Option(
        min=0, help="Number of rows after an alarm during which only a much less probable value raises another alarm."
    ),
]
Rules = Annotated[
    str | None,
    typer.Option(
        help="Rules that may raise an alarm, separated by commas: value, stretch, standstill or gap.",
        show_default="all",
    ),
]
Flag = Annotated[
    float,
    typer.Option(
        min=0.5, max=1 - 1e-12, help="Fraction of ordinary values below the threshold for outliers, such as 0.999."
    ),
]
InParts = Annotated[
    bool,
    typer.Option(
        "--stream",
        help=(
            "Filter a large Parquet file in parts, to limit the memory. The order of the rows does not change. This "
            "option requires --by, --time and --out."
        ),
    ),
]
Digits = Annotated[
    str,
    typer.Option(
        help=(
            "Number of digits after the leading digit of the interval's width in CSV output, or `full` for all digits."
        ),
        metavar="N",
    ),
]
Plot = Annotated[
    Path | None, typer.Option(help="File for a figure with the estimates, intervals, outliers, alarms and forecast.")
]
Picture = Annotated[
    Path | None,
    typer.Option(
        help=(
            "File for the figure: .png, .svg, .pdf, .jpg or .html. The default is FILE_plot.png in the current "
            "directory."
        )
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="File for the results: a table as .csv, .parquet, .arrow or .jsonl, or all results as .json."),
]


@dataclass(frozen=True)
class ModelOptions:
    """Options that select the model."""

    bundle: Model = None
    system: System = None

    def load(self) -> Filters:
        """Load the model that the options select, and return its filters.

        Raises:
            FileNotFoundError: If there is no such bundle or file.
            ValueError: If both options are set, or the model cannot be loaded.
        """
        from rfa.cli.filter_models import load_filter, load_system

        if self.bundle is not None and self.system is not None:
            raise ValueError("--system and --model cannot be combined; remove one of them")
        return load_filter(self.bundle) if self.system is None else load_system(self.system)


@dataclass(frozen=True)
class EstimateOptions:
    """Options for the forecasts and smoothed estimates of `rfa filter`."""

    horizon: Horizon = None
    lead: Leads = None
    smooth: Smooth = False
    lag: Lag = None


@dataclass(frozen=True)
class RangeOptions:
    """Options with the range of possible values."""

    minimum: Minimum = None
    maximum: Maximum = None

    def limits(self) -> tuple[float, float]:
        """Return the smallest and the largest possible value.

        Raises:
            ValueError: If the range is empty.
        """
        from rfa.cli.filter_run import parse_range

        return parse_range(self.minimum, self.maximum)


@dataclass(frozen=True)
class AlarmOptions:
    """Options for alarms."""

    rate: Rate = None
    quiet: Quiet = 0
    direction: Direct = "both"
    min_deviation: MinDeviation = 0.0
    rules: Rules = None
    mute: Mute = None

    def alarm(self, zone: str) -> Alarm:
        """Return the rule for alarms. The maintenance windows are in the time zone `zone`.

        Raises:
            ValueError: If an option is invalid.
        """
        from rfa.cli.filter_run import parse_alarm

        rate = USUAL_RATE if self.rate is None else self.rate
        return parse_alarm(
            rate, zone, self.rules, "--rate", quiet=self.quiet, direction=self.direction,
            min_deviation=self.min_deviation, mute=self.mute or [],
        )  # fmt: skip


@dataclass(frozen=True)
class OptionalAlarm:
    """Options for the alarms of `rfa filter`, which only raises alarms at a given rate."""

    rate: AlarmRate = None
    quiet: Quiet = 0
    rules: Rules = None
    mute: Mute = None


@dataclass(frozen=True)
class OutputOptions:
    """Options for the table, the figure and the printed results."""

    digits: Digits = "3"
    plot: Plot = None
    out: Out = None
    as_json: JsonFlag = False
