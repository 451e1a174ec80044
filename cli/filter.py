"""`rfa filter`: the states behind a recorded series, as a table, a JSON document, a picture."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rfa.cli.console import JsonFlag, print_json

if TYPE_CHECKING:
    import numpy as np

    from rfa.service.runtime.filter import FilterRuntime
    from rfa.service.runtime.filter_sequence import FilteredSequence
    from rfa.training.series import Series

DEFAULT_BUNDLE, METRIC_BUNDLE = "oscillator", "metrics"
OUTLIER = 0.999
LEVELS = (0.5, 0.9)
WIDE = "0.9"
# Parts of a table's columns, and what they are called in `Columns`.
PARTS = {"mean": "mean", "std": "std", "low90": f"lower.{WIDE}", "high90": f"upper.{WIDE}"}


def run_filter(
    runtime: FilterRuntime, series: Series, horizon: list[float], *, smooth: bool = False, lag: int | None = None
) -> FilteredSequence:
    """Filter a series, with a progress bar.

    Args:
        smooth: also the states given all rows, or those up to `lag` rows later.

    Raises:
        ValueError: the series has another number of columns than the bundle takes.
    """
    import numpy as np
    from tqdm import tqdm

    from rfa.service.engine.filter.model import FilterOptions
    from rfa.service.runtime.filter_sequence import FilteredSequence

    if series.values.shape[1] != runtime.observation_size:
        raise ValueError(
            f"the CSV has {series.values.shape[1]} columns of values ({', '.join(series.names)}), "
            f"bundle {runtime.name!r} takes {runtime.observation_size}; "
            "`rfa train filter --data CSV` makes a filter that fits"
        )
    values, times = np.asarray(series.values, np.float64), np.asarray(series.times, np.float64)
    options = FilterOptions(times, values, np.ones(len(times)), LEVELS, tuple(horizon), smooth=smooth, lag=lag)
    # To smooth, a tick for each piece that is filtered, for each row looked back at, and for each row told.
    total = 2 * len(times) - (-len(times) // runtime.piece_rows) if smooth else len(times)
    with tqdm(total=total, unit="row", disable=None, leave=False) as bar:
        return FilteredSequence.collect(runtime.work(options), bar.update)


def learned(series: Series, nis: np.ndarray) -> np.ndarray:
    """`anomaly` of each row by what this series has shown so far, not by what the bundle was calibrated on."""
    import numpy as np
    from tqdm import tqdm

    from rfa.export.normal import anomalies

    given = [None if math.isnan(value) else value for value in nis.tolist()]
    with tqdm(total=len(given), desc="anomalies", unit="row", disable=None, leave=False) as bar:
        scores = anomalies(given, series.values, bar.update)
    return np.where(np.isnan(nis), np.nan, scores)


def flagged(anomaly: np.ndarray, threshold: float) -> list[int]:
    """Rows (from 0) whose anomaly score reaches the threshold."""
    import numpy as np

    return np.flatnonzero(anomaly >= threshold).tolist()  # type: ignore[no-any-return]


def as_table(
    series: Series,
    columns: dict[str, np.ndarray],
    outliers: list[int],
    horizon: Sequence[float] = (),
    *,
    is_smoothed: bool = False,
) -> str:
    """CSV: time, per component the observation, mean, std and 0.9 interval, the row's scores, the forecasts, and the
    smoothed states."""
    import numpy as np
    import orjson

    table: dict[str, np.ndarray] = {"t": columns["t"]}
    for k, name in enumerate(series.names):
        table[name] = series.values[:, k]
        table |= {f"{name}_{part}": columns[f"{key}.{name}"] for part, key in PARTS.items()}
    table |= {name: columns[name] for name in ("weight", "nis", "anomaly", "confidence")}
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
    # Numbers alone: as JSON they are written ten times as fast, and as short. What there is not is null there.
    rows = zip(*(column.tolist() for column in table.values()), strict=True)
    body = orjson.dumps(list(rows))[2:-2].replace(b"],[", b"\n").replace(b"null", b"")
    return buffer.getvalue() + body.decode() + "\n"


def as_document(
    model: str, series: Series, result: FilteredSequence, anomaly: np.ndarray, threshold: float, outliers: list[int]
) -> dict[str, Any]:
    """Everything, as JSON has it."""
    steps = [
        {
            **vars(step),
            "anomaly": None if math.isnan(score) else score,
            "forecast": [asdict(point) for point in step.forecast],
            "samples": step.samples.tolist(),
        }
        for step, score in zip(result.steps, anomaly.tolist(), strict=True)
    ]
    return {
        "model": model,
        "columns": list(series.names),
        "steps": steps,
        "smoothed": None if result.smoothed is None else [asdict(state) for state in result.smoothed],
        "log_likelihood": result.log_likelihood,
        "threshold": threshold,
        "outliers": outliers,
    }


def filter_series(
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV with a header; a column time, t, timestamp or date is the clock, empty cells are missing.",
            exists=True,
            dir_okay=False,
        ),
    ],
    bundle: Annotated[
        str | None,
        typer.Option(
            help=f"Bundle folder, or the name of a default bundle; {DEFAULT_BUNDLE} unless given, "
            f"or {METRIC_BUNDLE} for the anomalies of one column."
        ),
    ] = None,
    horizon: Annotated[list[float] | None, typer.Option(min=1e-9, help="Forecast so far ahead; repeatable.")] = None,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Also the states given all rows, earlier and later.")
    ] = False,
    lag: Annotated[
        int | None,
        typer.Option(
            min=0, help="Smooth by so many later rows only, as one can who filters live and may wait for them."
        ),
    ] = None,
    anomalies: Annotated[
        bool,
        typer.Option(
            "--anomalies",
            help="Score every row by what the series has shown so far, one setting for any series: by level and "
            "surprise, quiet after an alarm.",
        ),
    ] = False,
    flag: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help=f"Anomaly score from which a row is an outlier; {OUTLIER}, or stricter with --anomalies."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw estimate, bands and outliers into this image.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table there: .csv, or .json for everything.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate the states behind a recorded series; without --out, --plot or --json the table goes to stdout."""
    from rfa.cli.locate import find_bundle
    from rfa.export.bundle import open_bundle
    from rfa.export.normal import THRESHOLD
    from rfa.service.engine.filter.columns import Columns
    from rfa.service.runtime.filter import FilterRuntime
    from rfa.training.series import load_csv

    if out is not None and out.suffix not in (".csv", ".json"):
        raise ValueError(f"--out must end in .csv or .json, got {out.name!r}")
    series = load_csv(data)
    if bundle is None:
        bundle = METRIC_BUNDLE if anomalies and len(series.names) == 1 else DEFAULT_BUNDLE
    runtime = FilterRuntime(open_bundle(find_bundle(bundle)))
    result = run_filter(runtime, series, horizon or [], smooth=smooth or lag is not None, lag=lag)
    found = Columns(series.names, None, horizon or [])
    for told in result.pieces:
        found.add(told)
    if result.smoothed is not None:
        found.add_smoothed(result.smoothed)
    columns = found.arrays()
    if anomalies:
        columns["anomaly"] = learned(series, columns["nis"])
    threshold = flag if flag is not None else THRESHOLD if anomalies else OUTLIER
    outliers = flagged(columns["anomaly"], threshold)

    def table() -> str:
        return as_table(series, columns, outliers, horizon or [], is_smoothed=result.smoothed is not None)

    def document() -> dict[str, Any]:
        return as_document(runtime.name, series, result, columns["anomaly"], threshold, outliers)

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
        typer.echo(
            f"{len(series.times)} rows, {len(outliers)} outliers, log-likelihood {result.log_likelihood:.6g}"
            + "".join(f" → {path}" for path in (out, plot) if path is not None)
        )
