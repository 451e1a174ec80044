"""`rfa filter`: the states behind a recorded series, as a table, a JSON document, a picture."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rfa.cli.console import JsonFlag, print_json

if TYPE_CHECKING:
    import numpy as np

    from rfa.data import Series
    from rfa.service.engine.filter.alarms import Alarm
    from rfa.service.runtime.filter import FilterRuntime
    from rfa.service.runtime.filter_sequence import FilteredSequence
    from rfa.service.schemas.replies import ForecastChecks

OUTLIER = 0.999
LEVELS = (0.5, 0.9)
COMPILING = "Compiling this filter for this processor: up to half a minute, once."
WIDE = "0.9"
BEYOND = 1.5  # typical lags: from there on it is further ahead than a step
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
# Parts of a table's columns, and what they are called in `Columns`.
PARTS = {"mean": "mean", "std": "std", "low90": f"lower.{WIDE}", "high90": f"upper.{WIDE}"}


def run_filter(
    runtime: FilterRuntime,
    series: Series,
    horizon: list[float],
    *,
    smooth: bool = False,
    lag: int | None = None,
    alarm: Alarm | None = None,
) -> FilteredSequence:
    """Filter a series, with a progress bar.

    Args:
        smooth: also the states given all rows, or those up to `lag` rows later.
        alarm: when a row is one; None is never.

    Raises:
        ValueError: the series has another number of columns than the bundle takes.
    """
    import numpy as np
    from tqdm import tqdm

    from rfa.model.compiling import telling_of_compilation
    from rfa.service.engine.filter.alarms import NEVER
    from rfa.service.engine.filter.model import FilterOptions
    from rfa.service.runtime.filter_sequence import FilteredSequence

    if series.values.shape[1] != runtime.observation_size:
        raise ValueError(
            f"the file has {series.values.shape[1]} columns of values ({', '.join(series.names)}), "
            f"bundle {runtime.name!r} takes {runtime.observation_size}; "
            "`rfa train filter --data CSV` makes a filter that fits"
        )
    values, times = np.asarray(series.values, np.float64), np.asarray(series.times, np.float64)
    options = FilterOptions(
        times, values, np.ones(len(times)), LEVELS, tuple(horizon), alarm=alarm or NEVER, smooth=smooth, lag=lag
    )
    # To smooth, a tick for each piece that is filtered, for each row looked back at, and for each row told.
    total = 2 * len(times) - (-len(times) // runtime.piece_rows) if smooth else len(times)
    with (
        tqdm(total=total, unit="row", disable=None, leave=False) as bar,
        telling_of_compilation(lambda: bar.write(COMPILING, file=sys.stderr)),
    ):
        return FilteredSequence.collect(runtime.work(options), bar.update)


def beyond_gate(nis: np.ndarray, seen: np.ndarray, flag: float) -> list[int]:
    """Rows (from 0) whose nis is rarer than 1 - flag where the filter is right, which is chi-square of the components
    seen (Wilson and Hilferty 1931)."""
    import numpy as np

    spread = 2 / (9 * np.maximum(seen, 1))
    gate = seen * (1 - spread + NormalDist().inv_cdf(flag) * np.sqrt(spread)) ** 3
    return np.flatnonzero(nis > gate).tolist()  # type: ignore[no-any-return]


def filter_for(bundle: str | None, series: Series, system: Path | None = None) -> FilterRuntime:
    """The filter that is named, that of a file, or `auto`. What describes a system runs only where it is named.

    Raises:
        OSError, ValueError: it cannot be had.
    """
    if system is not None:
        return system_from(system, series.names)
    from rfa.export.bundle import open_bundle
    from rfa.library.locate import find_bundle
    from rfa.service.runtime.auto import NAME, AutoRuntime
    from rfa.service.runtime.filter import FilterRuntime

    if bundle in (None, NAME):
        return AutoRuntime.of(len(series.names))
    return FilterRuntime(open_bundle(find_bundle(str(bundle))))


def held(checks: ForecastChecks) -> str:
    """How often the values were inside their interval, one step and further ahead; nothing where none was scored."""
    shares = {"one step": checks.coverage.get(WIDE)}
    shares |= {
        f"{lead.steps:.3g} steps": lead.coverage.get(WIDE) for lead in checks.leads if (lead.steps or 0) >= BEYOND
    }
    told = [f"{100 * share:.1f} % {ahead} ahead" for ahead, share in shares.items() if share is not None]
    return f"{100 * float(WIDE):g} % intervals held {', '.join(told)}, " if told else ""


def system_from(path: Path, names: Sequence[str]) -> FilterRuntime:
    """The filter of the system in a JSON file, or of the one that the file has for the column of this name.

    Raises:
        OSError, ValueError: it cannot be had, or numba is not installed.
    """
    from rfa.model.compiling import HAS_COMPILER
    from rfa.model.system import InvalidSystem, system_for

    if not HAS_COMPILER:
        raise ValueError("--system needs numba: pip install 'rfa-server[fast]'")
    from rfa.service.runtime.compiled_system import SystemRuntime

    try:
        return SystemRuntime(system_for(json.loads(path.read_text(encoding="utf-8")), names))
    except InvalidSystem as error:
        raise ValueError(f"{path.name}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path.name} is no JSON document: {error}") from None


def lead(text: str, row: float) -> float:
    """How far ahead, in units of the times; seconds where it has a unit.

    Args:
        row: what a number without one counts, the usual time between two rows of a dated file.

    Raises:
        ValueError: it is no time above 0.
    """
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)(e-?\d+)? *(s|min|h|d|w)?", text.strip())
    ahead = float(f"{found[1]}{found[2] or ''}") * (SECONDS[found[3]] if found[3] else row) if found else 0.0
    if not 0 < ahead < math.inf:
        raise ValueError(f"--horizon takes a time above 0 such as 0.5, 30min, 6h or 1d, got {text!r}")
    return ahead


def row_time(series: Series) -> float:
    """The usual time between two rows of a dated file; 1 where times are numbers, or there are not two."""
    import numpy as np

    lags = np.diff(series.times)
    return float(np.median(lags[lags > 0])) if series.is_dated and (lags > 0).any() else 1.0


def alarm_at(rate: str, quiet: int) -> Alarm:
    """An alarm by its rate, a share of the rows or a number per time.

    Raises:
        ValueError: it is neither.
    """
    from rfa.service.engine.filter.alarms import LARGEST_RATE, RATE_PATTERN, alarm

    if re.match(RATE_PATTERN, rate):
        return alarm(rate, quiet=quiet)
    try:
        share = float(rate)
    except ValueError:
        share = math.nan
    if not 0 < share <= LARGEST_RATE:
        raise ValueError(
            f"--alarm takes a share of the rows, above 0 and at most {LARGEST_RATE}, or a number per second, minute, "
            f"hour, day or week such as 1/day, got {rate!r}"
        )
    return alarm(share, quiet=quiet)


def as_table(
    series: Series,
    columns: dict[str, np.ndarray],
    outliers: list[int],
    horizon: Sequence[float] = (),
    *,
    is_smoothed: bool = False,
) -> str:
    """CSV: time, in UTC where it is a date, per component the observation, mean, std and 0.9 interval, the row's
    scores, the forecasts, and the smoothed states."""
    import numpy as np
    import orjson

    table: dict[str, np.ndarray] = {"t": columns["t"]}
    if series.is_dated and series.clock is not None:
        moments = series.moments(columns["t"])
        seconds = moments.astype("datetime64[s]")
        shown = seconds if (seconds == moments).all() else moments
        table = {series.clock: np.char.add(np.datetime_as_string(shown), "Z")}
    for k, name in enumerate(series.names):
        table[name] = series.values[:, k]
        table |= {f"{name}_{part}": columns[f"{key}.{name}"] for part, key in PARTS.items()}
    table |= {name: columns[name] for name in ("weight", "nis", "anomaly", "confidence")}
    if not np.isnan(columns["alarm"]).all():
        table["alarm"] = columns["alarm"]
    table["outlier"] = np.zeros(len(series.times), np.int64)
    table["outlier"][outliers] = 1
    for lead in horizon:
        for name in series.names:
            ahead = {part: columns[f"forecast.{lead!r}.{key}.{name}"] for part, key in PARTS.items()}
            table |= {f"{name}_ahead{lead:g}_{part}": column for part, column in ahead.items()}
    if is_smoothed:
        for name in series.names:
            table |= {f"{name}_smooth_{part}": columns[f"smoothed.{part}.{name}"] for part in ("mean", "std")}
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(table)
    # Numbers and dates: as JSON they are written ten times as fast, and as short. What there is not is null there.
    rows = zip(*(column.tolist() for column in table.values()), strict=True)
    body = orjson.dumps(list(rows))[2:-2].replace(b"],[", b"\n").replace(b"null", b"")
    return buffer.getvalue() + body.decode() + "\n"


def as_document(
    model: str,
    series: Series,
    result: FilteredSequence,
    checks: ForecastChecks,
    flag: float,
    outliers: list[int],
) -> dict[str, Any]:
    """Everything, as JSON has it."""
    from rfa.service.engine.filter.doubts import doubts

    steps = [
        {**vars(step), "forecast": [asdict(point) for point in step.forecast], "samples": step.samples.tolist()}
        for step in result.steps
    ]
    return {
        "model": model,
        "columns": list(series.names),
        "steps": steps,
        "smoothed": None if result.smoothed is None else [asdict(state) for state in result.smoothed],
        "log_likelihood": result.log_likelihood,
        "flag": flag,
        "outliers": outliers,
        "calibration": asdict(checks),
        "warnings": [asdict(warning) for warning in doubts(model, checks)],
        "alarms": None if checks.alarms is None else asdict(checks.alarms),
    }


def filter_series(
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV, Parquet or Arrow, packed or not, or - for standard input. A column called like a clock, or the "
            "first that holds dates, is the clock; empty cells are missing; columns without numbers are left out.",
        ),
    ],
    bundle: Annotated[
        str | None,
        typer.Option(
            help="Bundle folder, or the name of a default bundle; unless given what suits any numbers, each column by "
            "itself."
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
    zone: Annotated[str, typer.Option("--tz", help="Where the clock hung whose times name no zone.")] = "UTC",
    time_format: Annotated[
        str | None, typer.Option(help="How times are written, such as '%d.%m.%Y %H:%M' (as strptime has it).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse rows that run backwards, do not sort them.")] = False,
    start: Annotated[str | None, typer.Option("--from", help="Only rows from then on, such as 2024-03-31.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Only rows before then.")] = None,
    horizon: Annotated[
        list[str] | None,
        typer.Option(
            help="Forecast so far ahead: rows such as 24, or a time such as 30min, 6h, 1d; repeatable. Without dates a "
            "number is in units of the times."
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
    plot: Annotated[Path | None, typer.Option(help="Draw estimate, bands and outliers into this image.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table there: .csv, or .json for everything.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate the states behind a recorded series; without --out, --plot or --json the table goes to stdout."""
    import numpy as np

    from rfa.data import load_series
    from rfa.service.engine.filter.alarms import NEVER
    from rfa.service.engine.filter.columns import Columns
    from rfa.service.engine.filter.doubts import doubts
    from rfa.service.engine.filter.forecast_checks import summarise

    if out is not None and out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out must end in .csv or .json, got {out.name!r}")
    for text in horizon or []:
        lead(text, 1.0)  # what is wrong with it is said before the file is read
    if bundle is not None and system is not None:
        raise ValueError("--system stands in the place of --bundle: give one of them")
    rule = NEVER if alarm is None else alarm_at(alarm, quiet)
    if quiet and alarm is None:
        raise ValueError("--quiet is of alarms: give --alarm a rate, such as 1/day")
    series = load_series(
        data, time=time, columns=column or [], zone=zone, time_format=time_format, strict=strict, start=start, end=end
    )
    for note in series.notes:
        typer.echo(f"{data.name}: {note}", err=True)
    leads = [lead(text, row_time(series)) for text in horizon or []]
    if rule.per_time and series.clock is None:
        raise ValueError(
            f"--alarm {alarm} is per time, and {data.name} has no column of times; give a share of the rows"
        )
    runtime = filter_for(bundle, series, system)
    result = run_filter(runtime, series, leads, smooth=smooth or lag is not None, lag=lag, alarm=rule)
    found = Columns(series.names, None, leads)
    for told in result.pieces:
        found.add(told)
    if result.smoothed is not None:
        found.add_smoothed(result.smoothed)
    columns = found.arrays()
    seen = (~np.isnan(np.asarray(series.values, np.float64))).sum(axis=1)
    outliers = beyond_gate(columns["nis"], seen, flag)
    checks = summarise(result.tally, runtime.levels, runtime.observation_size, leads, is_fresh=True)
    for warning in doubts(runtime.name, checks):
        typer.echo(f"warning: {warning.message}", err=True)

    def table() -> str:
        return as_table(series, columns, outliers, leads, is_smoothed=result.smoothed is not None)

    def document() -> dict[str, Any]:
        return {
            **as_document(runtime.name, series, result, checks, flag, outliers),
            "notes": list(series.notes),
        }

    if out is not None:
        is_json = out.suffix == ".json"
        out.write_text(json.dumps(document(), allow_nan=False) + "\n" if is_json else table())
    if plot is not None:
        from rfa.cli.plot import draw_series

        draw_series(series, result.steps, outliers, plot, title=f"{data.name} · {runtime.name}")
    if as_json:
        print_json(document())
    elif out is None and plot is None:
        typer.echo(table(), nl=False)
    else:
        alarms = checks.alarms
        typer.echo(
            f"{len(series.times)} rows, {len(outliers)} outliers, "
            + ("" if alarms is None else f"{alarms.raised} alarms of {alarms.expected:.2g} expected, ")
            + held(checks)
            + f"log-likelihood {result.log_likelihood:.6g}"
            + "".join(f" → {path}" for path in (out, plot) if path is not None)
        )
